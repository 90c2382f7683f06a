"""Keras in replicas: losses, metrics, optimizers, layers with state, in custom loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from .strategies import Wrap, local, make, replica_float, same, values

X = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
Y = X.sum(axis=1, keepdims=True).astype("float32")


def batches(size: int = 8, count: int = 8) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X[:count], Y[:count])).batch(size)


def linear() -> keras.Model:
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")])


def expected_weights(steps: int, rate: float = 0.1) -> np.ndarray:
    """Plain gradient descent on the mean squared error of the whole batch."""
    model = linear()
    optimizer = keras.optimizers.SGD(rate)
    for _ in range(steps):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(X) - Y * 2.0))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    return model.layers[0].kernel.numpy()


LOSSES = {
    "average": lambda y, p, n: tf.nn.compute_average_loss(
        keras.losses.MeanSquaredError(reduction=None)(y, p), global_batch_size=8
    ),
    "average without a size": lambda y, p, n: tf.nn.compute_average_loss(
        keras.losses.MeanSquaredError(reduction=None)(y, p)
    ),
    "sum over the size": lambda y, p, n: tf.reduce_sum(tf.square(y - p)) / 8.0,
    "mean over the replicas": lambda y, p, n: tf.reduce_mean(tf.square(y - p)) / n,
    "keras": lambda y, p, n: keras.losses.MeanSquaredError()(y, p),
}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", LOSSES)
def test_a_custom_loop(strategy: Any, name: str) -> None:
    with strategy.scope():
        model = linear()
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)

    def fn(batch: Any) -> tf.Tensor:
        x, y = batch
        with tf.GradientTape() as tape:
            loss = LOSSES[name](y * 2.0, model(x, training=True), strategy.num_replicas_in_sync)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    step = tf.function(lambda batch: strategy.reduce("SUM", strategy.run(fn, (batch,)), axis=None))
    losses = []
    for batch in strategy.experimental_distribute_dataset(batches().repeat(3)):
        losses.append(step(batch).numpy())
    np.testing.assert_allclose(model.layers[0].kernel, expected_weights(3), rtol=1e-5)
    assert int(optimizer.iterations.numpy()) == 3
    np.testing.assert_allclose(losses[0], np.mean(np.square(X.sum(1))), rtol=1e-5)


def test_gradients_and_updates_in_a_merge(strategy: Any, call: Wrap) -> None:
    """An optimizer may be called in a merge, with sums of gradients."""
    with strategy.scope():
        v = tf.Variable(1.0)
        optimizer = keras.optimizers.SGD(0.5)
        optimizer.build([v])

    def merged(strategy: Any, gradient: Any) -> None:
        total = strategy.extended.reduce_to("SUM", gradient, v)
        strategy.extended.update(v, lambda v, g: v.assign_sub(0.5 * g), (total,))

    def fn() -> None:
        with tf.GradientTape() as tape:
            loss = v * (replica_float() + 1.0)
        tf.distribute.get_replica_context().merge_call(merged, (tape.gradient(loss, v),))

    call(lambda: strategy.run(fn))()
    assert v.numpy() == 0.5


def test_apply_of_gradients_that_are_summed_by_hand(strategy: Any, call: Wrap) -> None:
    """`all_reduce` first, then one update of the same sum in every replica."""
    with strategy.scope():
        v = tf.Variable(1.0)

    def fn() -> None:
        with tf.GradientTape() as tape:
            loss = v * (replica_float() + 1.0)
        total = tf.distribute.get_replica_context().all_reduce("SUM", tape.gradient(loss, v))
        v.assign_sub(0.5 * total)

    call(lambda: strategy.run(fn))()
    assert v.read_value().numpy() == 0.5


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "Ftrl"])
def test_optimizers(strategy: Any, kind: str) -> None:
    """The gradients of the replicas are added up and applied once."""

    def train(strategy: Any) -> np.ndarray:
        with strategy.scope():
            v = tf.Variable([1.0, 2.0])
            optimizer = getattr(keras.optimizers, kind)(0.1)
            optimizer.build([v])

        def fn() -> None:
            gradient = v * 0.5 / strategy.num_replicas_in_sync
            optimizer.apply_gradients([(gradient, v)])

        step = tf.function(lambda: strategy.run(fn))
        for _ in range(3):
            step()
        return v.numpy()

    reference = train(tf.distribute.get_strategy())
    np.testing.assert_allclose(train(strategy), reference, rtol=1e-5)


def test_an_optimizer_that_is_built_by_its_first_step(strategy: Any) -> None:
    with strategy.scope():
        model = linear()
        optimizer = keras.optimizers.Adam(0.1)

    @tf.function
    def step() -> None:
        def fn() -> None:
            gradients = [tf.ones_like(v) for v in model.trainable_variables]
            optimizer.apply(gradients, model.trainable_variables)

        strategy.run(fn)

    step()
    assert int(optimizer.iterations.numpy()) == 1


METRICS = {
    "Mean": lambda m, y: m.update_state(y),
    "MeanSquaredError": lambda m, y: m.update_state(y, y * 3.0),
    "Precision": lambda m, y: m.update_state(tf.cast(y > 0.0, tf.float32), tf.sigmoid(y)),
    "AUC": lambda m, y: m.update_state(tf.cast(y > 0.0, tf.float32), tf.sigmoid(y)),
}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", METRICS)
def test_metrics(strategy: Any, call: Wrap, name: str) -> None:
    plain = getattr(keras.metrics, name)()
    METRICS[name](plain, Y[:5])
    with strategy.scope():
        metric = getattr(keras.metrics, name)()
    step = call(lambda batch: strategy.run(lambda b: METRICS[name](metric, b[1]), (batch,)))
    for _ in range(2):
        for batch in strategy.experimental_distribute_dataset(batches(4, 5)):
            step(batch)
        np.testing.assert_allclose(metric.result(), plain.result(), rtol=1e-5)
        metric.reset_state()
    np.testing.assert_allclose(metric.result(), 0.0)


def test_a_metric_inside_a_loop_in_a_function(strategy: Any) -> None:
    with strategy.scope():
        metric = keras.metrics.Mean()

    @tf.function
    def epoch(data: Any) -> tf.Tensor:
        for batch in data:
            strategy.run(lambda b: metric.update_state(b[1]), (batch,))
        return metric.result()

    result = epoch(iter(strategy.experimental_distribute_dataset(batches(4))))
    np.testing.assert_allclose(result, Y.mean(), rtol=1e-5)


def test_results_and_resets_inside_a_replica(strategy: Any, call: Wrap) -> None:
    """A result in a replica is of what that replica has counted."""
    with strategy.scope():
        metric = keras.metrics.Sum()

    def fn() -> tf.Tensor:
        metric.reset_state()
        metric.update_state(replica_float() + 1.0)
        return metric.result()

    same(local(strategy, call(lambda: strategy.run(fn))()), [1.0])
    assert float(metric.result()) == 1.0
    call(lambda: strategy.run(fn))()
    assert float(metric.result()) == 1.0


def test_a_metric_of_ones_own(strategy: Any, call: Wrap) -> None:
    class Largest(keras.metrics.Metric):
        def __init__(self) -> None:
            super().__init__()
            self.count = self.add_weight(name="count", initializer="zeros")
            self.total = self.add_weight(name="total", initializer="zeros", shape=(2,))

        def update_state(self, y: Any) -> None:
            self.count.assign_add(tf.cast(tf.shape(y)[0], tf.float32))
            self.total.assign(self.total + tf.reduce_sum(y, axis=0))

        def result(self) -> Any:
            return self.total / self.count

    with strategy.scope():
        metric = Largest()
    y = values(strategy, [[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]])
    call(lambda y: strategy.run(metric.update_state, (y,)))(y)
    np.testing.assert_allclose(metric.result(), [3.0, 4.0])


def test_batch_normalization(strategy: Any, call: Wrap) -> None:
    """The whole batch is normalised, and the moving statistics are those of it."""
    with strategy.scope():
        layer = keras.layers.BatchNormalization(momentum=0.0)
        layer.build((None, 3))
    data = tf.data.Dataset.from_tensor_slices(X[:6]).batch(6)
    (batch,) = strategy.experimental_distribute_dataset(data)
    result = call(lambda b: strategy.run(lambda x: layer(x, training=True), (b,)))(batch)
    np.testing.assert_allclose(np.mean(result, axis=0), np.zeros(3), atol=1e-5)
    np.testing.assert_allclose(layer.moving_mean, X[:6].mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(layer.moving_variance, X[:6].var(0), rtol=1e-4)


def drawn_twice(strategy: Any, call: Wrap, draw: Callable[[], Any]) -> list[np.ndarray]:
    step = call(lambda: strategy.run(draw))
    return [np.asarray(step()) for _ in range(2)]


def test_dropout_draws_as_without_a_strategy(strategy: Any, call: Wrap) -> None:
    def layer() -> keras.Layer:
        made = keras.layers.Dropout(0.5, seed=1)
        made.build((None, 100))
        return made

    plain = layer()
    with strategy.scope():
        inside = layer()
    x = tf.ones([7, 100])
    step = call(lambda x: strategy.run(lambda x: inside(x, training=True), (x,)))
    seen = [np.asarray(step(x)) for _ in range(2)]
    for mask in seen:
        np.testing.assert_array_equal(mask, plain(x, training=True))
    assert np.any(seen[0] != seen[1])


def test_seed_generators(strategy: Any, call: Wrap) -> None:
    with strategy.scope():
        seed = keras.random.SeedGenerator(3)
    seen = drawn_twice(strategy, call, lambda: keras.random.uniform((4,), seed=seed))
    plain = keras.random.SeedGenerator(3)
    for numbers in seen:
        np.testing.assert_array_equal(numbers, keras.random.uniform((4,), seed=plain))
    assert np.any(seen[0] != seen[1])


def test_random_operations(strategy: Any) -> None:
    first, second = drawn_twice(strategy, tf.function, lambda: tf.random.uniform([8]))
    assert np.any(first != second)


def test_stateless_random_operations(strategy: Any, call: Wrap) -> None:
    def draw() -> Any:
        return tf.random.stateless_uniform([3], [1, 2])

    for numbers in drawn_twice(strategy, call, draw):
        np.testing.assert_array_equal(numbers, draw())


def test_generators_made_in_the_scope(strategy: Any, call: Wrap) -> None:
    with strategy.scope():
        generator = tf.random.Generator.from_seed(1)
    first, second = drawn_twice(strategy, call, lambda: generator.normal([3]))
    assert np.any(first != second)


def test_generators_can_be_drawn_from_outside_of_replicas(strategy: Any) -> None:
    with strategy.scope():
        generator = tf.random.Generator.from_seed(1)
        first = generator.normal([3])
        second = generator.normal([3])
    assert np.any(np.asarray(first) != np.asarray(second))


def test_generators_are_reproducible(strategy: Any, call: Wrap) -> None:
    def draw() -> Any:
        with strategy.scope():
            generator = tf.random.Generator.from_seed(7)
        step = call(lambda: strategy.run(lambda: generator.uniform([2])))
        return [local(strategy, step()) for _ in range(2)]

    np.testing.assert_array_equal(draw(), draw())


def test_embeddings(strategy: Any, call: Wrap) -> None:
    """Slices of gradients are joined, rows that several replicas have seen are added up."""
    with strategy.scope():
        layer = keras.layers.Embedding(4, 2, embeddings_initializer="zeros")
        layer.build((None,))
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build(layer.trainable_variables)

    def fn(ids: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(ids))
        optimizer.apply_gradients(
            zip(
                tape.gradient(loss, layer.trainable_variables),
                layer.trainable_variables,
                strict=True,
            )
        )

    data = tf.data.Dataset.from_tensor_slices([0, 1, 1, 3, 3, 3]).batch(6)
    step = call(lambda ids: strategy.run(fn, (ids,)))
    for ids in strategy.experimental_distribute_dataset(data):
        step(ids)
    np.testing.assert_allclose(np.asarray(layer.embeddings)[:, 0], [-1.0, -2.0, 0.0, -3.0])


@pytest.mark.parametrize("name", ["evener-1", "evener-2", "one-1", "mirrored-2"])
def test_fit_evaluate_predict(name: str) -> None:
    strategy = make(name)
    with strategy.scope():
        model = linear()
        model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    history = model.fit(X, Y * 2.0, batch_size=8, epochs=3, verbose=0, shuffle=False)
    np.testing.assert_allclose(model.layers[0].kernel, expected_weights(3), rtol=1e-4)
    assert len(history.history["loss"]) == 3
    loss, mae = model.evaluate(X, Y * 2.0, batch_size=8, verbose=0)
    predicted = model.predict(X, batch_size=8, verbose=0)
    np.testing.assert_allclose(loss, np.mean((predicted - Y * 2.0) ** 2), rtol=1e-4)
    np.testing.assert_allclose(mae, np.mean(np.abs(predicted - Y * 2.0)), rtol=1e-4)


def test_gradient_clipping_in_a_replica(strategy: Any) -> None:
    with strategy.scope():
        v = tf.Variable(0.0)
        optimizer = keras.optimizers.SGD(1.0, clipvalue=1.0)
        optimizer.build([v])

    @tf.function
    def step() -> None:
        strategy.run(lambda: optimizer.apply_gradients([(tf.constant(3.0), v)]))

    step()
    assert v.numpy() == -1.0


def test_aggregation_of_a_models_own_step_counter() -> None:
    strategy = make("evener-2")
    with strategy.scope():
        optimizer = keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(1.0, 1, 0.5))
        v = tf.Variable(0.0)
        optimizer.build([v])

    @tf.function
    def step() -> None:
        strategy.run(lambda: optimizer.apply_gradients([(tf.constant(0.5), v)]))

    for _ in range(3):
        step()
    assert v.numpy() == -0.5 * (1.0 + 0.5 + 0.25)
