"""The law for what an optimizer can do in a custom loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from .candidates import Place
from .harness import FIVE, THREE, TWO, agree, sgd
from .loops import CROSS_ENTROPY, Parts, batches, loop_results, run_loop, train_step
from .models import BY_NAME, mlp, sentences, tabular
from .sparing import usually
from .test_steps import adam
from .tolerances import tolerance

MakeOptimizer = Callable[[], keras.optimizers.Optimizer]


def train(
    place: Place,
    make_optimizer: MakeOptimizer,
    *,
    build: Callable[[], keras.Model] = mlp,
    data: Any = None,
    through_apply: bool = False,
    epochs: int = 2,
) -> dict[str, object]:
    """Train by a loop; the last batches are partial."""

    def make() -> Parts:
        model, optimizer = build(), make_optimizer()
        step = train_step(model, optimizer, CROSS_ENTROPY, through_apply=through_apply)
        return Parts(model=model, optimizers=(optimizer,), step=step)

    return loop_results(place, make, batches(*(data or tabular(75))), epochs=epochs)


@pytest.mark.covering(1)
@pytest.mark.long
@pytest.mark.parametrize(
    "where", usually(["in scope", "outside", "built early", "late"], ["outside", "late"])
)
@pytest.mark.parametrize("kind", usually([sgd, adam], [adam]))
def test_where_it_is_made(where: str, kind: Callable[..., Any]) -> None:
    """In the scope, outside of it, built before, or made at the first step."""

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
@pytest.mark.parametrize("kind", usually([sgd, adam], [adam]))
def test_apply(kind: Callable[..., Any]) -> None:
    """``apply`` and not ``apply_gradients``."""
    agree(lambda place: train(place, kind, through_apply=True), THREE)


@pytest.mark.sampled(20)
@pytest.mark.parametrize("clip", ["clipnorm", "global_clipnorm", "clipvalue"])
def test_clipping(clip: str) -> None:
    """Clipping sees the gradient of the whole batch, not that of a share."""
    threshold = {"clipnorm": 0.05, "global_clipnorm": 0.1, "clipvalue": 0.01}[clip]
    agree(lambda place: train(place, lambda: sgd(**{clip: threshold})), THREE)


@pytest.mark.long
@pytest.mark.parametrize("clip", usually(["clipnorm", "global_clipnorm"], ["global_clipnorm"]))
def test_clipping_of_a_tied_embedding(clip: str) -> None:
    """Slices and a dense gradient of one variable."""
    build = BY_NAME["transformer"].build
    data = sentences(75)
    agree(
        lambda place: train(place, lambda: sgd(**{clip: 0.05}), build=build, data=data, epochs=1),
        THREE,
    )


@pytest.mark.long
def test_clipping_by_hand() -> None:
    """``tf.clip_by_global_norm`` of a replica's own gradients cannot be that of the batch's.

    What is clipped in a replica is a part of the batch's gradient. A threshold that no
    gradient reaches changes nothing.
    """

    def make() -> Parts:
        model, optimizer = mlp(), sgd()

        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = CROSS_ENTROPY(y, model(x, training=True))
            gradients = tape.gradient(loss, model.trainable_variables)
            gradients, _ = tf.clip_by_global_norm(gradients, 1e3)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return Parts(model=model, optimizers=(optimizer,), step=step)

    agree(lambda place: loop_results(place, make, batches(*tabular(75))), THREE)


@pytest.mark.long
def test_gradients_summed_by_hand() -> None:
    """All-reduce in the replica context, clip the whole, and update without adding up again."""

    def make() -> Parts:
        model, optimizer = mlp(), sgd()

        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = CROSS_ENTROPY(y, model(x, training=True))
            gradients = tape.gradient(loss, model.trainable_variables)
            context = tf.distribute.get_replica_context()
            gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
            gradients, _ = tf.clip_by_global_norm(gradients, 0.1)
            count = context.num_replicas_in_sync
            gradients = [gradient / count for gradient in gradients]
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return Parts(model=model, optimizers=(optimizer,), step=step)

    agree(lambda place: loop_results(place, make, batches(*tabular(75))), THREE)


@pytest.mark.long
@pytest.mark.parametrize("frequency", [4, None])
def test_moving_average_of_weights(frequency: int | None) -> None:
    """use_ema, overwriting every fourth step."""
    settings = {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": frequency}
    agree(lambda place: train(place, lambda: sgd(**settings)), THREE)


@pytest.mark.parametrize("kind", usually([sgd, adam], [adam]))
def test_gradient_accumulation(kind: Callable[..., Any]) -> None:
    """Three steps make one update; ten steps leave one over."""
    agree(lambda place: train(place, lambda: kind(gradient_accumulation_steps=3)), THREE)


@pytest.mark.covering(1)
@pytest.mark.sampled(20)
@pytest.mark.parametrize("through_apply", [False, True])
@pytest.mark.parametrize(("scale", "growth"), [(1024.0, 3), (1e38, 2)])
def test_loss_scale(scale: float, growth: int, through_apply: bool) -> None:
    """The scale grows every few steps; one that overflows skips steps and halves."""

    def make() -> keras.optimizers.Optimizer:
        return keras.optimizers.LossScaleOptimizer(
            sgd(), initial_scale=scale, dynamic_growth_steps=growth
        )

    agree(lambda place: train(place, make, through_apply=through_apply), THREE)


@pytest.mark.long
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(policy: str) -> None:
    """Compute in half precision, weights in full; float16 with a scaled loss."""

    def make() -> keras.optimizers.Optimizer:
        if policy == "mixed_float16":
            return keras.optimizers.LossScaleOptimizer(sgd(), initial_scale=1024.0)
        return sgd()

    def experiment(place: Place) -> dict[str, object]:
        keras.config.set_dtype_policy(policy)
        return train(place, make)

    agree(experiment, THREE, within=tolerance(policy))


@pytest.mark.long
def test_learning_rate_schedule() -> None:
    """A schedule counts steps, not replicas."""

    def make() -> keras.optimizers.Optimizer:
        return sgd(learning_rate=keras.optimizers.schedules.CosineDecay(0.1, 8))

    agree(lambda place: train(place, make), THREE)


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
@pytest.mark.parametrize("kind", usually([sgd, adam], [adam]))
def test_weight_decay(kind: Callable[..., Any]) -> None:
    """Weights decay once per step, biases not at all."""

    def make() -> keras.optimizers.Optimizer:
        optimizer = kind(weight_decay=0.02)
        optimizer.exclude_from_weight_decay(var_names=["bias"])
        return optimizer

    agree(lambda place: train(place, make), THREE)


@pytest.mark.long
@pytest.mark.parametrize(
    "name", usually(["rmsprop", "adafactor", "lamb", "muon", "ftrl", "nadam"], ["muon"])
)
def test_other_optimizers(name: str) -> None:
    """Update rules that look at a whole variable included."""
    kinds: dict[str, MakeOptimizer] = {
        "rmsprop": lambda: keras.optimizers.RMSprop(0.005, epsilon=1e-3),
        "nadam": lambda: keras.optimizers.Nadam(0.01, epsilon=1e-3),
        "adafactor": lambda: keras.optimizers.Adafactor(0.01),
        "lamb": lambda: keras.optimizers.Lamb(0.01, epsilon=1e-3),
        "muon": lambda: keras.optimizers.Muon(0.005, exclude_embeddings=False),
        "ftrl": lambda: keras.optimizers.Ftrl(0.05),
    }
    agree(lambda place: train(place, kinds[name]), THREE)


@pytest.mark.long
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

    agree(lambda place: loop_results(place, make, batches(*tabular(75))), THREE)
