"""`strategy.reduce`, and the reductions behind `strategy.extended`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from .strategies import Wrap, local, make, replica_float, replica_id, values

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
    """`reduce` of a nest is of each of its leaves."""

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
