"""Loops over data in traced functions, and input pipelines in parts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from evener._tf_private.datasets import NEXT_BATCHES, CannotSplitError, LastMaps, running_bodies
from evener.partition.shard import is_row_wise


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


OVER_ANY = [over_a_dataset, without_state, until]
LOOPS = [
    *((loop, batches) for loop in (*OVER_ANY, enumerated, with_inner_loop)),
    # AutoGraph enumerates no iterator.
    *((loop, lambda: iter(batches())) for loop in OVER_ANY),
]


@pytest.mark.parametrize(("loop", "feed"), LOOPS)
def test_a_body_is_handed_over_once(loop: Callable[..., Any], feed: Callable[[], Any]) -> None:
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


AUTOTUNE = tf.data.AUTOTUNE


def numbers() -> Any:
    return tf.data.Dataset.range(11)


def squared(number: Any) -> Any:
    return tf.cast(number, tf.float32) ** 2


def pair(number: Any) -> Any:
    return {"x": squared(number), "y": (number, tf.strings.as_string(number))}


def table() -> Any:
    keys, values = tf.constant([1, 2], tf.int64), tf.constant([3.0, 4.0])
    start = tf.lookup.KeyValueTensorInitializer(keys, values)
    return tf.lookup.StaticHashTable(start, -1.0)


def looked_up() -> Any:
    found = table()
    return numbers().map(lambda number: found.lookup(number)).batch(4)


def with_variable() -> Any:
    scale = tf.Variable(3.0)
    return numbers().map(lambda number: squared(number) * scale).batch(4)


def by_condition(number: Any) -> Any:
    return tf.cond(number > 4, lambda: squared(number), lambda: tf.zeros([]))


def drawn(number: Any) -> Any:
    return tf.random.stateless_uniform([3], tf.stack([number, 1]))


PIPELINES: dict[str, Callable[[], Any]] = {
    "one map": lambda: numbers().map(squared).batch(4),
    "no rest": lambda: numbers().map(squared).batch(4, drop_remainder=True),
    "batches in parallel": lambda: numbers().map(squared).batch(4, num_parallel_calls=2),
    "two maps": lambda: numbers().map(pair, AUTOTUNE).map(lambda d: (d["x"], d["y"])).batch(4),
    "nested": lambda: numbers().map(pair, num_parallel_calls=2).batch(4).prefetch(2),
    "repeated": lambda: numbers().map(squared).repeat(2).batch(4).repeat(2).prefetch(AUTOTUNE),
    "chosen": lambda: numbers().map(squared).skip(1).take(7).prefetch(1).batch(4).skip(1).take(2),
    "shuffled": lambda: numbers().shuffle(11, seed=2).map(squared).batch(4),
    "zipped": lambda: tf.data.Dataset.zip((numbers().map(pair), numbers().skip(2))).batch(4),
    "zipped and mapped": lambda: (
        tf.data.Dataset.zip((numbers().map(squared), numbers().map(drawn, AUTOTUNE)))
        .map(lambda x, y: x + y)
        .batch(4)
    ),
    "drawn by a seed": lambda: numbers().map(drawn).batch(4),
    "a table": looked_up,
    "a variable": with_variable,
    "a condition": lambda: numbers().map(by_condition).batch(4),
    "batches": lambda: numbers().batch(4).map(lambda n: tf.one_hot(n, 3)).prefetch(1),
    "both": lambda: (
        numbers()
        .map(pair)
        .batch(4)
        .map(lambda d: (d["x"][:, None] + tf.ones([1, 3]), d["y"]), AUTOTUNE)
        .repeat(2)
        .map(lambda x, y: {"of a row": x / tf.reduce_sum(x, 1, keepdims=True), "y": y})
        .prefetch(1)
    ),
    "cached before": lambda: numbers().map(squared).cache().map(lambda x: x + 1).batch(4),
}


def batches_of(dataset: Any) -> list[Any]:
    return [tf.nest.map_structure(lambda t: t.numpy().tolist(), batch) for batch in dataset]


def joined(parts: LastMaps) -> Any:
    """Return the pipeline of the parts."""

    def mapped(_: Any, element: Any) -> Any:
        flat, compute = tf.nest.flatten(element), parts.of_rows.compute
        found = flat if compute is None else compute(flat)
        return tf.nest.pack_sequence_as(parts.row_spec, found)

    def mapped_batch(*batch: Any) -> Any:
        assert parts.of_batches.compute is not None
        found = parts.of_batches.compute(tf.nest.flatten(batch))
        return tf.nest.pack_sequence_as(parts.spec, found)

    # An element that is a tuple is one argument here.
    rows = parts.elements.enumerate().map(mapped)
    batches = rows.batch(parts.batch_size, drop_remainder=parts.drops_rest)
    if parts.of_batches.compute is not None:
        batches = batches.map(mapped_batch)
    return parts.finish(batches)


@pytest.mark.parametrize("name", PIPELINES)
def test_the_parts_make_the_same_batches(name: str) -> None:
    dataset = PIPELINES[name]()
    again = joined(LastMaps.of(dataset, is_row_wise))
    # Another iteration of a shuffle has another order, in both alike.
    np.testing.assert_equal(batches_of(again), batches_of(PIPELINES[name]()))
    assert dataset.cardinality().numpy() == again.cardinality().numpy()


def test_the_order_of_a_shuffle_goes_on() -> None:
    """A dataset and the one that is made of its parts count their iterations together."""
    dataset, expected = PIPELINES["shuffled"](), PIPELINES["shuffled"]()
    again = joined(LastMaps.of(dataset, is_row_wise))
    orders = [batches_of(again), batches_of(dataset), batches_of(again)]
    assert orders == [batches_of(expected) for _ in range(3)]
    assert orders[0] != orders[1] != orders[2]


def test_options_and_parallel_calls_are_kept() -> None:
    options = tf.data.Options()
    options.threading.private_threadpool_size = 3
    parts = LastMaps.of(numbers().with_options(options).map(squared).batch(4), is_row_wise)
    assert joined(parts).options().threading.private_threadpool_size == 3
    for counts, most in (((None,), None), ((2, 5, None), 5), ((2, AUTOTUNE, 3), -1)):
        dataset = numbers()
        for count in counts:
            dataset = dataset.map(lambda x: x + 1, num_parallel_calls=count)
        assert LastMaps.of(dataset.batch(4), is_row_wise).of_rows.num_parallel == most


def by_chance() -> Any:
    options = tf.data.Options()
    options.deterministic = False
    return numbers().with_options(options).map(squared, AUTOTUNE).batch(4)


def with_python(number: Any) -> Any:
    return tf.ensure_shape(tf.py_function(lambda x: x, [number], tf.int64), [])


def counting() -> Any:
    counter = tf.Variable(0, dtype=tf.int64)
    return numbers().map(lambda number: number + counter.assign_add(1)).batch(4)


def of_a_generator() -> Any:
    generator = tf.random.Generator.from_seed(1)
    return numbers().map(lambda number: generator.uniform([3])).batch(4)


def in_a_condition(number: Any) -> Any:
    return tf.cond(number > 3, lambda: tf.random.uniform([]), lambda: tf.zeros([]))


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "no map": (lambda: numbers().shuffle(3, seed=1).batch(4), r"no map comes .* \.shuffle\(\)"),
    "a shuffle behind the map": (
        lambda: numbers().map(squared).shuffle(3, seed=1).batch(4),
        r"no map comes .* \.shuffle\(\)",
    ),
    "a cache behind the map": (lambda: numbers().map(squared).cache().batch(4), r"\.cache\(\)"),
    "no batch": (
        lambda: numbers().map(squared),
        r"does not end with \.batch\(\), but with \.range",
    ),
    "a map of the batch": (
        lambda: numbers().map(squared).batch(4).map(lambda x: x - tf.reduce_mean(x)),
        "a map behind its .batch.. may use other rows",
    ),
    "a map of batches of one size": (
        lambda: numbers().batch(4, drop_remainder=True).map(tf.negative),
        "a map behind its .batch.. is made for one size",
    ),
    "a map of batches to any size": (
        lambda: numbers().batch(4).map(lambda n: n[None, :]),
        "a map behind its .batch.. has tensors without fixed shapes",
    ),
    "a draw behind": (
        lambda: numbers().map(squared).batch(4).map(lambda x: x + tf.random.uniform([])),
        "RandomUniform",
    ),
    "padded": (lambda: numbers().map(squared).padded_batch(4), r"but with \.padded_batch\(\)"),
    "drawn": (lambda: numbers().map(lambda _: tf.random.uniform([])).batch(4), "RandomUniform"),
    "drawn in a condition": (lambda: numbers().map(in_a_condition).batch(4), "RandomUniform"),
    "of a generator": (of_a_generator, "RngReadAndSkip"),
    "counted": (counting, "AssignAddVariableOp"),
    "Python": (lambda: numbers().map(with_python).batch(4), "EagerPyFunc"),
    "any order": (by_chance, "options leave the order of its elements to chance"),
    "any order of a map": (
        lambda: numbers().map(squared, num_parallel_calls=2, deterministic=False).batch(4),
        "a map leaves the order of its elements to chance",
    ),
    "any size": (
        lambda: numbers().map(lambda number: tf.range(number % 1)).batch(4),
        r"what it maps to has no fixed shape \(\(None,\)\)",
    ),
    "ragged": (
        lambda: numbers().map(lambda n: tf.RaggedTensor.from_tensor([[n]])).batch(4),
        "what it maps to are not tensors alone",
    ),
    "any size before": (
        lambda: numbers().map(lambda n: tf.range(n)).cache().map(tf.size).batch(4),
        r"what it maps has no fixed shape \(\(None,\)\)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_pipelines_are_refused(name: str) -> None:
    make, reason = REFUSED[name]
    with pytest.raises(CannotSplitError, match=reason):
        LastMaps.of(make(), is_row_wise)
