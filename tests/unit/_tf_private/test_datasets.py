"""Loops over data in traced functions: every kind of loop hands its body over, with its state."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from evener._tf_private.datasets import NEXT_BATCHES, running_bodies


def batches() -> tf.data.Dataset:
    return tf.data.Dataset.range(7).batch(3)


def over_a_dataset(data: Any) -> Any:
    total, count = tf.constant(0, tf.int64), 0
    for x in data:
        total += tf.reduce_sum(x)
        count += 1
    return total, count


def without_state(data: Any) -> Any:
    for x in data:
        variable().assign_add(tf.reduce_sum(x))
    return variable().read_value()


def until(data: Any) -> Any:
    total = tf.constant(0, tf.int64)
    for x in data:
        if total > 2:
            break
        total += tf.reduce_sum(x)
    return total


def enumerated(data: Any) -> Any:
    total = tf.constant(0, tf.int64)
    for k, x in enumerate(data):
        total += k * tf.reduce_sum(x)
    return total


def with_inner_loop(data: Any) -> Any:
    total = tf.constant(0, tf.int64)
    for x in data:
        for element in tf.data.Dataset.from_tensor_slices(x):
            total = total * 2 + element
    return total


@functools.cache
def variable() -> tf.Variable:
    return tf.Variable(tf.constant(0, tf.int64))


LOOPS = [over_a_dataset, without_state, until, enumerated, with_inner_loop]


@pytest.mark.parametrize("feed", [batches, lambda: iter(batches())])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_body_is_handed_over_once(loop: Callable[..., Any], feed: Callable[[], Any]) -> None:
    if loop in (enumerated, with_inner_loop) and not isinstance(feed(), tf.data.Dataset):
        pytest.skip("AutoGraph enumerates no iterator")
    variable().assign(0)
    expected = tf.function(loop)(feed())
    variable().assign(0)
    seen = []

    def run(body: Callable[[Any], Any], batch: Any) -> Any:
        seen.append(batch)
        # Traced twice, as a step is whose first trace fails: each begins with the same state.
        tf.function(body).get_concrete_function(batch)
        return tf.function(body)(batch)

    with running_bodies(run):
        found = tf.function(loop)(feed())
    assert len(seen) == 1
    for a, b in zip(tf.nest.flatten(expected), tf.nest.flatten(found), strict=True):
        np.testing.assert_array_equal(a, b)


def test_nothing_is_handed_over_outside() -> None:
    def run(body: Callable[[Any], Any], batch: Any) -> Any:
        raise AssertionError

    with running_bodies(run):
        pass
    total, count = tf.function(over_a_dataset)(batches())
    assert (int(total), int(count)) == (21, 3)


def noting(note: Callable[[Any, Any], None]) -> Callable[..., Any]:
    """Return a wrap that takes note of the first argument and the result of each call."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def noted(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            note(args[0], result)
            return result

        return noted

    return wrap


def test_iterators_give_batches_through_known_functions(patches_undone: None) -> None:
    drawn: list[str] = []
    data = tf.data.Dataset.range(8).batch(2)
    plain = tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"])
    NEXT_BATCHES.apply(noting(lambda iterator, _: drawn.append(type(iterator).__name__)))
    next(iter(data))
    assert drawn == ["OwnedIterator"]
    tf.function(lambda it: it.get_next())(iter(data))
    assert drawn[1:] == ["OwnedIterator"]
    drawn.clear()
    next(iter(plain.experimental_distribute_dataset(data)))
    assert drawn[-1] == "DistributedIterator"
