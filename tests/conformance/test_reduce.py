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


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("axis", [0, 1, -1, -2, (0,), (0, 1), (0, -1)])
def test_arrays_along_an_axis(two: Any, op: str, axis: Any) -> None:
    x = values(two, [[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]])
    result = tf.function(lambda x: two.reduce(op, two.run(lambda x: x, (x,)), axis=axis))(x)
    whole = np.arange(1.0, 9.0).reshape(2, 2, 2)
    kept = tuple(a % 2 + 1 for a in ((axis,) if isinstance(axis, int) else axis))
    expected = (np.sum if op == "SUM" else np.mean)(whole, axis=(0, *kept))
    np.testing.assert_allclose(result, expected)


@pytest.mark.parametrize(
    ("op", "dtype"), [("SUM", "int32"), ("MEAN", "float32"), ("MEAN", "int32")]
)
@pytest.mark.parametrize("shape", [[2], [None], None])
def test_replicas_of_unlike_size_along_the_first_axis(
    two: Any, call: Wrap, op: str, dtype: str, shape: Any
) -> None:
    """A mean along the batch axis is the mean over all samples, not over replicas."""

    def fn() -> tf.Tensor:
        n = replica_id() + 1
        part = tf.repeat(tf.cast(n, dtype), n if shape != [2] else 2)
        return tf.raw_ops.PlaceholderWithDefault(input=part, shape=shape or tf.TensorShape(shape))

    numbers = [1, 1, 2, 2] if shape == [2] else [1, 2, 2]
    result = call(lambda: two.reduce(op, two.run(fn), axis=0))()
    expected = sum(numbers) if op == "SUM" else np.mean(numbers)
    assert result.numpy() == pytest.approx(expected)


@pytest.mark.parametrize("op", OPS)
def test_a_replica_with_nothing_along_the_first_axis(two: Any, call: Wrap, op: str) -> None:
    result = call(
        lambda: two.reduce(op, two.run(lambda: tf.ones([2 * replica_id()]) * 3.0), axis=0)
    )()
    assert result.numpy() == (6.0 if op == "SUM" else 3.0)


def test_values_that_are_the_same_everywhere(strategy: Any, call: Wrap) -> None:
    with strategy.scope():
        assert call(lambda: strategy.reduce("MEAN", 5.0, axis=None))() == 5.0
        assert call(lambda: strategy.reduce("MEAN", tf.constant(5.0), axis=None))() == 5.0


def test_zeros_that_are_no_replicas_own(two: Any) -> None:
    """Nothing is nothing, however often it counts."""
    assert np.asarray(two.reduce("SUM", np.zeros([2]), axis=None)).tolist() == [0.0, 0.0]


def test_a_sum_of_what_is_no_replicas_own_is_refused(two: Any, call: Wrap) -> None:
    with pytest.raises((ValueError, RuntimeError), match=r"cannot be|no replica's own"):
        call(lambda: two.reduce("SUM", tf.constant(5.0), axis=None))()
    assert make("evener-1").reduce("SUM", tf.constant(5.0), axis=None) == 5.0


@pytest.mark.parametrize("op", OPS)
def test_slices(two: Any, call: Wrap, op: str) -> None:
    def fn() -> tf.IndexedSlices:
        row = tf.cast(replica_id() * 2, tf.int32)
        return tf.IndexedSlices(tf.ones([2, 2]), tf.stack([1, row]), tf.constant([3, 2]))

    result = call(lambda: two.reduce(op, two.run(fn), axis=None))()
    dense = tf.convert_to_tensor(result).numpy() if result is not None else None
    expected = np.array([[1.0, 1.0], [2.0, 2.0], [1.0, 1.0]])
    np.testing.assert_allclose(dense, expected if op == "SUM" else expected / 2)


def test_nests(two: Any, call: Wrap) -> None:
    """`reduce` of a nest is of each of its leaves."""

    def fn() -> Any:
        return {"a": replica_float(), "b": (replica_float() + 1.0,)}

    total = call(lambda: two.reduce("SUM", two.run(fn), axis=None))()
    assert (total["a"].numpy(), total["b"][0].numpy()) == (1.0, 3.0)
    mean = call(lambda: two.reduce("MEAN", two.run(fn), axis=None))()
    assert (mean["a"].numpy(), mean["b"][0].numpy()) == (0.5, 1.5)


def test_means_of_whole_numbers_are_no_whole_numbers(strategy: Any, call: Wrap) -> None:
    count = strategy.num_replicas_in_sync
    result = call(lambda: strategy.reduce("MEAN", strategy.run(lambda: replica_id() + 3), None))()
    assert float(result) == sum(range(3, 3 + count)) / count


def test_distributed_variables(strategy: Any, call: Wrap) -> None:
    with strategy.scope():
        v = tf.Variable(3.0)
    assert call(lambda: strategy.reduce("MEAN", v, axis=None))().numpy() == 3.0


def test_a_mean_of_means_counts_samples() -> None:
    """MirroredStrategy counts replicas: its mean is that of no batch."""
    for name, expected in (("staged-2", 4.0 / 3.0), ("mirrored-2", 1.25)):
        strategy = make(name)
        x = values(strategy, [[1.0], [1.0, 2.0]])
        means = strategy.run(tf.reduce_mean, (x,))
        assert strategy.reduce("MEAN", means, axis=None).numpy() == pytest.approx(expected)


def test_in_the_replica_context_it_is_refused(two: Any) -> None:
    def fn() -> None:
        two.reduce("SUM", replica_float(), axis=None)

    with pytest.raises(RuntimeError, match="cross-replica context"):
        two.run(fn)


def test_an_unknown_operation_is_refused(two: Any) -> None:
    with pytest.raises((KeyError, ValueError, TypeError)):
        two.reduce("MAX", two.run(replica_float), axis=None)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("destination", ["variable", "device", "value"])
def test_reduce_to(two: Any, call: Wrap, op: str, destination: str) -> None:
    with two.scope():
        v = tf.Variable(1.0)

    @call
    def outer() -> Any:
        value = two.run(lambda: replica_float() + 1.0)
        where = {"variable": v, "device": "/device:CPU:0", "value": value}[destination]
        return two.extended.reduce_to(op, value, where)

    result = two.experimental_local_results(outer())
    assert {part.numpy() for part in result} == {3.0 if op == "SUM" else 1.5}


def test_batch_reduce_to(two: Any, call: Wrap) -> None:
    @call
    def outer() -> Any:
        one, other = two.run(lambda: (replica_float(), replica_float() + 1.0))
        return two.extended.batch_reduce_to("SUM", [(one, one), (other, other)])

    assert [local(two, part)[0] for part in outer()] == [1.0, 3.0]


def test_broadcast_to(two: Any, call: Wrap) -> None:
    @call
    def outer() -> Any:
        value = two.run(replica_float)
        return two.extended.broadcast_to(tf.constant(4.0), value)

    assert {part.numpy() for part in two.experimental_local_results(outer())} == {4.0}


def test_reduce_to_takes_part_in_gradients(two: Any) -> None:
    """The sum over replicas of a loss is a tensor that can be used on."""

    @tf.function
    def outer() -> tf.Tensor:
        total = two.reduce("SUM", two.run(lambda: replica_float() + 1.0), axis=None)
        with tf.GradientTape() as tape:
            tape.watch(total)
            y = total * total
        return tape.gradient(y, total)

    assert outer().numpy() == 6.0
