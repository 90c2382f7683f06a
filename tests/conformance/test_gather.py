"""`strategy.gather` and `ReplicaContext.all_gather`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from .strategies import Wrap, local, make, replica_float, replica_id, same, values


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_along_every_axis(strategy: Any, call: Wrap, axis: int) -> None:
    part = np.arange(8.0, dtype="float32").reshape(2, 2, 2)
    count = strategy.num_replicas_in_sync
    x = values(strategy, [part + 10 * r for r in range(count)])
    result = call(lambda x: strategy.gather(x, axis=axis))(x)
    np.testing.assert_array_equal(
        result, np.concatenate([part + 10 * r for r in range(count)], axis)
    )


@pytest.mark.parametrize("axis", [0, 1])
def test_replicas_of_unlike_size(strategy: Any, call: Wrap, axis: int) -> None:
    count = strategy.num_replicas_in_sync
    parts = [np.full([r + 1, 2] if axis == 0 else [2, r + 1], r, "float32") for r in range(count)]
    x = values(strategy, parts)
    result = call(lambda x: strategy.gather(strategy.run(lambda x: x + 1.0, (x,)), axis=axis))(x)
    np.testing.assert_array_equal(result, np.concatenate(parts, axis) + 1.0)


@pytest.mark.parametrize("dtype", ["int32", "int64", "float64", "float16"])
def test_other_types(strategy: Any, call: Wrap, dtype: str) -> None:
    x = values(strategy, [np.array([1, 2], dtype)])
    result = call(lambda x: strategy.gather(x, axis=0))(x)
    assert result.dtype == tf.as_dtype(dtype)
    np.testing.assert_array_equal(result, [1, 2])


@pytest.mark.parametrize("dtype", ["bool", "string"])
def test_types_without_arithmetic(dtype: str) -> None:
    strategy = make("evener-2")
    parts = [[False, True]] if dtype == "bool" else [["b", "c"]]
    result = strategy.gather(values(strategy, parts), axis=0)
    assert result.numpy().tolist() == ([False, True] if dtype == "bool" else [b"b", b"c"])


@pytest.mark.parametrize("name", ["evener-2", "cut-2"])
def test_in_the_replica_context_it_is_the_value(name: str, call: Wrap) -> None:
    """TensorFlow's strategies refuse it there."""
    strategy = make(name)
    result = call(lambda x: strategy.run(lambda x: strategy.gather(x, axis=0), (x,)))
    np.testing.assert_array_equal(result(tf.constant([1.0, 2.0])), [1.0, 2.0])


@pytest.mark.parametrize("axis", [0, 1])
def test_all_gather(strategy: Any, call: Wrap, axis: int) -> None:
    count = strategy.num_replicas_in_sync
    parts = [np.full([1, 2], r, "float32") for r in range(count)]

    def fn(x: tf.Tensor) -> tf.Tensor:
        return tf.distribute.get_replica_context().all_gather(x, axis=axis)

    result = call(lambda x: strategy.run(fn, (x,)))(values(strategy, parts))
    same(local(strategy, result), [np.concatenate(parts, axis)] * count)


def test_all_gather_of_nests(strategy: Any, call: Wrap) -> None:
    def fn() -> Any:
        x = tf.reshape(replica_float(), [1])
        return tf.distribute.get_replica_context().all_gather({"a": x, "b": [x + 1.0]}, axis=0)

    result = call(lambda: strategy.run(fn))()
    same(local(strategy, result["a"]), [[0.0]])
    same(local(strategy, result["b"][0]), [[1.0]])


def test_gradient_through_all_gather(strategy: Any) -> None:
    def fn(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            whole = tf.distribute.get_replica_context().all_gather(x, axis=0)
            y = tf.reduce_sum(whole * tf.constant([1.0, 10.0, 100.0]))
        return tape.gradient(y, x)

    @tf.function
    def outer(x: Any) -> Any:
        return strategy.run(fn, (x,))

    same(local(strategy, outer(values(strategy, [[1.0, 2.0, 3.0]]))), [[1.0, 10.0, 100.0]])


def test_all_gather_outside_of_a_replica_is_refused(strategy: Any) -> None:
    with strategy.scope():
        assert tf.distribute.get_replica_context() is None


def test_results_in_a_merge(strategy: Any, call: Wrap) -> None:
    def merged(strategy: Any, x: Any) -> tf.Tensor:
        return strategy.gather(x, axis=0)

    def fn() -> tf.Tensor:
        x = tf.reshape(tf.cast(replica_id(), tf.int32), [1])
        return tf.distribute.get_replica_context().merge_call(merged, args=(x,))

    result = call(lambda: strategy.run(fn))()
    for part in strategy.experimental_local_results(result):
        np.testing.assert_array_equal(part, [0])
