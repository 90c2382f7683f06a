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
def test_other_types(two: Any, call: Wrap, dtype: str) -> None:
    x = values(two, [np.array([1, 2], dtype), np.array([3], dtype)])
    result = call(lambda x: two.gather(x, axis=0))(x)
    assert result.dtype == tf.as_dtype(dtype)
    np.testing.assert_array_equal(result, [1, 2, 3])


@pytest.mark.parametrize("dtype", ["bool", "string"])
def test_types_without_arithmetic(dtype: str) -> None:
    """MirroredStrategy gathers neither."""
    two = make("staged-2")
    parts = [[True], [False, True]] if dtype == "bool" else [["a"], ["b", "c"]]
    result = two.gather(values(two, parts), axis=0)
    assert result.numpy().tolist() == (
        [True, False, True] if dtype == "bool" else [b"a", b"b", b"c"]
    )


def test_in_the_replica_context_it_is_refused(two: Any) -> None:
    with pytest.raises(RuntimeError, match="cross-replica context"):
        two.run(lambda: two.gather(tf.ones([1]), axis=0))


def test_unlike_ranks_are_refused(two: Any) -> None:
    x = values(two, [[1.0], [[2.0]]])
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=r"rank|same shape|ank"):
        two.gather(x, axis=0)


def test_unlike_shapes_beside_the_axis_are_refused(two: Any) -> None:
    x = values(two, [np.ones([1, 1]), np.ones([1, 2])])
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        two.gather(x, axis=0)


def test_numbers_are_refused(two: Any) -> None:
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        two.gather(two.run(replica_float), axis=0)


@pytest.mark.parametrize("axis", [0, 1])
def test_all_gather(strategy: Any, call: Wrap, axis: int) -> None:
    count = strategy.num_replicas_in_sync
    parts = [np.full([1, 2], r, "float32") for r in range(count)]

    def fn(x: tf.Tensor) -> tf.Tensor:
        return tf.distribute.get_replica_context().all_gather(x, axis=axis)

    result = call(lambda x: strategy.run(fn, (x,)))(values(strategy, parts))
    same(local(strategy, result), [np.concatenate(parts, axis)] * count)


@pytest.mark.parametrize("axis", [0, 1])
def test_all_gather_of_unlike_sizes(two: Any, call: Wrap, axis: int) -> None:
    parts = [np.full([r + 1, 3] if axis == 0 else [3, r + 1], r, "float32") for r in range(2)]

    def fn(x: tf.Tensor) -> tf.Tensor:
        return tf.distribute.get_replica_context().all_gather(x, axis=axis)

    result = call(lambda x: two.run(fn, (x,)))(values(two, parts))
    same(local(two, result), [np.concatenate(parts, axis)] * 2)


def test_all_gather_of_nests(two: Any, call: Wrap) -> None:
    def fn() -> Any:
        x = tf.reshape(replica_float(), [1])
        return tf.distribute.get_replica_context().all_gather({"a": x, "b": [x + 1.0]}, axis=0)

    result = call(lambda: two.run(fn))()
    same(local(two, result["a"]), [[0.0, 1.0]] * 2)
    same(local(two, result["b"][0]), [[1.0, 2.0]] * 2)


def test_gradient_through_all_gather(two: Any) -> None:
    def fn(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            whole = tf.distribute.get_replica_context().all_gather(x, axis=0)
            y = tf.reduce_sum(whole * tf.constant([1.0, 10.0, 100.0]))
        return tape.gradient(y, x)

    @tf.function
    def outer(x: Any) -> Any:
        return two.run(fn, (x,))

    # Both replicas use each part, so each part has the gradients of both.
    same(local(two, outer(values(two, [[1.0, 2.0], [3.0]]))), [[2.0, 20.0], [200.0]])


def test_all_gather_outside_of_a_replica_is_refused(two: Any) -> None:
    with two.scope():
        assert tf.distribute.get_replica_context() is None


def test_results_in_a_merge(two: Any, call: Wrap) -> None:
    def merged(strategy: Any, x: Any) -> tf.Tensor:
        return strategy.gather(x, axis=0)

    def fn() -> tf.Tensor:
        x = tf.reshape(tf.cast(replica_id(), tf.int32), [1])
        return tf.distribute.get_replica_context().merge_call(merged, args=(x,))

    result = call(lambda: two.run(fn))()
    for part in two.experimental_local_results(result):
        np.testing.assert_array_equal(part, [0, 1])
