"""Distributed datasets: how batches are handed out, and every way to go through them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from .strategies import Wrap, local, same, values


def numbers(count: int, batch: int, **how: Any) -> tf.data.Dataset:
    return tf.data.Dataset.range(count).map(lambda x: tf.cast(x, tf.float32)).batch(batch, **how)


def joined(strategy: Any, distributed: Any) -> list[list[float]]:
    """Return each batch, its parts joined in the order of the replicas."""
    return [np.concatenate(local(strategy, part)).tolist() for part in distributed]


@pytest.mark.parametrize(("count", "batch"), [(12, 6), (5, 4), (3, 8), (3, 1)])
@pytest.mark.parametrize("drop_remainder", [False, True])
def test_no_sample_is_lost_or_doubled(
    strategy: Any, count: int, batch: int, drop_remainder: bool
) -> None:
    dataset = numbers(count, batch, drop_remainder=drop_remainder)
    expected = [batch.numpy().tolist() for batch in dataset]
    assert joined(strategy, strategy.experimental_distribute_dataset(dataset)) == expected


def test_fewer_samples_than_replicas(strategy: Any) -> None:
    distributed = strategy.experimental_distribute_dataset(numbers(1, 8))

    @tf.function
    def total(batch: Any) -> tf.Tensor:
        return strategy.reduce(
            "SUM", strategy.run(lambda x: tf.reduce_sum(x + 1.0), (batch,)), None
        )

    assert [total(batch).numpy() for batch in distributed] == [1.0]


ELEMENTS = {
    "tuple": lambda: {"x": np.arange(8.0).reshape(4, 2), "y": np.arange(4)},
    "nested": lambda: {"x": (np.arange(4.0), {"deep": np.arange(4.0)})},
    "text": lambda: {"x": np.array(["a", "b", "c", "d"])},
    "whole": lambda: {"x": np.arange(4)},
    "flags": lambda: {"x": np.array([True, False, True, False])},
}


@pytest.mark.parametrize("name", ELEMENTS)
def test_elements_of_every_structure(strategy: Any, call: Wrap, name: str) -> None:
    element = ELEMENTS[name]()
    dataset = tf.data.Dataset.from_tensor_slices(element).batch(4)
    (batch,) = strategy.experimental_distribute_dataset(dataset)
    tf.nest.assert_same_structure(batch, element)
    result = call(lambda batch: strategy.run(lambda b: b, (batch,)))(batch)
    for whole, part in zip(tf.nest.flatten(element), tf.nest.flatten(result), strict=True):
        got = np.concatenate(local(strategy, part))
        assert got.tolist() == [w.encode() if isinstance(w, str) else w for w in whole.tolist()]


def test_a_tuple_of_one(strategy: Any) -> None:
    dataset = tf.data.Dataset.from_tensor_slices((np.arange(4.0),)).batch(4)
    (batch,) = strategy.experimental_distribute_dataset(dataset)
    assert isinstance(batch, tuple) and len(batch) == 1


def test_ragged_batches(strategy: Any, call: Wrap) -> None:
    ragged = tf.ragged.constant([[1.0], [2.0, 3.0], [], [4.0, 5.0, 6.0]])
    dataset = tf.data.Dataset.from_tensor_slices(ragged).batch(4)
    (batch,) = strategy.experimental_distribute_dataset(dataset)
    result = call(lambda b: strategy.run(lambda x: x * 2.0, (b,)))(batch)
    assert local(strategy, result) == [[[2.0], [4.0, 6.0], [], [8.0, 10.0, 12.0]]]


def test_ragged_batches_in_a_dict(strategy: Any) -> None:
    ragged = tf.ragged.constant([[1.0], [2.0, 3.0], [], [4.0]])
    dataset = tf.data.Dataset.from_tensor_slices({"r": ragged, "d": tf.range(4)}).batch(4)

    @tf.function
    def total(iterator: Any) -> tf.Tensor:
        result = strategy.run(lambda b: tf.reduce_sum(b["r"]), (next(iterator),))
        return strategy.reduce("SUM", result, axis=None)

    assert total(iter(strategy.experimental_distribute_dataset(dataset))).numpy() == 10.0


def test_sparse_batches(strategy: Any, call: Wrap) -> None:
    sparse = tf.sparse.from_dense(np.diag([1.0, 2.0, 3.0, 4.0]))
    dataset = tf.data.Dataset.from_tensor_slices(sparse).batch(4)
    (batch,) = strategy.experimental_distribute_dataset(dataset)
    result = call(lambda b: strategy.run(lambda x: tf.sparse.reduce_sum(x), (b,)))(batch)
    same(local(strategy, result), [10.0])


def test_an_infinite_dataset(strategy: Any) -> None:
    batches = iter(strategy.experimental_distribute_dataset(numbers(4, 4).repeat()))
    for _ in range(5):
        assert np.concatenate(local(strategy, next(batches))).tolist() == [0.0, 1.0, 2.0, 3.0]


def test_several_epochs(strategy: Any) -> None:
    distributed = strategy.experimental_distribute_dataset(numbers(6, 4))
    first = joined(strategy, distributed)
    assert first == joined(strategy, distributed) == [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0]]


def test_every_epoch_is_shuffled_anew(strategy: Any) -> None:
    dataset = tf.data.Dataset.range(32).shuffle(32, seed=1).batch(32)
    distributed = strategy.experimental_distribute_dataset(dataset)
    first, second = joined(strategy, distributed), joined(strategy, distributed)
    assert first != second
    assert sorted(first[0]) == sorted(second[0]) == list(range(32))


def test_the_end_of_an_iterator(strategy: Any) -> None:
    batches = iter(strategy.experimental_distribute_dataset(numbers(4, 4)))
    next(batches)
    with pytest.raises(StopIteration):
        next(batches)
    batches = iter(strategy.experimental_distribute_dataset(numbers(4, 4)))
    batches.get_next()
    with pytest.raises((StopIteration, tf.errors.OutOfRangeError)):
        batches.get_next()


def test_the_end_inside_a_function(strategy: Any) -> None:
    @tf.function
    def take(iterator: Any) -> Any:
        return strategy.run(lambda x: tf.reduce_sum(x), (next(iterator),))

    iterator = iter(strategy.experimental_distribute_dataset(numbers(8, 4)))
    same(local(strategy, take(iterator)), [6.0])
    same(local(strategy, take(iterator)), [22.0])
    with pytest.raises(tf.errors.OutOfRangeError):
        take(iterator)


def test_get_next_as_optional(strategy: Any, call: Wrap) -> None:
    iterator = iter(strategy.experimental_distribute_dataset(numbers(5, 4)))

    @call
    def take(iterator: Any) -> Any:
        found = iterator.get_next_as_optional()
        return tf.cond(
            found.has_value(),
            lambda: strategy.reduce(
                "SUM", strategy.run(tf.reduce_sum, (found.get_value(),)), axis=None
            ),
            lambda: tf.constant(-1.0),
        )

    assert [take(iterator).numpy() for _ in range(3)] == [6.0, 4.0, -1.0]


def test_get_next_as_optional_in_a_loop(strategy: Any) -> None:
    iterator = iter(strategy.experimental_distribute_dataset(numbers(10, 4)))

    @tf.function
    def total(iterator: Any) -> tf.Tensor:
        result = tf.constant(0.0)
        going = tf.constant(True)
        while going:
            found = iterator.get_next_as_optional()
            going = found.has_value()
            if going:
                result += strategy.reduce(
                    "SUM", strategy.run(tf.reduce_sum, (found.get_value(),)), None
                )
        return result

    assert total(iterator).numpy() == 45.0


@pytest.mark.sampled(12)
@pytest.mark.parametrize("as_argument", [True, False])
@pytest.mark.parametrize("of", ["dataset", "iterator"])
def test_a_loop_in_a_function(strategy: Any, of: str, as_argument: bool) -> None:
    distributed = strategy.experimental_distribute_dataset(numbers(10, 4))
    with strategy.scope():
        v = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)

    def add(x: tf.Tensor) -> tf.Tensor:
        v.assign_add(tf.reduce_sum(x))
        return tf.reduce_sum(x)

    def total(data: Any) -> tf.Tensor:
        result = tf.constant(0.0)
        for batch in data:
            result += strategy.reduce("SUM", strategy.run(add, (batch,)), axis=None)
        return result

    data = distributed if of == "dataset" else iter(distributed)
    if as_argument:
        assert tf.function(total)(data).numpy() == 45.0
    else:
        assert tf.function(lambda: total(data))().numpy() == 45.0
    assert v.numpy() == 45.0


def test_a_counted_loop_over_an_iterator(strategy: Any) -> None:
    iterator = iter(strategy.experimental_distribute_dataset(numbers(16, 4)))

    @tf.function
    def total(iterator: Any) -> tf.Tensor:
        result = tf.constant(0.0)
        for _ in tf.range(3):
            result += strategy.reduce(
                "SUM", strategy.run(tf.reduce_sum, (next(iterator),)), axis=None
            )
        return result

    assert total(iterator).numpy() == sum(range(12))
    same(local(strategy, next(iterator)), [[12.0, 13.0, 14.0, 15.0]])


def test_a_loop_with_enumerate(strategy: Any) -> None:
    distributed = strategy.experimental_distribute_dataset(numbers(8, 4))
    assert [k for k, _ in enumerate(distributed)] == [0, 1]


def test_the_spec_of_elements_is_a_signature(strategy: Any) -> None:
    dataset = tf.data.Dataset.from_tensor_slices((np.ones([10, 2], "float32"), np.arange(10)))
    distributed = strategy.experimental_distribute_dataset(dataset.batch(4))
    traces = []

    @tf.function(input_signature=[distributed.element_spec])
    def total(batch: Any) -> tf.Tensor:
        traces.append(1)
        result = strategy.run(lambda b: tf.reduce_sum(b[1]), (batch,))
        return strategy.reduce("SUM", result, axis=None)

    assert [total(batch).numpy() for batch in distributed] == [6, 22, 17]
    assert len(traces) == 1
    iterator = iter(distributed)
    assert iterator.element_spec == distributed.element_spec


def test_a_function_is_not_traced_for_every_batch(strategy: Any) -> None:
    distributed = strategy.experimental_distribute_dataset(numbers(18, 4))
    traces = []

    @tf.function
    def total(batch: Any) -> tf.Tensor:
        traces.append(1)
        return strategy.reduce("SUM", strategy.run(tf.reduce_sum, (batch,)), axis=None)

    for _ in range(2):
        assert sum(total(batch).numpy() for batch in distributed) == sum(range(18))
    assert len(traces) <= 2


def test_the_length(strategy: Any) -> None:
    distributed = strategy.experimental_distribute_dataset(numbers(10, 4))
    count = distributed.cardinality  # a property of TensorFlow's
    assert int(count() if callable(count) else count) == 3


def test_static_shapes_are_kept(strategy: Any) -> None:
    dataset = numbers(8, 4, drop_remainder=True)
    (spec,) = tf.nest.flatten(strategy.experimental_distribute_dataset(dataset).element_spec)
    assert spec.shape == (4,)


@pytest.mark.parametrize("in_scope", [True, False])
def test_inside_and_outside_of_the_scope(strategy: Any, in_scope: bool) -> None:
    if in_scope:
        with strategy.scope():
            distributed = strategy.experimental_distribute_dataset(numbers(4, 4))
            assert joined(strategy, distributed) == [[0.0, 1.0, 2.0, 3.0]]
    else:
        assert joined(strategy, strategy.experimental_distribute_dataset(numbers(4, 4))) == [
            [0.0, 1.0, 2.0, 3.0]
        ]


def test_input_options(strategy: Any) -> None:
    options = tf.distribute.InputOptions(experimental_fetch_to_device=False)
    distributed = strategy.experimental_distribute_dataset(numbers(4, 4), options)
    assert joined(strategy, distributed) == [[0.0, 1.0, 2.0, 3.0]]


def test_one_batch_of_two_datasets_in_a_run(strategy: Any) -> None:
    iterator = iter(strategy.experimental_distribute_dataset(numbers(4, 4)))
    second_iterator = iter(strategy.experimental_distribute_dataset(numbers(8, 8)))
    result = strategy.run(
        lambda a, b: tf.reduce_sum(a) * tf.reduce_sum(b), (next(iterator), next(second_iterator))
    )
    same(local(strategy, result), [6.0 * 28.0])


def batches_of_a_replica(context: tf.distribute.InputContext) -> tf.data.Dataset:
    assert context.num_input_pipelines == 1
    assert context.input_pipeline_id == 0
    size = context.get_per_replica_batch_size(2 * context.num_replicas_in_sync)
    return numbers(12, size)


def test_datasets_from_a_function(strategy: Any) -> None:
    """Each replica gets batches of its own size, one after the other."""
    distributed = strategy.distribute_datasets_from_function(batches_of_a_replica)
    count = strategy.num_replicas_in_sync
    batch = next(iter(distributed))
    same(local(strategy, batch), [[2.0 * r, 2.0 * r + 1.0] for r in range(count)])
    flat = [x for batch in joined(strategy, distributed) for x in batch]
    assert flat == list(range(12))
    assert flat == [x for batch in joined(strategy, distributed) for x in batch]


def test_datasets_from_a_function_whose_last_batch_is_partial(strategy: Any) -> None:
    distributed = strategy.distribute_datasets_from_function(lambda _: numbers(7, 2))
    got = joined(strategy, distributed)
    assert [x for batch in got for x in batch] == list(range(7))
    assert got[0] == [0.0, 1.0]


def test_datasets_from_a_function_of_nests(strategy: Any) -> None:
    def fn(context: Any) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(({"a": np.arange(8.0)}, np.arange(8))).batch(2)

    x, y = next(iter(strategy.distribute_datasets_from_function(fn)))
    same(local(strategy, x["a"]), [[0.0, 1.0]])
    same(local(strategy, y), [[0, 1]])


def test_datasets_from_a_function_in_a_loop(strategy: Any) -> None:
    distributed = strategy.distribute_datasets_from_function(lambda _: numbers(8, 2))

    @tf.function
    def total() -> tf.Tensor:
        result = tf.constant(0.0)
        for batch in distributed:
            result += strategy.reduce("SUM", strategy.run(tf.reduce_sum, (batch,)), axis=None)
        return result

    assert total().numpy() == 28.0
    assert total().numpy() == 28.0


def test_datasets_from_a_function_of_ragged_batches(strategy: Any) -> None:
    def fn(context: Any) -> tf.data.Dataset:
        ragged = tf.ragged.constant([[1.0], [2.0, 3.0], [], [4.0]])
        return tf.data.Dataset.from_tensor_slices(ragged).batch(2)

    batch = next(iter(strategy.distribute_datasets_from_function(fn)))
    assert local(strategy, batch) == [[[1.0], [2.0, 3.0]]]


def test_datasets_from_a_function_of_padded_batches(strategy: Any, call: Wrap) -> None:
    """Every batch is as wide as its longest sample."""

    def fn(context: Any) -> tf.data.Dataset:
        rows = tf.data.Dataset.from_tensor_slices(tf.range(1, 5)).map(lambda n: tf.ones([n]))
        return rows.padded_batch(2, [None])

    @call
    def total(batch: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(tf.reduce_sum, (batch,)), axis=None)

    distributed = strategy.distribute_datasets_from_function(fn)
    assert [total(batch).numpy() for batch in distributed] == [3.0, 7.0]


def test_padded_batches(strategy: Any) -> None:
    rows = tf.data.Dataset.from_tensor_slices(tf.range(1, 5)).map(lambda n: tf.ones([n]))
    (batch,) = strategy.experimental_distribute_dataset(rows.padded_batch(4, [None]))
    same(local(strategy, strategy.run(tf.reduce_sum, (batch,))), [10.0])


def test_values_from_a_function(strategy: Any, call: Wrap) -> None:
    def value(context: Any) -> Any:
        assert context.num_replicas_in_sync == strategy.num_replicas_in_sync
        return {"x": tf.constant(context.replica_id_in_sync_group * 2.0), "k": 3}

    made = strategy.experimental_distribute_values_from_function(value)
    count = strategy.num_replicas_in_sync
    result = call(lambda x: strategy.run(lambda x: x + 1.0, (x,)))(made["x"])
    same(local(strategy, result), [2.0 * r + 1.0 for r in range(count)])
    assert set(strategy.experimental_local_results(made["k"])) == {3}


def test_values_from_a_function_of_arrays(strategy: Any) -> None:
    made = strategy.experimental_distribute_values_from_function(
        lambda context: np.full([2], context.replica_id_in_sync_group)
    )
    same(local(strategy, strategy.run(lambda x: tf.convert_to_tensor(x) + 1, (made,))), [[1, 1]])


def test_local_results(strategy: Any) -> None:
    count = strategy.num_replicas_in_sync
    x = values(strategy, [float(r) for r in range(count)])
    parts = strategy.experimental_local_results(x)
    assert isinstance(parts, tuple)
    assert [p.numpy() for p in parts] == [float(r) for r in range(count)]
    plain = tf.constant(1.0)
    assert strategy.experimental_local_results(plain)[0] is plain
    assert len(strategy.experimental_local_results(plain)) == 1
