"""The law for everything an optimizer can do beside its update rule."""

from __future__ import annotations

from collections.abc import Callable

import keras
import pytest
from keras import layers

from .candidates import Place
from .compare import state_of
from .harness import THREE, TWO, agree, compile_model, fit_again, fit_model, sgd
from .models import classes, mlp, regression, regressor, tabular
from .sparing import usually
from .tolerances import tolerance

MakeOptimizer = Callable[[], keras.optimizers.Optimizer]


def adam(**settings: object) -> keras.optimizers.Optimizer:
    """Return Adam as the law uses it."""
    return keras.optimizers.Adam(0.01, epsilon=1e-3, **settings)


def train(place: Place, make: MakeOptimizer, **fit: object) -> dict[str, object]:
    """Train the MLP for ten steps and return the optimizer's variables as well."""
    model = compile_model(place, mlp, lambda: {**classes(), "optimizer": make()})
    results = fit_again(place, model, tabular(75), **fit)
    results["optimizer"] = {
        f"{index} {variable.name}": variable.numpy()
        for index, variable in enumerate(model.optimizer.variables)
    }
    return results


@pytest.mark.sampled(16)
@pytest.mark.parametrize("kind", [sgd, adam])
def test_gradient_accumulation(kind: Callable[..., keras.optimizers.Optimizer]) -> None:
    """Three steps make one update; ten steps leave one over."""
    agree(lambda place: train(place, lambda: kind(gradient_accumulation_steps=3)))


@pytest.mark.sampled(16)
@pytest.mark.parametrize("frequency", [4, None])
def test_moving_average_of_weights(frequency: int | None) -> None:
    """use_ema, overwriting every fourth step, or once at the end of fit."""
    settings = {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": frequency}
    agree(lambda place: train(place, lambda: sgd(**settings)), THREE)


def test_everything_at_once() -> None:
    """Clipping, accumulation, a moving average, weight decay and a scaled loss together."""

    def make() -> keras.optimizers.Optimizer:
        inner = adam(
            global_clipnorm=0.3,
            gradient_accumulation_steps=2,
            use_ema=True,
            ema_overwrite_frequency=3,
            weight_decay=0.01,
        )
        return keras.optimizers.LossScaleOptimizer(inner, initial_scale=64.0)

    agree(lambda place: train(place, make), THREE)


@pytest.mark.sampled(20)
@pytest.mark.parametrize("clip", ["clipnorm", "global_clipnorm", "clipvalue"])
def test_clipping(clip: str) -> None:
    """Clipping sees the gradient of the whole batch, not that of a share."""
    threshold = {"clipnorm": 0.05, "global_clipnorm": 0.1, "clipvalue": 0.01}[clip]
    reference = agree(lambda place: train(place, lambda: sgd(**{clip: threshold})), THREE)
    agree_not = train_plain_losses()
    assert reference["history"]["loss"] != agree_not, "the threshold clips nothing"  # type: ignore[index]


def train_plain_losses() -> list[float]:
    """Return the losses of the same training without clipping."""
    from .candidates import OneDevice
    from .harness import start

    start()
    return train(OneDevice(), sgd)["history"]["loss"]  # type: ignore[index]


@pytest.mark.sampled(16)
@pytest.mark.parametrize(("scale", "growth"), [(1024.0, 3), (1e38, 2)])
def test_loss_scale(scale: float, growth: int) -> None:
    """The scale grows every few steps; one that overflows skips steps and halves."""

    def make() -> keras.optimizers.Optimizer:
        return keras.optimizers.LossScaleOptimizer(
            sgd(), initial_scale=scale, dynamic_growth_steps=growth
        )

    agree(lambda place: train(place, make), THREE)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(policy: str) -> None:
    """Compute in half precision, weights in full; float16 scales its loss by itself."""

    def experiment(place: Place) -> dict[str, object]:
        keras.config.set_dtype_policy(policy)
        results = train(place, sgd)
        scaled = any("dynamic_scale" in name for name in results["optimizer"])  # type: ignore[attr-defined]
        assert scaled == (policy == "mixed_float16")
        # One sample between two classes changes it by 0.02.
        results["history"].pop("accuracy")  # type: ignore[attr-defined]
        return results

    agree(experiment, within=tolerance(policy))


@pytest.mark.parametrize(
    "name",
    usually(["rmsprop", "nadam", "adafactor", "lamb", "muon", "ftrl"], ["adafactor", "muon"]),
)
def test_other_optimizers(name: str) -> None:
    """Update rules that look at a whole variable (rows, norms, orthogonal parts) included."""

    def make() -> keras.optimizers.Optimizer:
        kinds: dict[str, MakeOptimizer] = {
            "rmsprop": lambda: keras.optimizers.RMSprop(0.005, epsilon=1e-3),
            "nadam": lambda: keras.optimizers.Nadam(0.01, epsilon=1e-3),
            "adafactor": lambda: keras.optimizers.Adafactor(0.01),
            "lamb": lambda: keras.optimizers.Lamb(0.01, epsilon=1e-3),
            "muon": lambda: keras.optimizers.Muon(0.005, exclude_embeddings=False),
            "ftrl": lambda: keras.optimizers.Ftrl(0.05),
        }
        return kinds[name]()

    agree(lambda place: train(place, make), within=tolerance(name))


def test_learning_rate_schedule() -> None:
    """A schedule counts steps, not replicas."""

    def make() -> keras.optimizers.Optimizer:
        return sgd(learning_rate=keras.optimizers.schedules.CosineDecay(0.1, 8))

    agree(lambda place: train(place, make), THREE)


def test_frozen_layers() -> None:
    """A frozen layer stays; freezing another and compiling again moves the rest."""
    data = regression(48)

    def experiment(place: Place) -> dict[str, object]:
        with place.scope():
            model = regressor()
            model.layers[0].trainable = False
            model.compile(sgd(), loss="mse")
        before = model.layers[0].get_weights()
        results = {"first": fit_again(place, model, data)}
        assert all(
            (a == b).all() for a, b in zip(before, model.layers[0].get_weights(), strict=True)
        )
        with place.scope():
            model.layers[0].trainable = True
            model.layers[1].trainable = False
            model.compile(sgd(), loss="mse")
        results["second"] = fit_again(place, model, data)
        return results

    agree(experiment)


def test_weight_constraints() -> None:
    """Constraints are applied to the whole variable after every update."""

    def build() -> keras.Model:
        return keras.Sequential(
            [
                keras.Input((8,)),
                layers.Dense(
                    12,
                    activation="tanh",
                    kernel_constraint=keras.constraints.MaxNorm(0.7),
                    bias_constraint=keras.constraints.NonNeg(),
                ),
                layers.Dense(1, kernel_constraint=keras.constraints.UnitNorm()),
            ]
        )

    agree(lambda place: fit_model(place, build, regression(75), lambda: {"loss": "mse"}))


def test_variables_begin_the_same() -> None:
    """The same seed gives the same first weights as on one device."""

    def experiment(place: Place) -> dict[str, object]:
        with place.scope():
            model = mlp()
        return state_of(model)

    agree(experiment, TWO, THREE, within=0.0)
