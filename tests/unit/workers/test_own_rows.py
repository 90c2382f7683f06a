"""Batches of which a worker maps its own rows: whichever rows are asked for are there."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from evener._tf_private.datasets import LastMaps
from evener.partition.shard import is_row_wise
from evener.workers.own_rows import (
    BatchOfOwnRows,
    OwnRowsIterator,
    OwnRowsOfPipelines,
    OwnRowsPipeline,
    RowsMissing,
)

BATCH = 4


class Mapping:
    """A map that counts its calls."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(self, number: Any) -> Any:
        def note(given: Any) -> Any:
            self.calls.append(int(given))
            return given

        [noted] = tf.numpy_function(note, [number], [tf.int64], stateful=False)
        x = tf.sin(tf.random.stateless_uniform([5], tf.stack([noted, 1])) * 9)
        return {"x": x, "name": tf.strings.as_string(tf.ensure_shape(noted, []))}

    def taken(self) -> list[int]:
        """Return the numbers that were mapped since the last call."""
        found, self.calls = sorted(self.calls), []
        return found


def pipeline(mapping: Mapping, count: int = 11) -> Any:
    return tf.data.Dataset.range(count).map(mapping, num_parallel_calls=2).batch(BATCH)


def of_batches(numbers: Any) -> Any:
    # Of a row of zeros it would not be a number.
    inverse = 1 / tf.cast(numbers, tf.float32)[:, None]
    x = tf.sin(inverse * tf.range(5.0))
    return {"x": tf.debugging.check_numerics(x, "x"), "name": tf.strings.as_string(numbers)}


def first_half(count: int) -> npt.NDArray[np.bool_]:
    return np.arange(count) < count // 2


def own_rows(mapping: Mapping, *, maps_first: bool = False, count: int = 11) -> OwnRowsPipeline:
    parts = LastMaps.of(pipeline(mapping, count), is_row_wise)
    return OwnRowsPipeline(parts, maps_first=maps_first, own_rows=first_half)


def mask(*rows: int, count: int = BATCH) -> npt.NDArray[np.bool_]:
    return np.isin(np.arange(count), rows)


def expected_batches(count: int = 11) -> list[Any]:
    return [as_arrays(batch) for batch in pipeline(Mapping(), count)]


def as_arrays(batch: Any) -> Any:
    return tf.nest.map_structure(np.asarray, batch)


def assert_rows(batch: Any, expected: Any, rows: npt.NDArray[np.bool_]) -> None:
    """Compare rows to the bit; the others are zeros."""
    found = as_arrays(batch)
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name][rows], values[rows])
        assert not found[name][~rows].any()


def test_rows_are_mapped_when_a_step_needs_them() -> None:
    mapping = Mapping()
    [first, second, last] = iter(own_rows(mapping)).of_own_rows()
    expected = expected_batches()
    assert mapping.taken() == []
    assert_rows(first.as_it_is(), expected[0], mask())

    assert_rows(first.with_rows(mask(1, 2)), expected[0], mask(1, 2))
    assert mapping.taken() == [1, 2]
    assert_rows(first.with_rows(mask(1, 3)), expected[0], mask(1, 2, 3))
    assert mapping.taken() == [3]
    assert_rows(second.whole(), expected[1], mask(0, 1, 2, 3))
    assert mapping.taken() == [4, 5, 6, 7]
    assert_rows(second.whole(), expected[1], mask(0, 1, 2, 3))
    assert mapping.taken() == []
    assert last.num_rows == 3
    assert_rows(last.with_rows(mask(2, count=3)), expected[2], mask(2, count=3))


def test_the_next_batches_have_the_rows_that_a_step_has_needed() -> None:
    mapping = Mapping()
    pipeline = own_rows(mapping, maps_first=True, count=40)
    expected = expected_batches(40)
    batches = iter(pipeline).of_own_rows()
    first = next(batches)
    assert_rows(first.as_it_is(), expected[0], mask(0, 1, 2, 3))
    first.check(mask(0, 1))
    first.end()
    # Those that were read ahead have all rows.
    [*_, before_last, last] = batches
    assert_rows(last.as_it_is(), expected[-1], mask(0, 1))
    assert_rows(before_last.expected(), expected[-2], mask(0, 1))
    assert len(mapping.taken()) < 40
    # Other rows than are expected by the shares: they are noted.
    with pytest.raises(RowsMissing):
        last.check(mask(2))
    assert_rows(last.expected(), expected[-1], mask(0, 1, 2))
    last.check(mask(2))
    last.end()
    batch = next(iter(pipeline).of_own_rows())
    assert_rows(batch.as_it_is(), expected[0], mask(2))
    assert_rows(batch.expected(), expected[0], mask(0, 1, 2))


def test_all_rows_are_expected_until_a_step_says_otherwise() -> None:
    expected = expected_batches()
    pipeline = own_rows(Mapping())
    first, _, last = iter(pipeline).of_own_rows()
    assert_rows(first.expected(), expected[0], mask(0, 1, 2, 3))
    first.check(mask(0, 1, 2, 3))
    first.end()
    assert_rows(last.expected(), expected[2], mask(0, 1, 2, count=3))
    last.check(mask(0, count=3))
    last.end()
    assert pipeline.expected(3).tolist() == [True, False, False]


def test_a_worker_that_is_alone_does_not_take_all_rows_for_ever() -> None:
    """All rows are its own: when others come, it needs its own rows only."""
    alone = [True]
    parts = LastMaps.of(pipeline(Mapping()), is_row_wise)
    rows = OwnRowsPipeline(
        parts,
        maps_first=False,
        own_rows=lambda count: np.arange(count) < (count if alone[0] else 1),
    )
    first, _, last = iter(rows).of_own_rows()
    first.expected()
    first.check(mask(0, 1, 2, 3))
    first.end()
    alone[0] = False
    assert_rows(last.expected(), expected_batches()[2], mask(0, count=3))


def test_a_function_that_says_nothing_is_noticed() -> None:
    batch, *_ = iter(own_rows(Mapping())).of_own_rows()
    with pytest.raises(RowsMissing, match="without saying which rows"):
        batch.end()
    batch.whole()
    batch.end()


def test_others_get_whole_batches() -> None:
    """A loop of the program, or a training function that the program has made."""
    mapping = Mapping()
    pipeline = own_rows(mapping)
    for _ in range(2):
        for found, expected in itertools.zip_longest(pipeline, expected_batches()):
            assert_rows(found, expected, np.ones(len(expected["x"]), np.bool_))
        assert mapping.taken() == list(range(11))


def test_elements_are_the_same_whatever_is_mapped() -> None:
    mapped, other = (next(iter(own_rows(Mapping())).of_own_rows()) for _ in range(2))
    mapped.whole()
    assert [each.tolist() for each in mapped.elements] == [each.tolist() for each in other.elements]
    assert mapped.elements[0].tolist() == [0, 1, 2, 3]


class Epochs:
    """Keras's iterator of the epochs."""

    data_adapter = SimpleNamespace()


def test_pipelines_that_cannot_be_split_are_iterated_as_they_are() -> None:
    found = OwnRowsOfPipelines(first_half, is_late=lambda: False)
    epochs, dataset = Epochs(), tf.data.Dataset.range(3).batch(2)
    assert found.iterable_of(epochs, dataset, only_steps_read=False) is dataset
    assert "because of its pipeline: no map comes before its .batch()" in found.explain()
    mapped = pipeline(Mapping())
    rows = found.iterable_of(epochs, mapped, only_steps_read=False)
    assert isinstance(rows, OwnRowsPipeline)
    assert isinstance(iter(rows), OwnRowsIterator)
    assert all(isinstance(batch, BatchOfOwnRows) for batch in iter(rows).of_own_rows())
    assert found.iterable_of(epochs, mapped, only_steps_read=False) is rows
    assert found.explain() == "every worker reads all elements, and maps its own rows"
    batches = found.iterable_of(epochs, mapped, only_steps_read=True)
    assert [type(batch) for batch in batches] == 3 * [BatchOfOwnRows]
    assert found.iterable_of(epochs, dataset, only_steps_read=True) is dataset


def test_a_late_worker_maps_nothing_before_it_computes() -> None:
    mapping = Mapping()
    found = OwnRowsOfPipelines(first_half, is_late=lambda: True)
    rows = found.iterable_of(Epochs(), pipeline(mapping), only_steps_read=False)
    assert len(list(iter(rows).of_own_rows())) == 3
    assert mapping.taken() == []


def mapped_in_batches() -> Any:
    return tf.data.Dataset.range(1, 12).batch(BATCH).map(of_batches).prefetch(1)


def mapped_twice() -> Any:
    def first(number: Any) -> Any:
        return {"number": number, "x": tf.cast(number, tf.float32)}

    def second(batch: Any) -> Any:
        return {**of_batches(batch["number"]), "x": tf.reshape(1 / batch["x"], [-1, 1])}

    return tf.data.Dataset.range(1, 12).map(first).batch(BATCH).map(second, num_parallel_calls=2)


@pytest.mark.parametrize("make", [mapped_in_batches, mapped_twice])
def test_maps_of_batches_are_given_own_rows_alone(make: Any) -> None:
    expected = [as_arrays(batch) for batch in make()]
    pipeline = OwnRowsPipeline(
        LastMaps.of(make(), is_row_wise), maps_first=False, own_rows=first_half
    )
    first, second, last = iter(pipeline).of_own_rows()
    assert_rows(first.as_it_is(), expected[0], mask())
    assert_rows(first.with_rows(mask(1, 3)), expected[0], mask(1, 3))
    assert_rows(second.whole(), expected[1], mask(0, 1, 2, 3))
    assert_rows(last.with_rows(mask(2, count=3)), expected[2], mask(2, count=3))
    for needed in (mask(0, 2), mask(3), mask(0, 1, 2, 3)):
        pipeline.note_needed(needed)
        batches = list(iter(pipeline).of_own_rows())
        for batch, values in zip(batches, expected, strict=True):
            assert_rows(batch.as_it_is(), values, needed[: batch.num_rows])
            assert_rows(batch.whole(), values, np.ones(batch.num_rows, np.bool_))
