"""BatchNorm over the whole batch, as on one device, or over the rows of each part alone."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import evener
from evener import Plan
from evener.errors import PlanError

from .candidates import Place
from .harness import (
    CHANGES,
    FIVE,
    THREE,
    TWO,
    ChangeShares,
    Layout,
    agree,
    agree_in_fit,
    compile_model,
    fit_model,
)
from .models import numbers, pictures, regression, sequential
from .tolerances import tolerance

MOMENTUM = 0.75


def normalised(*, synchronized: bool) -> keras.Model:
    return sequential(
        (8,),
        layers.BatchNormalization(momentum=0.8, synchronized=synchronized),
        layers.Dense(6, activation="tanh"),
        layers.BatchNormalization(momentum=0.8, synchronized=synchronized, scale=False),
        layers.Dense(1),
    )


@pytest.mark.parametrize("synchronized", [False, True])
def test_it_equals_one_device(synchronized: bool) -> None:
    def experiment(place: Place) -> dict[str, object]:
        changes = ChangeShares(place, Layout(num_devices=5, by_batch=CHANGES[5]))
        build = functools.partial(normalised, synchronized=synchronized)
        return fit_model(place, build, regression(75), numbers, callbacks=[changes])

    agree(experiment, FIVE)


@pytest.mark.parametrize("synchronized", [False, True])
def test_shares_of_one_sample(synchronized: bool) -> None:
    """Their own variance is zero; and there are fewer samples than devices."""
    build = functools.partial(normalised, synchronized=synchronized)
    agree_in_fit(build, regression(17), numbers, Layout(num_devices=5), batch_size=5, epochs=1)


def test_with_a_mask() -> None:
    """Padding does not count; shares have different numbers of moments that do."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(43, 7, 3)).astype("float32")
    x[np.arange(7)[None, :] >= rng.integers(1, 8, size=43)[:, None]] = 0.0
    y = np.tanh(np.cumsum(x[:, :, :1], axis=1)).astype("float32")

    def build() -> keras.Model:
        norm = layers.BatchNormalization(momentum=0.8, synchronized=True)
        stack = [keras.Input((7, 3)), layers.Masking(0.0), layers.Dense(4), norm]
        return keras.Sequential([*stack, layers.Dense(1)])

    agree_in_fit(build, (x, y), numbers, THREE)


def first_statistics(place: Place, batch: int, pictured: bool) -> dict[str, object]:
    x = pictures(5 * batch)[0] if pictured else regression(5 * batch)[0]
    y = regression(5 * batch)[1]

    def build() -> keras.Model:
        inputs = [keras.Input(x.shape[1:]), layers.BatchNormalization(momentum=MOMENTUM)]
        return keras.Sequential([*inputs, layers.Flatten(), layers.Dense(1)])

    model = compile_model(place, build, lambda: {"loss": "mse"})
    changes = ChangeShares(place, Layout(num_devices=5, by_batch=CHANGES[5]))
    model.fit(
        x,
        y,
        batch_size=batch,
        shuffle=False,
        verbose=0,
        callbacks=[changes] if batch == 16 and pictured else [],
    )
    return {"statistics": model.layers[0].get_weights()[2:]}


@pytest.mark.parametrize("pictured", [False, True], ids=["rows", "pictures"])
@pytest.mark.parametrize("batch", [16, 3])
def test_first_layer_learns_the_statistics_of_the_batch(batch: int, pictured: bool) -> None:
    """Its inputs are the data: one device's statistics, any shares."""
    layouts = (FIVE,) if pictured else (TWO, FIVE, Layout(num_devices=2, shares=(0, 1)))
    agree(lambda place: first_statistics(place, batch, pictured), *layouts)


@pytest.mark.parametrize("batch", [11, 64])
@pytest.mark.parametrize("axis", [-1, 1])
def test_statistics_of_a_large_mean_are_those_of_float64(axis: int, batch: int) -> None:
    """Sums of squares would lose all digits; so would means of few samples, rounded before."""
    rng = np.random.default_rng(6)
    x = (1e4 + rng.normal(size=(batch, 5, 3)) + np.arange(batch)[:, None, None] / batch).astype("f")
    y = rng.normal(size=(batch, 1)).astype("f")
    others = (0, 1) if axis == -1 else (0, 2)
    mean, variance = x.mean(others, dtype="float64"), x.var(others, dtype="float64")

    def experiment(place: Place) -> dict[str, object]:
        def build() -> keras.Model:
            norm = layers.BatchNormalization(axis=axis, momentum=0.0)
            return keras.Sequential([keras.Input((5, 3)), norm, layers.Flatten(), layers.Dense(1)])

        model = compile_model(place, build, lambda: {"loss": "mse"})
        model.fit(x, y, batch_size=batch, verbose=0)
        found = model.layers[0].get_weights()[2:]
        np.testing.assert_allclose(found[0], mean, rtol=1e-6)
        np.testing.assert_allclose(found[1], variance, rtol=1e-4)
        return {"statistics": found}

    within = tolerance("statistics_of_large_means")
    agree(experiment, TWO, THREE, Layout(num_devices=3, shares=(0.1, 0, 0.9)), within=within)


def test_frozen_and_inferring_batchnorm_equal_one_device() -> None:
    def build() -> keras.Model:
        model = sequential(
            (8,), layers.Dense(5), layers.BatchNormalization(name="norm"), layers.Dense(1)
        )
        model.get_layer("norm").trainable = False
        return model

    def experiment(place: Place) -> dict[str, object]:
        x, y = regression(43)
        model = compile_model(place, build, numbers)
        fit = model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
        test = model.evaluate(x, y, verbose=0, return_dict=True)
        predicted = model.predict(x, verbose=0)
        return {"history": fit.history, "evaluate": test, "predict": predicted}

    agree(experiment, THREE)


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bare": {"center": False, "scale": False},
    "first axis": {"axis": 1, "momentum": 0.5, "epsilon": 0.1},
}


class ByChunks(keras.layers.BatchNormalization):
    """Normalises chunks of the batch, one after the other, by TensorFlow's own gradients."""

    def __init__(self, sizes: Sequence[int], **options: Any) -> None:
        super().__init__(**options)
        self.sizes = [size for size in sizes if size]

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        if not training:
            return super().call(inputs, training=training, mask=mask)
        axes = [k for k in range(len(inputs.shape)) if k != self.axis % len(inputs.shape)]
        shape = [1 if k in axes else -1 for k in range(len(inputs.shape))]
        results, mean, variance = [], 0.0, 0.0
        for chunk in tf.split(inputs, self.sizes):
            weight = chunk.shape[0] / sum(self.sizes)
            means, variances = tf.nn.moments(chunk, axes)
            mean, variance = mean + weight * means, variance + weight * variances
            normal = (chunk - tf.reshape(means, shape)) * tf.math.rsqrt(
                tf.reshape(variances, shape) + self.epsilon
            )
            if self.scale:
                normal *= tf.reshape(self.gamma.value, shape)
            if self.center:
                normal += tf.reshape(self.beta.value, shape)
            results.append(normal)
        for variable, now in ((self.moving_mean, mean), (self.moving_variance, variance)):
            variable.assign(variable * self.momentum + now * (1 - self.momentum))
        return tf.concat(results, 0)


def model_with(norm: type[Any], **options: Any) -> keras.Model:
    keras.utils.set_random_seed(3)
    return sequential(
        (6, 6, 3),
        keras.layers.Conv2D(4, 3, activation="tanh"),
        norm(**options),
        keras.layers.Conv2D(3, 2, activation="tanh"),
        norm(**options),
        keras.layers.Flatten(),
        keras.layers.Dense(1),
    )


def trained(model: keras.Model, batch: int, *, num_steps: int = 3) -> list[np.ndarray]:
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    random = np.random.default_rng(1)
    x = random.normal(size=(num_steps * batch, 6, 6, 3)).astype("float32")
    y = random.normal(size=(num_steps * batch, 1)).astype("float32")
    losses = model.fit(x, y, batch_size=batch, shuffle=False, verbose=0).history["loss"]
    return [*model.get_weights(), np.array(losses)]


@pytest.mark.covering(1)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("sizes", [(5, 3), (3, 0, 4)], ids=str)
def test_equals_chunks(sizes: tuple[int, ...], options: str) -> None:
    expected = trained(model_with(ByChunks, sizes=sizes, **OPTIONS[options]), sum(sizes))
    devices = [f"cpu:{k}" for k in range(len(sizes))]
    strategy = evener.Strategy(devices=devices, shares=sizes, batch_norm="per_device")
    with strategy.scope():
        model = model_with(keras.layers.BatchNormalization, **OPTIONS[options])
    for wanted, got in zip(expected, trained(model, sum(sizes)), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_micro_batches_have_their_own() -> None:
    expected = trained(model_with(ByChunks, sizes=(3, 2, 2, 1)), 8)
    plan = Plan.data_parallel(["cpu:0", "cpu:1"], shares=[5, 3], batch_norm="per_device")
    replicas = [
        dataclasses.replace(replica, num_micro_batches=2, in_flight=2) for replica in plan.replicas
    ]
    strategy = evener.Strategy(dataclasses.replace(plan, replicas=tuple(replicas)))
    with strategy.scope():
        model = model_with(keras.layers.BatchNormalization)
    for wanted, got in zip(expected, trained(model, 8), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", ["synchronized", "frozen", "evaluated", "masked", "default"])
def test_stays_that_of_the_whole_batch(case: str) -> None:
    """Layers that are synchronized, take no statistics, or have a mask compute over the batch."""
    x = np.random.default_rng(2).normal(size=(8, 4, 3)).astype("float32")
    x[3, 2:] = 0
    way: dict[str, Any] = {} if case == "default" else {"batch_norm": "per_device"}
    results = []
    for distribute in (
        tf.function,
        evener.distribute(devices=["cpu:0", "cpu:1"], shares=[5, 3], **way),
    ):
        layer = keras.layers.BatchNormalization(synchronized=case == "synchronized")
        masking = keras.layers.Masking() if case == "masked" else keras.layers.Identity()
        model = keras.Sequential([masking, layer])
        model.build((None, 4, 3))
        layer.trainable = case != "frozen"

        def step(x: Any, model: Any = model) -> Any:
            return model(x, training=case != "evaluated")

        results.append([distribute(step)(tf.constant(x)), *layer.get_weights()])
    for wanted, got in zip(*results, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_a_gradient_from_elsewhere_is_that_of_the_rows() -> None:
    """Gradients of the layer's output may be whole: each part takes the mean of its rows."""
    x = tf.constant(np.random.default_rng(2).normal(size=(8, 3)), tf.float32)
    weights = tf.constant(np.random.default_rng(3).normal(size=(8, 3)), tf.float32)
    results = []
    for layer in (ByChunks((5, 3)), keras.layers.BatchNormalization()):
        layer.build((None, 3))

        def step(x: Any, layer: Any = layer) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(layer(x, training=True) * weights)
            return tape.gradient(loss, x)

        is_chunked = isinstance(layer, ByChunks)
        per_device = evener.distribute(
            step, devices=["cpu:0", "cpu:1"], shares=[5, 3], batch_norm="per_device"
        )
        results.append((step if is_chunked else per_device)(x))
    np.testing.assert_allclose(results[1], results[0], rtol=1e-4, atol=1e-5)


def test_a_second_derivative_is_refused() -> None:
    layer = keras.layers.BatchNormalization()
    layer.build((None, 3))

    @evener.distribute(devices=["cpu:0", "cpu:1"], batch_norm="per_device")
    def step(x: Any) -> Any:
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                loss = tf.reduce_sum(tf.square(layer(x, training=True)))
            penalty = tf.reduce_sum(tf.square(inner.gradient(loss, x)))
        return outer.gradient(penalty, x)

    with pytest.raises(Exception, match="no second derivative"):
        step(tf.ones([4, 3]))


def test_nothing_waits_in_mid_step() -> None:
    """Fewer tasks: the parts go through the layers without barrier."""
    counts = {}
    for way in ("synchronized", "per_device"):
        model = model_with(keras.layers.BatchNormalization)
        step = evener.distribute(
            lambda x, model=model: model(x, training=True),
            devices=["cpu:0", "cpu:1"],
            batch_norm=way,
        )
        step(tf.ones([4, 6, 6, 3]))
        tasks = step.partitioned_steps[0].partition.tasks
        counts[way] = sum(
            task.is_parts and any(node.op in ("Conv2D", "Mean") for node in task.nodes)
            for task in tasks
        )
    assert counts == {"synchronized": 4, "per_device": 1}


def test_elsewhere_nothing_changes() -> None:
    """The layer is patched once it was asked for, and only in steps that asked for it."""
    evener.distribute(lambda x: x, devices=["cpu:0"], batch_norm="per_device")(tf.ones([2, 3]))
    layer = keras.layers.BatchNormalization()
    function = tf.function(lambda x: layer(x, training=True))
    function(tf.ones([2, 3]))
    graph = function.get_concrete_function(tf.ones([2, 3])).graph
    assert not any("evener" in operation.name for operation in graph.get_operations())


def test_a_wrong_name_is_refused() -> None:
    with pytest.raises(PlanError, match="Did you mean 'per_device'"):
        evener.Strategy(devices=["cpu:0", "cpu:1"], batch_norm="per_devices")  # pyright: ignore
    with pytest.raises(PlanError, match="together with batch_norm"):
        evener.Strategy(Plan.data_parallel(["cpu:0"]), batch_norm="per_device")
