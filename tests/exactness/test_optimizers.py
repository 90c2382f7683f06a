"""The law for everything an optimizer can do beside its update rule, in `fit` and in a loop.

Optimizers by their rule alone are in `test_loss_scaling`, through `fit`, and here in a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from .candidates import OneDevice, Place
from .compare import state_of
from .harness import (
    FIVE,
    THREE,
    TWO,
    agree,
    agree_in_fit,
    compile_model,
    fit_again,
    sgd,
    start,
    usually,
)
from .loops import CROSS_ENTROPY, Parts, agree_in_loop, batches, loop_results, run_loop, train_step
from .models import BY_NAME, classes, mlp, regression, regressor, sentences, tabular
from .tolerances import tolerance

MakeOptimizer = Callable[[], keras.optimizers.Optimizer]


def adam(**settings: Any) -> keras.optimizers.Optimizer:
    return keras.optimizers.Adam(0.01, epsilon=1e-3, **settings)


def by_fit(place: Place, make: MakeOptimizer) -> dict[str, Any]:
    """Train the MLP for ten steps and return the optimizer's variables as well."""
    model = compile_model(place, mlp, lambda: {**classes(), "optimizer": make()})
    results = fit_again(place, model, tabular(75))
    results["optimizer"] = {
        f"{index} {variable.name}": variable.numpy()
        for index, variable in enumerate(model.optimizer.variables)
    }
    return results


def by_loop(
    place: Place,
    make_optimizer: MakeOptimizer,
    *,
    build: Callable[[], keras.Model] = mlp,
    data: Any = None,
    through_apply: bool = False,
    change: Callable[..., Iterable[Any]] = lambda gradients: gradients,
) -> dict[str, Any]:
    def make() -> Parts:
        model, optimizer = build(), make_optimizer()
        step = train_step(
            model, optimizer, CROSS_ENTROPY, through_apply=through_apply, change=change
        )
        return Parts(model=model, optimizers=(optimizer,), step=step)

    return loop_results(place, make, batches(*(data or tabular(75))))


def by_apply(place: Place, make: MakeOptimizer) -> dict[str, Any]:
    return by_loop(place, make, through_apply=True)


def scaled(inner: keras.optimizers.Optimizer, **settings: Any) -> keras.optimizers.Optimizer:
    return keras.optimizers.LossScaleOptimizer(inner, **settings)


def decayed(kind: Callable[..., keras.optimizers.Optimizer]) -> keras.optimizers.Optimizer:
    optimizer = kind(weight_decay=0.02)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


def everything() -> keras.optimizers.Optimizer:
    settings = {"gradient_accumulation_steps": 2, "use_ema": True, "ema_overwrite_frequency": 3}
    return scaled(adam(global_clipnorm=0.3, weight_decay=0.02, **settings), initial_scale=64.0)


AVERAGED = {"use_ema": True, "ema_momentum": 0.9}
CLIPPED = {"clipnorm": 0.05, "global_clipnorm": 0.1, "clipvalue": 0.01}
WAYS: dict[str, MakeOptimizer] = {
    # Clipping sees the gradient of the whole batch, not that of a share.
    **{clip: lambda clip=clip: sgd(**{clip: CLIPPED[clip]}) for clip in CLIPPED},
    # Three steps make one update; ten steps leave one over.
    "accumulating": lambda: sgd(gradient_accumulation_steps=3),
    "accumulating for Adam": lambda: adam(gradient_accumulation_steps=3),
    # A moving average overwrites every fourth step, or once at the end of fit.
    "averaged every fourth step": lambda: sgd(**AVERAGED, ema_overwrite_frequency=4),
    "averaged at the end": lambda: sgd(**AVERAGED, ema_overwrite_frequency=None),
    # The scale grows every few steps; one that overflows skips steps and halves.
    "scaled": lambda: scaled(sgd(), initial_scale=1024.0, dynamic_growth_steps=3),
    "scaled until it overflows": lambda: scaled(sgd(), initial_scale=1e38, dynamic_growth_steps=2),
    # A schedule counts steps, not replicas.
    "scheduled": lambda: sgd(learning_rate=keras.optimizers.schedules.CosineDecay(0.1, 8)),
    "decayed": lambda: decayed(sgd),
    "decayed by Adam": lambda: decayed(adam),
    "everything": everything,
}
RULES: dict[str, MakeOptimizer] = {
    "rmsprop": lambda: keras.optimizers.RMSprop(0.005, epsilon=1e-3),
    "nadam": lambda: keras.optimizers.Nadam(0.01, epsilon=1e-3),
    "adafactor": lambda: keras.optimizers.Adafactor(0.01),
    "lamb": lambda: keras.optimizers.Lamb(0.01, epsilon=1e-3),
    "muon": lambda: keras.optimizers.Muon(0.005, exclude_embeddings=False),
    "ftrl": lambda: keras.optimizers.Ftrl(0.05),
}
USUAL = {
    by_fit: ("clipnorm", "averaged every fourth step", "scaled until it overflows", "everything"),
    by_loop: ("global_clipnorm", "accumulating for Adam"),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", usually([*WAYS], USUAL[by_fit]))
def test_in_fit(name: str) -> None:
    reference = agree(lambda place: by_fit(place, WAYS[name]), THREE)
    if name in CLIPPED:
        start()
        plain = by_fit(OneDevice(), sgd)
        assert reference["history"] != plain["history"], "the threshold clips nothing"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", usually([*WAYS, *RULES], USUAL[by_loop]))
def test_in_a_loop(name: str) -> None:
    way = by_apply if name in ("decayed by Adam", "scaled until it overflows") else by_loop
    agree(lambda place: way(place, {**WAYS, **RULES}[name]), THREE)


@pytest.mark.parametrize("train", [by_fit, by_loop])
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(policy: str, train: Callable[..., Any]) -> None:
    """Compute in half precision, weights in full; under `fit` float16 scales its loss by itself."""
    is_scaled = policy == "mixed_float16"

    def make() -> keras.optimizers.Optimizer:
        by_hand = is_scaled and train is by_loop
        return scaled(sgd(), initial_scale=1024.0) if by_hand else sgd()

    def experiment(place: Place) -> dict[str, object]:
        keras.config.set_dtype_policy(policy)
        results = train(place, make)
        if train is by_fit:
            assert any("dynamic_scale" in name for name in results["optimizer"]) == is_scaled
            # One sample between two classes changes it by 0.02.
            results["history"].pop("accuracy")
        return results

    agree(experiment, THREE, within=tolerance(policy))


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
    norm, positive = keras.constraints.MaxNorm(0.7), keras.constraints.NonNeg()
    unit = keras.constraints.UnitNorm()

    def build() -> keras.Model:
        hidden = {"kernel_constraint": norm, "bias_constraint": positive, "activation": "tanh"}
        stack = [layers.Dense(12, **hidden), layers.Dense(1, kernel_constraint=unit)]
        return keras.Sequential([keras.Input((8,)), *stack])

    agree_in_fit(build, regression(75), {"loss": "mse"})


def test_variables_begin_the_same() -> None:
    def experiment(place: Place) -> dict[str, object]:
        with place.scope():
            model = mlp()
        return state_of(model)

    agree(experiment, TWO, THREE, within=0.0)


@pytest.mark.covering(1)
@pytest.mark.long
@pytest.mark.parametrize("where", ["in scope", "outside", "built early", "late"])
@pytest.mark.parametrize("kind", [sgd, adam])
def test_where_it_is_made(where: str, kind: Callable[..., Any]) -> None:
    def experiment(place: Place) -> dict[str, object]:
        outside = kind()
        made: list[keras.optimizers.Optimizer] = []
        with place.scope():
            model = mlp()
            if where in ("in scope", "built early"):
                made.append(kind())
            if where == "built early":
                made[0].build(model.trainable_variables)
        if where == "outside":
            made.append(outside)

        def step(x: Any, y: Any) -> Any:
            if not made:
                made.append(kind())
            with tf.GradientTape() as tape:
                loss = CROSS_ENTROPY(y, model(x, training=True))
            gradients = tape.gradient(loss, model.trainable_variables)
            made[0].apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        parts = Parts(model=model, optimizers=(), step=step)
        log = run_loop(place, parts, batches(*tabular(80)))
        done = Parts(model=model, optimizers=tuple(made), step=step)
        return {**done.state(), **log.results()}

    agree(experiment, TWO, FIVE)


@pytest.mark.long
@pytest.mark.parametrize("clip", ["clipnorm", "global_clipnorm"])
def test_clipping_of_a_tied_embedding(clip: str) -> None:
    """Slices and a dense gradient of one variable."""
    case = {"build": BY_NAME["transformer"].build, "data": sentences(75)}
    agree(lambda place: by_loop(place, lambda: sgd(**{clip: 0.05}), **case), THREE)


def clipped_by_hand(gradients: list[Any]) -> list[Any]:
    """Clip a replica's part of the gradient, by a threshold that none reaches."""
    return tf.clip_by_global_norm(gradients, 1e3)[0]


def summed_by_hand(gradients: list[Any]) -> list[Any]:
    """All-reduce in the replica context, clip the whole, and do not add up again."""
    context = tf.distribute.get_replica_context()
    gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
    gradients, _ = tf.clip_by_global_norm(gradients, 0.1)
    return [gradient / context.num_replicas_in_sync for gradient in gradients]


@pytest.mark.long
@pytest.mark.parametrize("change", [clipped_by_hand, summed_by_hand])
def test_gradients_by_hand(change: Callable[..., Any]) -> None:
    agree(lambda place: by_loop(place, sgd, change=change), THREE)


@pytest.mark.long
def test_learning_rate_set_between_epochs() -> None:
    """``optimizer.learning_rate = ...`` in mid-training, without retracing."""

    def experiment(place: Place) -> dict[str, object]:
        with place.scope():
            model, optimizer = mlp(), sgd()
        step = train_step(model, optimizer, CROSS_ENTROPY)
        parts = Parts(model=model, optimizers=(optimizer,), step=step)
        losses = []
        for rate in (0.05, 0.01):
            optimizer.learning_rate = rate
            losses.append(run_loop(place, parts, batches(*tabular(75)), epochs=1).losses)
        return {**parts.state(), "losses": np.ravel(losses)}

    agree(experiment, THREE)


@pytest.mark.long
def test_an_update_without_an_optimizer() -> None:
    """``variable.assign_sub`` of a gradient, in the replica; gradients are added up."""

    def make() -> Parts:
        model = mlp()

        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = CROSS_ENTROPY(y, model(x, training=True))
            gradients = tape.gradient(loss, model.trainable_variables)
            context = tf.distribute.get_replica_context()
            gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
            for weight, gradient in zip(model.trainable_variables, gradients, strict=True):
                weight.assign_sub(0.05 * gradient)
            return loss

        return Parts(model=model, optimizers=(), step=step)

    agree_in_loop(make, batches(*tabular(75)), THREE)
