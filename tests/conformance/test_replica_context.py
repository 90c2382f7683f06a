"""The replica context and the cross-replica context: their attributes and methods."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from .strategies import Wrap, local, replica_float, replica_id, same, values


def context() -> tf.distribute.ReplicaContext:
    return tf.distribute.get_replica_context()


def test_what_a_replica_knows(strategy: Any, call: Wrap) -> None:
    seen = []

    def fn() -> None:
        here = context()
        seen.append(
            (
                here.num_replicas_in_sync,
                here.strategy is strategy,
                tf.distribute.get_strategy() is strategy,
                tf.distribute.has_strategy(),
                tf.distribute.in_cross_replica_context(),
                len(here.devices),
                here.replica_id_in_sync_group.dtype,
            )
        )

    call(lambda: strategy.run(fn))()
    count = strategy.num_replicas_in_sync
    assert seen[:count] == [(count, True, True, True, False, 1, tf.int32)] * count


def test_what_is_known_outside(strategy: Any) -> None:
    assert tf.distribute.has_strategy() is False
    assert tf.distribute.in_cross_replica_context() is False
    assert tf.distribute.get_replica_context() is not None
    with strategy.scope():
        assert tf.distribute.get_strategy() is strategy
        assert tf.distribute.has_strategy() is True
        assert tf.distribute.in_cross_replica_context() is True
        assert tf.distribute.get_replica_context() is None
    assert tf.distribute.has_strategy() is False


def test_scopes_nest(strategy: Any) -> None:
    with strategy.scope(), strategy.scope():
        assert tf.distribute.get_strategy() is strategy
    with strategy.scope(), pytest.raises(RuntimeError):
        with tf.distribute.OneDeviceStrategy("cpu:0").scope():
            pass


@pytest.mark.parametrize("op", ["SUM", "MEAN", tf.distribute.ReduceOp.SUM])
def test_all_reduce(strategy: Any, call: Wrap, op: Any) -> None:
    count = strategy.num_replicas_in_sync

    def fn() -> Any:
        return context().all_reduce(op, replica_float() + 1.0)

    total = sum(range(1, count + 1)) / (count if op == "MEAN" else 1)
    same(local(strategy, call(lambda: strategy.run(fn))()), [total] * count)


@pytest.mark.parametrize("op", ["SUM", "MEAN"])
def test_all_reduce_of_nests(strategy: Any, call: Wrap, op: str) -> None:
    def fn() -> Any:
        x = replica_float() * 2.0
        return context().all_reduce(op, {"a": x, "b": [tf.stack([x, x + 1.0]), x - 1.0]})

    result = call(lambda: strategy.run(fn))()
    same(local(strategy, result["a"]), [0.0])
    same(local(strategy, result["b"][0]), [[0.0, 1.0]])
    same(local(strategy, result["b"][1]), [-1.0])


def test_all_reduce_of_whole_numbers(strategy: Any, call: Wrap) -> None:
    count = strategy.num_replicas_in_sync
    result = call(lambda: strategy.run(lambda: context().all_reduce("SUM", replica_id() + 1)))()
    same(local(strategy, result), [sum(range(1, count + 1))] * count)


@pytest.mark.parametrize("op", ["SUM", "MEAN"])
def test_all_reduce_of_slices(strategy: Any, call: Wrap, op: str) -> None:
    def fn() -> Any:
        slices = tf.IndexedSlices(
            tf.ones([2, 1]), tf.stack([0, replica_id() + 1]), tf.constant([3, 1])
        )
        reduced = context().all_reduce(op, slices)
        assert isinstance(reduced, tf.IndexedSlices)
        return tf.convert_to_tensor(reduced)

    same(local(strategy, call(lambda: strategy.run(fn))()), [[[1.0], [1.0], [0.0]]])


def test_all_reduce_of_slices_and_arrays_together(strategy: Any, call: Wrap) -> None:
    def fn() -> Any:
        slices = tf.IndexedSlices(tf.ones([1, 1]), tf.stack([replica_id()]), tf.constant([2, 1]))
        summed, added = context().all_reduce("SUM", [slices, replica_float()])
        return tf.convert_to_tensor(summed), added

    dense, number = call(lambda: strategy.run(fn))()
    same(local(strategy, dense), [[[1.0], [0.0]]])
    same(local(strategy, number), [0.0])


@pytest.mark.parametrize("op", ["SUM", "MEAN"])
def test_gradient_through_all_reduce(strategy: Any, op: str) -> None:
    """The gradients that the replicas have of the sum go to all of them."""

    def fn(c: tf.Tensor) -> tf.Tensor:
        x = tf.identity(42.0)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = context().all_reduce(op, x) * c
        return tape.gradient(y, x)

    @tf.function
    def outer(c: Any) -> Any:
        return strategy.run(fn, (c,))

    same(local(strategy, outer(values(strategy, [3.0]))), [3.0])


def test_gradient_through_all_reduce_eagerly(strategy: Any) -> None:
    def fn(c: tf.Tensor) -> tf.Tensor:
        x = tf.identity(42.0)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = context().all_reduce("SUM", x) * c
        return tape.gradient(y, x)

    same(local(strategy, strategy.run(fn, (values(strategy, [3.0]),))), [3.0])


def test_all_reduce_with_options(strategy: Any, call: Wrap) -> None:
    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=1024)
    result = call(
        lambda: strategy.run(lambda: context().all_reduce("SUM", replica_float(), options=options))
    )()
    same(local(strategy, result), [0.0])


def test_merge_call(strategy: Any, call: Wrap) -> None:
    seen = []

    def merged(here: Any, value: Any, *, factor: Any) -> Any:
        seen.append((here is strategy, tf.distribute.in_cross_replica_context()))
        return here.reduce("SUM", value, axis=None) * factor

    def fn() -> tf.Tensor:
        return context().merge_call(merged, args=(replica_float(),), kwargs={"factor": 2.0})

    count = strategy.num_replicas_in_sync
    result = call(lambda: strategy.run(fn))()
    assert set(local(strategy, result)) == {2.0 * sum(range(count))}
    assert set(seen) == {(True, True)}
    assert len(seen) == 1, "called once for all replicas"


def test_merge_call_gives_each_replica_its_own(strategy: Any, call: Wrap) -> None:
    def merged(strategy: Any, value: Any) -> Any:
        return strategy.run(lambda x: x * 10.0, (value,))

    result = call(
        lambda: strategy.run(lambda: context().merge_call(merged, args=(replica_float(),)) + 1.0)
    )()
    same(local(strategy, result), [1.0])


def test_several_merges(strategy: Any, call: Wrap) -> None:
    def fn() -> tf.Tensor:
        x = replica_float()
        for _ in range(3):
            x = context().merge_call(lambda s, v: s.reduce("SUM", v, axis=None), (x,)) + 1.0
        return x

    same(local(strategy, call(lambda: strategy.run(fn))()), [3.0])


def test_merge_call_outside_of_run(call: Wrap) -> None:
    """Outside of every strategy a merge is a call."""
    result = call(lambda: context().merge_call(lambda s, x: x + 1.0, (tf.constant(1.0),)))()
    assert result.numpy() == 2.0


def test_all_reduce_outside_of_run() -> None:
    assert context().all_reduce("SUM", tf.constant(3.0)).numpy() == 3.0


def test_replica_context_of_extended(strategy: Any, call: Wrap) -> None:
    """`extended.call_for_each_replica` is run without its checks."""
    result = call(lambda: strategy.extended.call_for_each_replica(replica_id))()
    same(local(strategy, result), [0])


def test_nested_calls_with_merges(strategy: Any, call: Wrap) -> None:
    def innermost() -> tf.Tensor:
        return context().merge_call(lambda s, v: s.reduce("SUM", v, axis=None), (replica_float(),))

    def merged(strategy: Any) -> Any:
        return strategy.run(innermost)

    result = call(lambda: strategy.run(lambda: context().merge_call(merged)))()
    assert set(local(strategy, result)) == {0.0}


def test_replica_ids_are_not_fixed_by_tracing(strategy: Any) -> None:
    """A function of a person that asks for the replica is traced for each of them."""
    traces = []

    @tf.function
    def inner() -> tf.Tensor:
        traces.append(1)
        return replica_id()

    @tf.function
    def outer() -> Any:
        return strategy.run(lambda: inner())

    count = strategy.num_replicas_in_sync
    same(local(strategy, outer()), list(range(count)))
    assert len(traces) == count
