"""Loops over the samples, as `tf.map_fn` makes them, and loops that only look like them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import evener
from evener import Plan
from evener.errors import EvenerWarning
from evener.graph.trace import trace_step

from .test_written_steps import PLANS

Step = Callable[[Any, Any], Any]
WIDTH = 4
OVER_ROWS: dict[str, Step] = {}
NOT_OVER_ROWS: dict[str, Step] = {}


def over_rows(step: Step) -> Step:
    """Register a step whose loops the parts run, each over its own rows."""
    OVER_ROWS[step.__name__] = step
    return step


def not_over_rows(step: Step) -> Step:
    """Register a step with a loop that is computed once."""
    NOT_OVER_ROWS[step.__name__] = step
    return step


def num(x: Any) -> Any:
    return tf.shape(x)[0]


@over_rows
def rows(x: Any, w: Any) -> Any:
    return tf.map_fn(lambda r: tf.tanh(r) * w, x)


@over_rows
def pairs_of_rows(x: Any, w: Any) -> Any:
    given = (x, tf.reverse(x, [1]))
    return tf.map_fn(lambda p: tf.sin(p[0]) * w + p[1], given, fn_output_signature=x.dtype)


@over_rows
def several_results(x: Any, w: Any) -> Any:
    signature = (x.dtype, x.dtype)
    return tf.map_fn(lambda r: (r * w, tf.reduce_sum(r)), x, fn_output_signature=signature)


@over_rows
def one_behind_another(x: Any, w: Any) -> Any:
    return tf.map_fn(lambda r: tf.sin(r) * w, tf.map_fn(lambda r: tf.tanh(r) + w, x))


@over_rows
def one_in_another(x: Any, w: Any) -> Any:
    return tf.map_fn(lambda r: tf.map_fn(lambda q: q * tf.exp(q), r), x) * w


@over_rows
def two_rows_of_a_sample(x: Any, w: Any) -> Any:
    return tf.map_fn(lambda r: tf.tanh(r) * w[:2], tf.reshape(x, [-1, 2]))


@over_rows
def with_the_number_of_the_row(x: Any, w: Any) -> Any:
    def of_row(k: Any) -> Any:
        return tf.tanh(x[k]) * w * tf.cast(k + 1, x.dtype)

    return tf.map_fn(of_row, tf.range(num(x)), fn_output_signature=x.dtype)


@over_rows
def with_a_row_of_others(x: Any, w: Any) -> Any:
    """Every part gets a tensor whole if a row reads other rows of it."""

    def of_row(k: Any) -> Any:
        return tf.tanh(x[num(x) - 1 - k]) * w

    return tf.map_fn(of_row, tf.range(num(x)), fn_output_signature=x.dtype)


@over_rows
def less_the_mean_of_the_batch(x: Any, w: Any) -> Any:
    return tf.map_fn(lambda r: tf.tanh(r * w - tf.reduce_mean(x)), x)


@over_rows
def numbers_by_a_seed(x: Any, w: Any) -> Any:
    def of_row(given: tuple[Any, Any]) -> Any:
        row, k = given
        return row * w * tf.random.stateless_uniform([WIDTH], tf.stack([k, 7]), dtype=row.dtype)

    return tf.map_fn(of_row, (x, tf.range(num(x))), fn_output_signature=x.dtype)


@over_rows
def an_array_that_is_written(x: Any, w: Any) -> Any:
    array = tf.TensorArray(x.dtype, size=num(x))
    for k in tf.range(num(x)):
        array = array.write(k, tf.tanh(x[k]) * w)
    return array.stack()


@over_rows
def a_sum_of_rows(x: Any, w: Any) -> Any:
    total = tf.ones([WIDTH], x.dtype)
    for k in tf.range(num(x)):
        total += tf.tanh(x[k]) * w
    return total


@over_rows
def vectorized(x: Any, w: Any) -> Any:
    return tf.vectorized_map(lambda r: tf.tanh(r) * w, x)


@not_over_rows
def scanned(x: Any, w: Any) -> Any:
    return tf.scan(lambda total, r: tf.tanh(total + r) * w, x)


@not_over_rows
def folded(x: Any, w: Any) -> Any:
    return tf.foldl(lambda total, r: tf.tanh(total + r) * w, x)


@not_over_rows
def one_row_carried_to_the_next(x: Any, w: Any) -> Any:
    array, before = tf.TensorArray(x.dtype, size=num(x)), tf.zeros([WIDTH], x.dtype)
    for k in tf.range(num(x)):
        array = array.write(k, x[k] * w + before)
        before = x[k]
    return array.stack()


@not_over_rows
def written_in_another_order(x: Any, w: Any) -> Any:
    array = tf.TensorArray(x.dtype, size=num(x))
    for k in tf.range(num(x)):
        array = array.write(num(x) - 1 - k, x[k] * w)
    return array.stack()


@not_over_rows
def another_row_read(x: Any, w: Any) -> Any:
    array = tf.TensorArray(x.dtype, size=num(x), clear_after_read=False).unstack(x)
    written = tf.TensorArray(x.dtype, size=num(x))
    for k in tf.range(num(x)):
        written = written.write(k, array.read(num(x) - 1 - k) * w)
    return written.stack()


@not_over_rows
def an_earlier_result_read(x: Any, w: Any) -> Any:
    array = tf.TensorArray(x.dtype, size=num(x), clear_after_read=False)
    array = array.unstack(x)
    for k in tf.range(num(x)):
        array = array.write(k, array.read(tf.maximum(k - 1, 0)) * w)
    return array.stack()


@not_over_rows
def until_a_row_says_so(x: Any, w: Any) -> Any:
    array, k = tf.TensorArray(x.dtype, size=num(x), element_shape=[WIDTH]), 0
    go_on = tf.constant(True)
    while k < num(x) and go_on:
        array = array.write(k, x[k] * w)
        go_on = x[k, 0] < 0.5
        k += 1
    return tf.reduce_sum(array.stack()[:k], 0)


@not_over_rows
def from_the_second_row(x: Any, w: Any) -> Any:
    array, k = tf.TensorArray(x.dtype, size=num(x), element_shape=[WIDTH]), 1
    array = array.write(0, w)
    while k < num(x):
        array = array.write(k, x[k] * w)
        k += 1
    return array.stack()


@not_over_rows
def a_product_of_rows(x: Any, w: Any) -> Any:
    product = tf.ones([WIDTH], x.dtype)
    for k in tf.range(num(x)):
        product = product * (1.0 + 0.1 * x[k] * w)
    return product


def with_gradient(step: Step) -> Step:
    def both(x: Any, w: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            results = tf.nest.flatten(step(x, w))
            loss = tf.add_n([tf.reduce_sum(tf.square(y)) for y in results])
        gradients = tape.gradient(loss, [x, w], unconnected_gradients="zero")
        return [*results, *map(tf.convert_to_tensor, gradients)]

    return both


def samples(size: int) -> tuple[tf.Tensor, tf.Tensor]:
    rng = np.random.default_rng(size)
    return tf.constant(rng.normal(size=[size, WIDTH])), tf.constant(rng.normal(size=[WIDTH]))


def loops(step: Step) -> list[bool]:
    """Return of the loops of a step in graph mode whether they are over rows."""
    specs = [tf.TensorSpec([None, WIDTH], tf.float64), tf.TensorSpec([WIDTH], tf.float64)]
    graph = trace_step(step, specs, (0, None), autograph=True).graph
    return [node.row_loop is not None for node in graph if "While" in node.op]


CASES = [
    pytest.param(name, plan, id=f"{name}-{plan}")
    for name, plan in zip(OVER_ROWS | NOT_OVER_ROWS, itertools.cycle(["5", "cut"]), strict=False)
]


@pytest.mark.parametrize(("name", "plan"), CASES)
def test_equals_one_device(name: str, plan: str) -> None:
    expected = with_gradient((OVER_ROWS | NOT_OVER_ROWS)[name])
    actual = evener.distribute(expected, plan=PLANS[plan], in_axes=(0, None))
    for size in (24, 9, 2, 1):
        pairs = zip(expected(*samples(size)), actual(*samples(size)), strict=True)
        for index, (left, right) in enumerate(pairs):
            np.testing.assert_allclose(
                right, left, rtol=1e-9, atol=1e-12, err_msg=f"result {index} of {size} samples"
            )


@pytest.mark.parametrize("name", ["rows", "a_sum_of_rows"])
def test_loops_of_gradients_are_over_rows(name: str) -> None:
    assert loops(with_gradient(OVER_ROWS[name])) == [True, True]


@pytest.mark.parametrize("name", OVER_ROWS)
def test_parts_run_loops_over_rows(name: str) -> None:
    step = evener.distribute(OVER_ROWS[name], plan=PLANS["3"], in_axes=(0, None))
    step(*samples(9))
    assert all(loops(OVER_ROWS[name]))
    assert not step.report().gathered


@pytest.mark.parametrize("name", NOT_OVER_ROWS)
def test_other_loops_are_computed_once(name: str) -> None:
    step = evener.distribute(NOT_OVER_ROWS[name], plan=PLANS["3"], in_axes=(0, None))
    step(*samples(9))
    assert any("While" in entry.operation for entry in step.report().gathered)


def test_numbers_that_are_drawn_row_by_row() -> None:
    """A generator gives one number after another: the loop is computed once."""

    def drawn(x: Any, generator: tf.random.Generator) -> Any:
        return tf.map_fn(lambda r: r + generator.uniform([WIDTH], dtype=r.dtype), x)

    x, _ = samples(9)
    single, three = (tf.random.Generator.from_seed(3) for _ in range(2))
    step = evener.distribute(lambda x: drawn(x, three), plan=PLANS["3"])
    for _ in range(2):
        np.testing.assert_array_equal(step(x), tf.function(drawn)(x, single))


def test_rows_of_sizes_that_only_a_row_knows() -> None:
    """Without rows a part cannot tell how large one is: the results are joined as a list."""

    def step(x: Any, w: Any) -> Any:
        size = tf.cast(tf.reduce_sum(w * 0.0), tf.int32) + 3
        return tf.map_fn(lambda r: tf.fill([size + tf.size(r)], r[0]), x)

    actual = evener.distribute(step, plan=PLANS["5"], in_axes=(0, None))
    for size in (9, 1):
        x, w = samples(size)
        np.testing.assert_array_equal(actual(x, w), tf.function(step)(x, w))


def test_compiled_by_xla() -> None:
    """XLA makes lists of sizes that are known when it compiles: the loop is computed once."""
    step = tf.function(rows, jit_compile=True)
    actual: Any = evener.distribute(step, plan=PLANS["3"], in_axes=(0, None))
    x, w = samples(9)
    with pytest.warns(EvenerWarning, match="ENG-082"):
        results = actual(x, w)
    np.testing.assert_allclose(results, step(x, w), rtol=1e-9)


@keras.saving.register_keras_serializable("tests")
class EachRow(keras.layers.Layer):
    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=shape[1:], initializer="ones")

    def call(self, x: Any) -> Any:
        return tf.map_fn(lambda row: tf.tanh(row * self.scale), x)


def fit(strategy: evener.Strategy | None) -> list[np.ndarray]:
    """Return the weights of a model with a loop over rows, trained under a strategy or without."""
    x = np.random.default_rng(0).normal(size=[23, WIDTH]).astype("float32")
    keras.utils.set_random_seed(1)
    with tf.distribute.get_strategy().scope() if strategy is None else strategy.scope():
        layers = [
            keras.layers.Dense(6, name="a"),
            EachRow(name="rows"),
            keras.layers.Dense(1, name="b"),
        ]
        model = keras.Sequential([keras.Input([WIDTH]), *layers])
        model.compile("sgd", "mse")
    model.fit(x, x[:, :1], batch_size=8, epochs=2, verbose=0)
    return model.get_weights()


FIRST, LAST = {"cpu:0": ["a", "rows"], "cpu:1": ["b"]}, {"cpu:0": ["a"], "cpu:1": ["rows", "b"]}


@pytest.mark.parametrize(
    "plan",
    [
        Plan.data_parallel(["cpu:0", "cpu:1", "cpu:2"], shares=[5, 0, 3]),
        Plan.pipeline(FIRST, num_micro_batches=4),
        Plan.pipeline(FIRST, num_micro_batches=2, recompute=["rows"]),
        Plan.pipeline(LAST, num_micro_batches=4, schedule="gpipe"),
    ],
    ids=["data_parallel", "stages", "recompute", "gpipe"],
)
def test_fit(plan: Plan) -> None:
    for left, right in zip(fit(None), fit(evener.Strategy(plan)), strict=True):
        np.testing.assert_allclose(right, left, rtol=1e-5, atol=1e-6)
