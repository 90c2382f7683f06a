"""The law for custom loops under plans with stages and micro-batches."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from evener.plan import Plan

from .candidates import Place
from .harness import agree, eager_functions, sgd, unequal_weights
from .loops import (
    CROSS_ENTROPY,
    Parts,
    agree_in_loop,
    batches,
    calls_of,
    classifier,
    loop_over_case,
    loop_results,
    nested_parts,
    saying,
    train_step,
)
from .models import BY_NAME, OPTIMIZERS, mlp, regression, sentences, sequential, tabular
from .own_steps import ComputeLoss, OwnTrackers, stack
from .staged import Cut, layer_names, place_for, plan_of
from .test_staged_features import HYBRID, TWO_STAGES, deep
from .tolerances import tolerance

GPIPE = Cut(devices=(0, 1, 2), micro_batches=3, in_flight=3, schedule="gpipe")


def of_case(name: str, *cuts: Cut, **plan: Any) -> Plan:
    return plan_of(layer_names(BY_NAME[name].build), *cuts, **plan)


@pytest.mark.long
def test_hybrid_with_skips_and_clipping() -> None:
    """One device beside two in line; two outputs, of which one is of an early stage."""
    x, y = regression(75)
    loss_of = keras.losses.MeanSquaredError()

    def make() -> Parts:
        model, optimizer = deep(), OPTIMIZERS["adamw"]()

        def both(y: Any, outputs: Any) -> Any:
            late, early = outputs
            return loss_of(y, late) + 0.3 * loss_of(y, early)

        return Parts(model=model, optimizers=(optimizer,), step=train_step(model, optimizer, both))

    plan = plan_of(layer_names(deep), *HYBRID)
    agree_in_loop(make, batches(x, y), make_place=place_for(plan))


@pytest.mark.long
def test_hybrid_with_a_tied_embedding() -> None:
    case = BY_NAME["transformer"]
    agree(
        lambda place: loop_over_case(place, case, "adam"),
        make_place=place_for(of_case("transformer", *HYBRID)),
    )


def masked() -> keras.Model:
    """Return a model whose loss is divided by the words that count."""
    x = keras.Input((8,), dtype="int32")
    hidden = layers.Embedding(20, 8, mask_zero=True, name="embedding")(x)
    hidden = layers.Dense(8, activation="tanh", name="hidden")(hidden)
    return keras.Model(x, layers.Dense(20, name="words")(hidden))


@pytest.mark.long
def test_a_masked_loss_with_weights() -> None:
    """The loss of all micro-batches is known before the first backward pass begins."""
    x, y = sentences(43)
    weights = unequal_weights(43)[:, None]

    def make() -> Parts:
        model, optimizer = masked(), sgd()
        tracked = (keras.metrics.Mean(name="loss"),)
        step = train_step(model, optimizer, CROSS_ENTROPY)

        def weighted(x: Any, y: Any, weight: Any) -> Any:
            loss = step(x, y, weight)
            tracked[0].update_state(loss)
            return loss

        return Parts(model=model, optimizers=(optimizer,), step=weighted, metrics=tracked)

    plan = plan_of(layer_names(masked), TWO_STAGES)

    with saying():
        agree_in_loop(make, batches(x, y, weights), make_place=place_for(plan))


@pytest.mark.long
@pytest.mark.parametrize("synchronized", [False, True])
def test_statistics_of_the_batch(synchronized: bool) -> None:
    """They are those of the whole batch, although it is split, and nothing is warned of."""
    dataset = batches(*tabular(75))

    def build() -> keras.Model:
        return sequential(
            (8,),
            layers.Dense(8, name="first"),
            layers.BatchNormalization(synchronized=synchronized, name="norm"),
            layers.Dense(8, activation="tanh", name="second"),
            layers.Dense(4, name="last"),
        )

    plan = plan_of(layer_names(build), TWO_STAGES)
    with saying():
        agree_in_loop(classifier(build), dataset, make_place=place_for(plan))


@pytest.mark.long
@pytest.mark.parametrize("name", ["mlp", "transformer", "lstm"])
def test_layers_computed_again(name: str) -> None:
    case = BY_NAME[name]
    plan = of_case(name, TWO_STAGES, recompute=["*"])
    agree(
        lambda place: loop_over_case(place, case, "sgd"),
        within=tolerance(name, "sgd", "stages"),
        make_place=place_for(plan),
        name=f"{name} by loop with sgd",
    )


@pytest.mark.long
def test_dropout_computed_again_draws_the_same_masks() -> None:
    """The gradient is that of the masks of the forward pass."""

    def build() -> keras.Model:
        return sequential(
            (8,),
            layers.Dense(32, activation="tanh", name="first"),
            layers.Dropout(0.5, seed=3, name="dropout"),
            layers.Dense(4, name="last"),
        )

    plan = plan_of(layer_names(build), TWO_STAGES, recompute=["dropout", "first"])
    dataset = batches(*tabular(75))
    agree_in_loop(classifier(build), dataset, epochs=1, make_place=place_for(plan))


@pytest.mark.long
def test_owners_on_the_host() -> None:
    dataset = batches(*tabular(75))
    plan = of_case("mlp", TWO_STAGES, owners={"*": "host"})
    agree_in_loop(classifier(), dataset, make_place=place_for(plan))


@pytest.mark.parametrize("kind", [ComputeLoss, OwnTrackers])
def test_steps_of_ones_own_under_fit(kind: type[keras.Model]) -> None:
    x, y = regression(75)

    def build() -> keras.Model:
        return kind(*stack())

    def experiment(place: Place) -> dict[str, object]:
        with place.scope():
            model = build()
            model.compile(sgd(), "mse", metrics=["mae"])
        history = model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
        return {
            "weights": dict(enumerate(model.get_weights())),
            "history": history.history,
            "predict": model.predict(x[:33], batch_size=20, verbose=0),
        }

    plan = plan_of(layer_names(build), TWO_STAGES)
    agree(experiment, make_place=place_for(plan))


def test_eager_mode() -> None:
    """On one device, operation by operation, which is said."""
    dataset = batches(*tabular(43))

    def experiment(place: Place) -> dict[str, object]:
        with eager_functions():
            return loop_results(place, classifier(), dataset, epochs=1)

    with saying("ENG-086"):
        agree(experiment, make_place=place_for(of_case("mlp", TWO_STAGES)))


def test_a_function_inside_of_the_step() -> None:
    dataset = batches(*tabular(75))

    agree_in_loop(nested_parts, dataset, make_place=place_for(of_case("mlp", TWO_STAGES)))


class Tied(keras.Model):
    """Layers inside layers, one of them called in two stages, made in the first call."""

    def __init__(self) -> None:
        super().__init__(name="tied")
        self.encoder = keras.Sequential(
            [layers.Dense(8, "tanh", name="inner"), layers.Dense(8, "tanh", name="outer")],
            name="encoder",
        )
        self.shared = layers.Dense(8, "tanh", name="shared")
        self.head = layers.Dense(4, name="head")

    def call(self, x: Any, training: bool = False) -> Any:
        del training
        hidden = self.shared(self.encoder(x))
        return self.head(self.shared(hidden) + hidden)


@pytest.mark.long
def test_a_subclassed_model_by_paths() -> None:
    """It is built by its first call, inside of the run."""
    dataset = batches(*tabular(75))

    def make() -> Parts:
        model, optimizer = Tied(), sgd()

        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = CROSS_ENTROPY(y, model(x, training=True))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return Parts(model=model, optimizers=(optimizer,), step=step)

    plan = Plan.pipeline(
        {"cpu:0": ["encoder/inner", "shared"], "cpu:1": ["encoder/outer", "head"]},
        num_micro_batches=3,
    )
    agree_in_loop(make, dataset, make_place=place_for(plan))


@pytest.mark.long
def test_two_models_and_two_steps_in_one_function() -> None:
    """Two optimizers one after the other: the second pass sees what the first has changed."""
    x = regression(43)[0]
    noise = np.random.default_rng(9).normal(size=(43, 3)).astype("float32")
    loss_of = keras.losses.BinaryCrossentropy(from_logits=True)

    def make() -> Parts:
        maker = sequential((3,), layers.Dense(8, "tanh", name="m0"), layers.Dense(8, name="m1"))
        judge = sequential((8,), layers.Dense(8, "tanh", name="j0"), layers.Dense(1, name="j1"))
        both = keras.Sequential([maker, judge])
        optimizers = sgd(), OPTIMIZERS["adam"]()

        def update(tape: Any, loss: Any, model: keras.Model, optimizer: Any) -> None:
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        def step(real: Any, noise: Any) -> Any:
            with tf.GradientTape() as tape:
                true, false = judge(real, training=True), judge(maker(noise), training=True)
                first = loss_of(tf.ones_like(true), true) + loss_of(tf.zeros_like(false), false)
            update(tape, first, judge, optimizers[0])
            with tf.GradientTape() as tape:
                false = judge(maker(noise, training=True))
                second = loss_of(tf.ones_like(false), false)
            update(tape, second, maker, optimizers[1])
            return {"first": first, "second": second}

        return Parts(model=both, optimizers=optimizers, step=step)

    plan = Plan.pipeline({"cpu:0": ["m0", "j0"], "cpu:1": ["m1", "j1"]}, num_micro_batches=3)

    agree_in_loop(make, batches(x, noise), epochs=1, make_place=place_for(plan))


def test_evaluation_and_gathered_predictions() -> None:
    x, y = tabular(43)

    def experiment(place: Place) -> dict[str, object]:
        strategy = calls_of(place)
        with place.scope():
            model, accuracy = mlp(), keras.metrics.SparseCategoricalAccuracy()

        def look(x: Any, y: Any) -> Any:
            outputs = model(x, training=False)
            accuracy.update_state(y, outputs)
            return outputs

        @tf.function
        def predict(batch: Any) -> Any:
            return strategy.gather(strategy.run(look, args=batch), axis=0)

        distributed = strategy.experimental_distribute_dataset(batches(x, y))
        outputs = [predict(batch).numpy() for batch in distributed]
        return {"outputs": np.concatenate(outputs), "accuracy": float(accuracy.result())}

    agree(experiment, make_place=place_for(of_case("mlp", GPIPE)))
