"""Sizes, positions and counts that a step reduces from its batch, against one device.

Each case takes samples ``x`` [B, 7] and integers ``n`` [B] from 1 to 5, and uses a reduction over
the batch as it is: no modulus, no clipping. The devices have unlike integers, so that the reduction
of one device is not that of the batch.
"""

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

from .candidates import MakePlace, Place, make_candidate
from .harness import THREE, agree_in_fit
from .test_written_steps import PLANS

Step = Callable[[Any, Any], Any]
WIDTH = 7
CASES: dict[str, Step] = {}


def case(step: Step) -> Step:
    CASES[step.__name__] = step
    return step


def longest(n: Any) -> Any:
    return tf.reduce_max(n)


def total(n: Any) -> Any:
    """Return a sum over the batch that stays between 1 and 6."""
    return tf.reduce_sum(tf.where(n == longest(n), 1, 0)) // tf.size(n) + longest(n)


@case
def last_step_of_padded_batch(x: Any, n: Any) -> Any:
    return x[:, tf.reduce_max(n) - 1]


@case
def first_step_of_padded_batch(x: Any, n: Any) -> Any:
    return x[:, tf.reduce_min(n)]


@case
def columns_up_to(x: Any, n: Any) -> Any:
    return x[:, : tf.reduce_max(n)]


@case
def columns_from(x: Any, n: Any) -> Any:
    return x[:, WIDTH - tf.reduce_max(n) :]


@case
def position_by_sum(x: Any, n: Any) -> Any:
    return x[:, tf.reduce_sum(n) % WIDTH]


@case
def position_by_sum_of_few(x: Any, n: Any) -> Any:
    return x[:, total(n)]


@case
def slice_at(x: Any, n: Any) -> Any:
    return tf.slice(x, [0, tf.reduce_min(n)], [-1, 2])


@case
def slice_of_size(x: Any, n: Any) -> Any:
    return tf.slice(x, [0, 1], [tf.shape(x)[0], tf.reduce_max(n)])


@case
def repeat(x: Any, n: Any) -> Any:
    return tf.repeat(x, tf.reduce_max(n), axis=1)


@case
def tile(x: Any, n: Any) -> Any:
    return tf.tile(x, [1, tf.reduce_max(n)])


@case
def broadcast(x: Any, n: Any) -> Any:
    return tf.broadcast_to(x[:, :1], [tf.shape(x)[0], tf.reduce_max(n)])


@case
def ones_of_batch(x: Any, n: Any) -> Any:
    return tf.ones([tf.shape(x)[0], tf.reduce_max(n)], x.dtype) * x[:, :1]


@case
def zeros_returned(x: Any, n: Any) -> Any:
    return tf.zeros([tf.shape(x)[0], tf.reduce_max(n)], x.dtype), x


@case
def padded_to_fixed_length(x: Any, n: Any) -> Any:
    cut = x[:, : tf.reduce_max(n)]
    return tf.pad(cut, [[0, 0], [0, WIDTH - tf.reduce_max(n)]])


@case
def scattered_into_bins(x: Any, n: Any) -> Any:
    bins = tf.reduce_max(n) + 1
    return tf.math.unsorted_segment_sum(x, n, bins), tf.scatter_nd(n[:, None], x, [bins, WIDTH])


@case
def one_hot_of_largest(x: Any, n: Any) -> Any:
    return tf.one_hot(n, tf.reduce_max(n) + 1, dtype=x.dtype) * x[:, :1]


@case
def mask_of_lengths(x: Any, n: Any) -> Any:
    mask = tf.sequence_mask(n, tf.reduce_max(n), dtype=x.dtype)
    return tf.reduce_sum(x[:, : tf.reduce_max(n)] * mask, 1)


@case
def matrix_of_range(x: Any, n: Any) -> Any:
    return x[:, :1] * tf.cast(tf.range(tf.reduce_max(n)), x.dtype)


@case
def gathered_column(x: Any, n: Any) -> Any:
    return tf.gather(x, tf.reduce_max(n), axis=1)


@case
def rolled(x: Any, n: Any) -> Any:
    return tf.roll(x, tf.reduce_max(n), axis=1)


@case
def loop_of_longest(x: Any, n: Any) -> Any:
    def add(k: Any, state: Any) -> Any:
        return [k + 1, tf.tanh(state) + x[:, k]]

    return tf.while_loop(
        lambda k, _: k < tf.reduce_max(n),
        add,
        [0, tf.zeros_like(x[:, 0])],
        maximum_iterations=WIDTH,
    )[1]


@case
def column_in_a_loop(x: Any, n: Any) -> Any:
    last = tf.reduce_max(n)

    def add(k: Any, state: Any) -> Any:
        return k + 1, tf.tanh(state) + x[:, last - 1] * x[:, k]

    return tf.while_loop(lambda k, _: k < 3, add, [0, tf.zeros_like(x[:, 0])])[1]


@case
def chosen_by_condition(x: Any, n: Any) -> Any:
    last = tf.reduce_max(n)
    return tf.cond(last > 3, lambda: x[:, last] * 2.0, lambda: tf.tanh(x[:, last]))


@case
def top_of_each(x: Any, n: Any) -> Any:
    return tf.math.top_k(x, tf.reduce_max(n)).values


@case
def split_of_columns(x: Any, n: Any) -> Any:
    left, right = tf.split(x, [tf.reduce_max(n), WIDTH - tf.reduce_max(n)], axis=1)
    return tf.reduce_sum(left, 1) - tf.reduce_mean(right, 1)


@case
def reshaped_by_count(x: Any, n: Any) -> Any:
    wide = tf.repeat(x, tf.reduce_max(n), axis=1)
    return tf.reduce_max(tf.reshape(wide, [-1, WIDTH, tf.reduce_max(n)]), 2)


# A reduction over the batch at a position that is one.


@case
def sum_at_sum(x: Any, n: Any) -> Any:
    return tf.reduce_sum(x, 0)[tf.reduce_sum(tf.where(n > 0, n, 0)) % WIDTH] + tf.reduce_sum(x)


@case
def sum_at_few(x: Any, n: Any) -> Any:
    return tf.reduce_sum(x, 0)[tf.reduce_sum(tf.cast(n == longest(n), tf.int32)) - 1 :][0] * 2.0


@case
def slice_of_sum(x: Any, n: Any) -> Any:
    begin = tf.reduce_sum(tf.cast(n > 5, tf.int32)) + 1
    return tf.slice(tf.reduce_sum(x, 0), [begin], [2])


@case
def slice_of_sum_by_sum(x: Any, n: Any) -> Any:
    count = tf.reduce_sum(tf.cast(n > 0, tf.int32))
    return tf.slice(tf.reduce_sum(tf.tile(x, [1, 5]), 0), [count], [2])


@case
def integers_at_integers(x: Any, n: Any) -> Any:
    sums = tf.reduce_sum(n[:, None] * tf.range(40), 0)
    return tf.slice(sums, tf.reshape(tf.reduce_sum(tf.ones_like(n)), [1]), [3])


@case
def sum_split_at_sum(x: Any, n: Any) -> Any:
    count = tf.reduce_sum(tf.ones_like(n))
    wide = tf.reduce_sum(tf.tile(x, [1, 5]), 0)
    return tf.split(wide, [count, 5 * WIDTH - count])[1]


# Integers that round.


@case
def mean_of_integers(x: Any, n: Any) -> Any:
    return tf.reduce_mean(tf.reduce_sum(n[:, None] * tf.constant([1, 2, 4]), 0))


@case
def mean_of_integers_over_both(x: Any, n: Any) -> Any:
    return tf.reduce_mean(n[:, None] * tf.constant([1, 2, 4])), tf.reduce_mean(n)


@case
def quotient_of_integers(x: Any, n: Any) -> Any:
    return tf.raw_ops.Div(x=tf.reduce_sum(n), y=3), tf.reduce_sum(n) // 2


@case
def cast_of_sum(x: Any, n: Any) -> Any:
    return tf.cast(tf.reduce_sum(x, 0), tf.int32), tf.cast(tf.reduce_sum(n), tf.float64) / 3.0


@case
def truncated_quotients(x: Any, n: Any) -> Any:
    return tf.truncatediv(-tf.reduce_sum(n), 4), tf.math.floormod(tf.reduce_sum(n), 3)


# Sizes that can be 0.


@case
def unbiased_mean(x: Any, n: Any) -> Any:
    return tf.reduce_sum(x, 0) / tf.cast(tf.shape(x)[0] - 1, x.dtype)


@case
def sum_by_samples_over_three(x: Any, n: Any) -> Any:
    return tf.reduce_sum(x) / tf.cast(tf.maximum(tf.shape(x)[0] - 3, 0), x.dtype)


@case
def sum_by_pairs(x: Any, n: Any) -> Any:
    rows = tf.shape(x)[0]
    return tf.reduce_sum(x, 0) / tf.cast(rows * (rows - 1), x.dtype)


@case
def sum_times_size_of_nothing(x: Any, n: Any) -> Any:
    rest = tf.cast(tf.shape(x)[0] - 1, x.dtype)
    return tf.reduce_sum(x * 1e308 * 1e3, 0) * rest, tf.math.divide_no_nan(tf.reduce_sum(x), rest)


# A device without samples skips the solver, and needs the size of the counts for what it gives.


@case
def solved_beside_counts(x: Any, n: Any) -> Any:
    bands = tf.ones([2, WIDTH], x.dtype) * tf.cast(longest(n), x.dtype)
    solved = tf.linalg.banded_triangular_solve(bands, x[:, :, None])
    return solved, tf.math.bincount(n[:, None], axis=-1)


def samples(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return samples and integers of which the largest is seldom."""
    rng = np.random.default_rng(size)
    n = rng.integers(1, 4, size).astype("int32")
    n[rng.integers(size)] = 5
    return rng.normal(size=(size, WIDTH)), n


def with_gradient(step: Step) -> Callable[..., Any]:
    """Return a step that gives its results and the gradient by the samples and by a weight."""

    def of_batch(x: Any, n: Any) -> Any:
        weight = tf.ones([WIDTH], tf.float64)
        with tf.GradientTape() as tape:
            tape.watch([x, weight])
            results = tf.nest.flatten(step(x * weight, n))
            loss = tf.add_n(
                [tf.reduce_sum(tf.sin(y)) for y in results if y.dtype.is_floating]
                or [tf.zeros([], tf.float64)]
            )
        gradients = tape.gradient(loss, [x, weight], unconnected_gradients="zero")
        return [*results, *gradients]

    return of_batch


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        pytest.param(name, plan, id=f"{name}-{plan}")
        for name, plan in zip(CASES, itertools.cycle(PLANS), strict=False)
    ],
)
def test_equals_one_device(name: str, plan: str) -> None:
    expected = with_gradient(CASES[name])
    actual = evener.distribute(expected, plan=PLANS[plan])
    for size in (24, 9, 2, 1):
        x, n = map(tf.constant, samples(size))
        pairs = zip(expected(x, n), actual(x, n), strict=True)
        for index, (left, right) in enumerate(pairs):
            np.testing.assert_allclose(
                right, left, rtol=1e-9, atol=1e-12, err_msg=f"result {index} of {size} samples"
            )
            assert left.dtype == right.dtype


# The doors, with the commonest case: the last step of padded sequences.


@keras.saving.register_keras_serializable("tests")
class LastStep(keras.layers.Layer):
    """Takes the last step that any sequence of the batch has."""

    def call(self, inputs: Any) -> Any:
        x, lengths = inputs
        return x[:, tf.reduce_max(lengths) - 1]


def sequence_model() -> keras.Model:
    x, n = keras.Input([WIDTH, 3], name="x"), keras.Input([], dtype="int32", name="n")
    hidden = keras.layers.Dense(5, activation="tanh")(x)
    return keras.Model([x, n], keras.layers.Dense(2)(LastStep()([hidden, n])))


def sequences() -> Any:
    rng = np.random.default_rng(3)
    n = rng.integers(1, 4, 30).astype("int32")
    n[::7] = 6
    x = rng.normal(size=(30, WIDTH, 3)).astype("float32")
    y = rng.normal(size=(30, 2)).astype("float32")
    return tf.data.Dataset.from_tensor_slices(((x, n), y)).batch(8)


def one_device_in_micro_batches(num_devices: int, shares: object) -> Place:
    return evener.Strategy(Plan.data_parallel(["cpu:0"], num_micro_batches=3))


@pytest.mark.parametrize("make_place", [make_candidate, one_device_in_micro_batches])
def test_fit(make_place: MakePlace) -> None:
    agree_in_fit(sequence_model, [sequences()], {"loss": "mse"}, THREE, make_place=make_place)


@pytest.mark.parametrize("kind", ["compiled", "fixed"])
def test_compiled_and_of_a_fixed_size(kind: str) -> None:
    def step(x: Any, n: Any) -> Any:
        rows = x.shape[0] if kind == "fixed" else 1
        return tf.tanh(x[:, tf.reduce_max(n) - 1]) / rows, tf.reduce_sum(x[:, tf.reduce_min(n)])

    by_one = tf.function(step, jit_compile=kind == "compiled")
    by_three = evener.distribute(
        tf.function(step, jit_compile=True) if kind == "compiled" else step, plan=PLANS["3"]
    )
    for size in (24, 9):
        x, n = samples(size)
        for left, right in zip(by_one(x, n), by_three(x, n), strict=True):
            np.testing.assert_allclose(right, left, rtol=1e-9)
