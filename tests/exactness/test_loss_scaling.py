"""Loss scaling: conditional updates of variables of several owners, with and without XLA."""

from __future__ import annotations

from collections.abc import Callable

import keras
import pytest

from .candidates import Place
from .harness import TWO, agree, agree_in_fit, fit_model
from .models import numbers, regression, regressor
from .tolerances import tolerance

EPSILON = 1e-3
INNER: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "adam": lambda: keras.optimizers.Adam(0.01, epsilon=EPSILON),
    "sgd": lambda: keras.optimizers.SGD(0.05),
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.01, momentum=0.5, centered=True, epsilon=EPSILON),
    "adamw": lambda: keras.optimizers.AdamW(0.01, amsgrad=True, epsilon=EPSILON),
    "adadelta": lambda: keras.optimizers.Adadelta(0.5, epsilon=EPSILON),
    "adagrad": lambda: keras.optimizers.Adagrad(0.05),
    "adamax": lambda: keras.optimizers.Adamax(0.01, epsilon=EPSILON),
    "adafactor": lambda: keras.optimizers.Adafactor(0.01),
    "nadam": lambda: keras.optimizers.Nadam(0.01, epsilon=EPSILON),
    "ftrl": lambda: keras.optimizers.Ftrl(0.05),
    "lion": lambda: keras.optimizers.Lion(0.003),
    "lamb": lambda: keras.optimizers.Lamb(0.01, epsilon=EPSILON),
    "muon": lambda: keras.optimizers.Muon(0.01, exclude_layers=["head"]),
    "clipped": lambda: keras.optimizers.Adam(0.01, epsilon=EPSILON, global_clipnorm=0.1),
    "averaged": lambda: keras.optimizers.SGD(0.05, use_ema=True, ema_overwrite_frequency=3),
    "accumulating": lambda: keras.optimizers.SGD(0.05, gradient_accumulation_steps=3),
}


def scaled(name: str) -> keras.optimizers.Optimizer:
    """Return an optimizer whose first steps overflow, and whose scale grows soon after."""
    return keras.optimizers.LossScaleOptimizer(
        INNER[name](), initial_scale=2.0**127, dynamic_growth_steps=3
    )


@pytest.mark.covering(1)
@pytest.mark.parametrize("jit_compile", [True, False])
@pytest.mark.parametrize("name", INNER)
@pytest.mark.filterwarnings("ignore:.*ENG-082")
def test_loss_scaling(name: str, jit_compile: bool) -> None:
    """Overflowing, growing and ordinary steps, the last batch of an epoch smaller."""

    agree_in_fit(
        regressor,
        regression(72),
        lambda: {**numbers(), "optimizer": scaled(name), "jit_compile": jit_compile},
        TWO,
    )


@pytest.mark.long
@pytest.mark.parametrize("name", ["adam", "momentum"])
def test_half_precision_by_xla(name: str) -> None:
    """Keras wraps the optimizer itself under ``mixed_float16``; nothing runs without XLA."""

    def experiment(place: Place) -> dict[str, object]:
        keras.mixed_precision.set_global_policy("mixed_float16")
        compiled = {"optimizer": INNER[name](), "jit_compile": True}
        return fit_model(place, regressor, regression(72), lambda: {**numbers(), **compiled})

    agree(experiment, TWO, within=tolerance("mixed_float16"))
