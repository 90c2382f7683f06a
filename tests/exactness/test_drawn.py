"""The law for models, shares and batch sizes that nobody chose."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from keras import layers

from .candidates import OneDevice, Place, make_candidate
from .compare import assert_equal
from .harness import compile_model, fit_again, start
from .models import OPTIMIZERS, regression
from .tolerances import tolerance

ACTIVATIONS = ("tanh", "gelu", "silu", "softplus", "sigmoid")
LOSSES = ("mse", "huber", "log_cosh", "log_cosh_sum", "weighted_mean")
NUM_SAMPLES = 40
TWO_NORMALIZED = {
    "widths": [3, 1],
    "activation": "tanh",
    "norm": True,
    "penalty": 0.0,
    "loss": "mse",
    "optimizer": "adam",
}


@st.composite
def models(draw: st.DrawFn) -> dict[str, object]:
    return {
        "widths": draw(st.lists(st.integers(1, 9), max_size=3)),
        "activation": draw(st.sampled_from(ACTIVATIONS)),
        "norm": draw(st.booleans()),
        "penalty": draw(st.sampled_from([0.0, 0.01])),
        "loss": draw(st.sampled_from(LOSSES)),
        "optimizer": draw(st.sampled_from(sorted(OPTIMIZERS))),
    }


def shares() -> st.SearchStrategy[list[float]]:
    """Draw shares of one to five devices, zeros among them, whose sum is not zero."""
    numbers = st.one_of(st.just(0.0), st.integers(1, 9).map(float), st.floats(0.01, 5.0))
    return st.lists(numbers, min_size=1, max_size=5).filter(lambda drawn: sum(drawn) > 0)


def build(drawn: dict[str, object]) -> keras.Model:
    stack: list[object] = [keras.Input((8,))]
    for width in drawn["widths"]:  # type: ignore[attr-defined]
        penalty = keras.regularizers.L2(drawn["penalty"]) if drawn["penalty"] else None
        stack.append(layers.Dense(width, use_bias=not drawn["norm"], kernel_regularizer=penalty))
        if drawn["norm"]:
            stack.append(layers.BatchNormalization(momentum=0.7, synchronized=True))
        stack.append(layers.Activation(drawn["activation"]))
    return keras.Sequential([*stack, layers.Dense(1)])


def loss_of(name: str) -> object:
    """Return the loss that was drawn; all are smooth."""
    if name == "log_cosh_sum":
        return keras.losses.LogCosh(reduction="sum")
    if name == "weighted_mean":
        return keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    return name


def train(place: Place, drawn: dict[str, object], batch: int) -> dict[str, object]:
    def compiled() -> dict[str, object]:
        optimizer = OPTIMIZERS[str(drawn["optimizer"])]()
        # Few samples have large gradients, and sums are as large as their batch: without this
        # many a draw diverges, on one device too.
        scale = 1 / batch if drawn["loss"] == "log_cosh_sum" else 1.0
        optimizer.learning_rate = optimizer.learning_rate * min(1.0, batch / 16) * scale
        return {"loss": loss_of(str(drawn["loss"])), "optimizer": optimizer, "metrics": ["mae"]}

    x, y = regression(NUM_SAMPLES)
    model = compile_model(place, lambda: build(drawn), compiled)
    steps = -(-NUM_SAMPLES // batch)
    return fit_again(place, model, (x, y), batch_size=batch, epochs=-(-8 // steps))


def check(drawn: dict[str, object], given_shares: list[float], batch: int) -> None:
    start()
    reference = train(OneDevice(), drawn, batch)
    losses = reference["history"]["loss"]  # type: ignore[index]
    assume(np.isfinite(losses).all() and max(losses) < 1e3)  # what diverges magnifies rounding
    start()
    place = make_candidate(len(given_shares), tuple(given_shares))
    candidate = train(place, drawn, batch)
    where = f"{drawn} shares {given_shares} batch {batch}"
    smallest = min(batch, NUM_SAMPLES % batch or batch)
    kind = "drawn_two_normalized" if drawn["norm"] and smallest <= 2 else "drawn"
    within = tolerance(kind, str(drawn["optimizer"]), f"drawn_{drawn['optimizer']}")
    assert_equal(reference, candidate, within=within, where=where)


COMMON = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}


AS_DRAWN = given(drawn=models(), given_shares=shares(), batch=st.integers(2, 24))


@settings(max_examples=2, derandomize=True, **COMMON)
@example(drawn=TWO_NORMALIZED, given_shares=[0.0, 1.0], batch=2)
@AS_DRAWN
def test_few_drawn(drawn: dict[str, object], given_shares: list[float], batch: int) -> None:
    """Two draws, the same ones every time, and one whose gradients are zero but for rounding."""
    check(drawn, given_shares, batch)


@pytest.mark.long
@pytest.mark.timeout(3600)
@settings(**COMMON)
@given(drawn=models(), given_shares=shares(), batch=st.integers(1, 41))
def test_drawn(drawn: dict[str, object], given_shares: list[float], batch: int) -> None:
    check(drawn, given_shares, batch)
