"""`strategy.reduce` and `strategy.gather`, the reductions behind `strategy.extended`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from .strategies import Wrap, local, make, replica_float, replica_id, same, values

OPS = ("SUM", "MEAN")


@pytest.mark.parametrize("op", [*OPS, tf.distribute.ReduceOp.MEAN])
@pytest.mark.parametrize("dtype", [tf.float64, tf.float16, tf.complex64])
def test_numbers(strategy: Any, call: Wrap, op: Any, dtype: tf.DType) -> None:
    count = strategy.num_replicas_in_sync
    numbers = [3.0 * r + 1.0 for r in range(count)]
    result = call(
        lambda: strategy.reduce(
            op, strategy.run(lambda: tf.cast(3.0 * replica_float() + 1.0, dtype)), axis=None
        )
    )()
    assert result.dtype == dtype
    assert result.numpy() == (sum(numbers) if op == "SUM" else sum(numbers) / count)


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
def test_sums_of_whole_numbers(strategy: Any, call: Wrap, dtype: tf.DType) -> None:
    count = strategy.num_replicas_in_sync
    result = call(
        lambda: strategy.reduce("SUM", strategy.run(lambda: tf.cast(replica_id(), dtype)), None)
    )()
    assert result.dtype == dtype
    assert result.numpy() == sum(range(count))


@pytest.mark.parametrize("op", OPS)
def test_arrays_without_an_axis(strategy: Any, call: Wrap, op: str) -> None:
    count = strategy.num_replicas_in_sync
    result = call(
        lambda: strategy.reduce(
            op, strategy.run(lambda: tf.reshape(tf.range(4.0), [2, 2]) * replica_float()), None
        )
    )()
    each = [np.arange(4.0).reshape(2, 2) * r for r in range(count)]
    np.testing.assert_allclose(result, sum(each) / (1 if op == "SUM" else count))


@pytest.mark.sampled(12)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("axis", [0, 1, -1, -2, (0,), (0, 1), (0, -1)])
def test_arrays_along_an_axis(strategy: Any, op: str, axis: Any) -> None:
    x = values(strategy, [[[1.0, 2.0], [3.0, 4.0]]])
    result = tf.function(lambda x: strategy.reduce(op, strategy.run(lambda x: x, (x,)), axis=axis))(
        x
    )
    whole = np.arange(1.0, 5.0).reshape(2, 2)
    expected = (np.sum if op == "SUM" else np.mean)(whole, axis=axis)
    np.testing.assert_allclose(result, expected)


def test_values_that_are_the_same_everywhere(strategy: Any, call: Wrap) -> None:
    with strategy.scope():
        assert call(lambda: strategy.reduce("MEAN", 5.0, axis=None))() == 5.0
        assert call(lambda: strategy.reduce("MEAN", tf.constant(5.0), axis=None))() == 5.0


@pytest.mark.parametrize("op", OPS)
def test_slices(strategy: Any, call: Wrap, op: str) -> None:
    def fn() -> tf.IndexedSlices:
        row = tf.cast(replica_id() * 2, tf.int32)
        return tf.IndexedSlices(tf.ones([2, 2]), tf.stack([1, row]), tf.constant([3, 2]))

    result = call(lambda: strategy.reduce(op, strategy.run(fn), axis=None))()
    dense = tf.convert_to_tensor(result).numpy() if result is not None else None
    np.testing.assert_allclose(dense, [[1.0, 1.0], [1.0, 1.0], [0.0, 0.0]])


def test_nests(strategy: Any, call: Wrap) -> None:
    def fn() -> Any:
        return {"a": replica_float(), "b": (replica_float() + 1.0,)}

    total = call(lambda: strategy.reduce("SUM", strategy.run(fn), axis=None))()
    assert (total["a"].numpy(), total["b"][0].numpy()) == (0.0, 1.0)
    mean = call(lambda: strategy.reduce("MEAN", strategy.run(fn), axis=None))()
    assert (mean["a"].numpy(), mean["b"][0].numpy()) == (0.0, 1.0)


def test_means_of_whole_numbers_are_no_whole_numbers(strategy: Any, call: Wrap) -> None:
    count = strategy.num_replicas_in_sync
    result = call(lambda: strategy.reduce("MEAN", strategy.run(lambda: replica_id() + 3), None))()
    assert float(result) == sum(range(3, 3 + count)) / count


def test_distributed_variables(strategy: Any, call: Wrap) -> None:
    with strategy.scope():
        v = tf.Variable(3.0)
    assert call(lambda: strategy.reduce("MEAN", v, axis=None))().numpy() == 3.0


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", ["evener-2", "cut-2"])
def test_in_the_replica_context_it_is_the_value(name: str, call: Wrap, op: str) -> None:
    """TensorFlow's strategies refuse it there."""
    strategy = make(name)
    result = call(lambda: strategy.run(lambda: strategy.reduce(op, tf.constant(5.0), axis=None)))()
    assert float(result) == 5.0


def test_an_unknown_operation_is_refused(strategy: Any) -> None:
    with pytest.raises((KeyError, ValueError, TypeError)):
        strategy.reduce("MAX", strategy.run(replica_float), axis=None)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("destination", ["variable", "device", "value"])
def test_reduce_to(strategy: Any, call: Wrap, op: str, destination: str) -> None:
    with strategy.scope():
        v = tf.Variable(1.0)

    @call
    def outer() -> Any:
        value = strategy.run(lambda: replica_float() + 1.0)
        where = {"variable": v, "device": "/device:CPU:0", "value": value}[destination]
        return strategy.extended.reduce_to(op, value, where)

    result = strategy.experimental_local_results(outer())
    assert {part.numpy() for part in result} == {1.0}


def test_batch_reduce_to(strategy: Any, call: Wrap) -> None:
    @call
    def outer() -> Any:
        first, second = strategy.run(lambda: (replica_float(), replica_float() + 1.0))
        return strategy.extended.batch_reduce_to("SUM", [(first, first), (second, second)])

    assert [local(strategy, part)[0] for part in outer()] == [0.0, 1.0]


def test_broadcast_to(strategy: Any, call: Wrap) -> None:
    @call
    def outer() -> Any:
        value = strategy.run(replica_float)
        return strategy.extended.broadcast_to(tf.constant(4.0), value)

    assert {part.numpy() for part in strategy.experimental_local_results(outer())} == {4.0}


def test_reduce_to_takes_part_in_gradients(strategy: Any) -> None:
    """The sum over replicas of a loss is a tensor that can be used on."""

    @tf.function
    def outer() -> tf.Tensor:
        total = strategy.reduce("SUM", strategy.run(lambda: replica_float() + 1.0), axis=None)
        with tf.GradientTape() as tape:
            tape.watch(total)
            y = total * total
        return tape.gradient(y, total)

    assert outer().numpy() == 2.0


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
def test_a_gather_in_the_replica_context_is_the_value(name: str, call: Wrap) -> None:
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
