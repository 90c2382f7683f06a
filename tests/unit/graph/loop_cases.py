"""Loops and conditions: functions for `test_inference`."""

from __future__ import annotations

import tensorflow as tf

from unit.graph.inference_case import B, T, case, f32, gradient_of, i32


def loop(body, *start, times=3):
    """A loop whose arguments may change their shapes."""
    shapes = [tf.TensorShape([None] * len(x.shape)) for x in start]
    return tf.while_loop(
        lambda k, *rest: k < times,
        lambda k, *rest: (k + 1, *body(k, *rest)),
        (tf.constant(0), *start),
        shape_invariants=(tf.TensorShape([]), *shapes),
    )[1:]


def sums_of_rows(x):
    total = tf.zeros_like(x[:, 0])
    for k in tf.range(tf.shape(x)[1]):
        total += x[:, k]
    return total


def recurrent(x, w):
    state = tf.zeros([tf.shape(x)[0], 3])
    states = tf.TensorArray(tf.float32, tf.shape(x)[1])
    for k in tf.range(tf.shape(x)[1]):
        state = tf.tanh(x[:, k] @ w + state)
        states = states.write(k, state)
    return tf.transpose(states.stack(), [1, 0, 2])


def collatz(n):
    steps = tf.zeros_like(n)
    while tf.reduce_any(n > 1):
        n = tf.where(n > 1, n // 2, n)
        steps += 1
    return steps


def halving(x):
    def body(k, y):
        return (y[: (tf.shape(y)[0] + 1) // 2],)

    return loop(body, x)


def growing(x):
    return loop(lambda k, y: (tf.concat([y, y * 2.0], 0),), x)


def growing_by_one(x):
    return loop(lambda k, y: (tf.concat([y, y[:1]], 0),), x)


def chain(*xs):
    def body(k, *ys):
        return (tf.concat([ys[0], ys[0][:1]], 0), *ys[:-1])

    return loop(body, *xs, times=9)


def swapped(x, y):
    return loop(lambda k, a, b: (b, a), x, y)


def nested(x):
    def body(k, y):
        (z,) = loop(lambda j, z: (tf.concat([z, z[:1]], 0),), y, times=2)
        return (z[: tf.shape(x)[0]] + 1.0,)

    return loop(body, x)


def half_inside(x):
    """The same number is computed in the loop and, later, outside."""
    (y,) = loop(lambda k, y: (y + tf.reduce_sum(x[: tf.shape(x)[0] // 2]),), x)
    return y, x[: tf.shape(x)[0] // 2], tf.zeros([tf.shape(x)[0] // 2])


def half_in_branch(x):
    if tf.reduce_sum(x) > 0:
        y = tf.reduce_sum(x[: tf.shape(x)[0] // 2])
    else:
        y = tf.constant(1.0)
    return y, x[: tf.shape(x)[0] // 2]


def choose(x):
    if tf.reduce_sum(x) > 0:
        y = x[1:]
        z = tf.shape(x)[0]
    else:
        y = x
        z = tf.shape(x)[0] * 2
    return y, z, tf.zeros([z])


def choose_same(x):
    if tf.reduce_sum(x) > 0:
        y = x * 2.0
        n = tf.shape(x)[0]
    else:
        y = x + 1.0
        n = tf.shape(x)[0]
    return y, tf.zeros([n, 2])


def sizes_in_loop(x):
    n = tf.shape(x)[0]
    m = tf.constant(1)
    for _ in tf.range(3):
        n = n + 1
        m = n
    return tf.zeros([n]), tf.zeros([m])


def mapped(x):
    return tf.map_fn(lambda row: tf.cumsum(row) * 2.0, x)


def vectorized(x):
    return tf.vectorized_map(lambda row: tf.reduce_sum(row) + row, x)


def scanned(x):
    return tf.scan(lambda total, row: total + row, x), tf.foldl(lambda total, row: total + row, x)


def cases_of(x, n):
    return tf.switch_case(n[0] % 3, [lambda: x, lambda: x * 2.0, lambda: x + 1.0])


def cases_of_shapes(x, n):
    return tf.switch_case(n[0] % 2, [lambda: x, lambda: x[1:]])


@tf.function
def inner(x):
    return x[1:], tf.shape(x)[0] * 2


def calls(x):
    y, n = inner(x)
    return y, tf.zeros([n]), inner(y)


@tf.custom_gradient
def custom(x):
    return x * 2.0, lambda dy: dy * 3.0


LOOPS = [
    case("sums_of_rows", sums_of_rows, f32(B, T)),
    case("gradient_of_loop", gradient_of(sums_of_rows), f32(B, T)),
    case("recurrent", recurrent, f32(B, T, 2), f32(2, 3)),
    case("gradient_of_recurrent", gradient_of(recurrent), f32(B, T, 2), f32(2, 3)),
    case("collatz", collatz, i32(B, high=40)),
    case("halving", halving, f32(B, 3)),
    case("growing", growing, f32(B, 3)),
    case("gradient_of_growing", gradient_of(growing), f32(B, 3)),
    case("gradient_of_growing_by_one", gradient_of(growing_by_one), f32(B, 3)),
    case("gradient_of_halving", gradient_of(halving), f32(B, 3)),
    case("chain", chain, *[f32(B, 2)] * 8),
    case("swapped", swapped, f32(B, 3), f32(T, 3)),
    case("swapped_equal", swapped, f32(B, 3), f32(B, 3)),
    case("nested", nested, f32(B, 3)),
    case("half_inside", half_inside, f32(B, 3)),
    case("half_in_branch", half_in_branch, f32(B, 3)),
    case("sizes_in_loop", sizes_in_loop, f32(B)),
    case("mapped", mapped, f32(B, T)),
    case("gradient_of_mapped", gradient_of(mapped), f32(B, T)),
    case("vectorized", vectorized, f32(B, T)),
    case("scanned", scanned, f32(B, T)),
]

CONDITIONS = [
    case("choose", choose, f32(B, 3)),
    case("choose_same", choose_same, f32(B, 3)),
    case("gradient_of_choose", gradient_of(lambda x: choose_same(x)[0]), f32(B, 3)),
    case("cond", lambda x: tf.cond(tf.shape(x)[0] > 2, lambda: x[:2], lambda: x), f32(B, 3)),
    case(
        "gradient_of_cond",
        gradient_of(lambda x: tf.cond(tf.shape(x)[0] > 2, lambda: x[:2], lambda: x)),
        f32(B, 3),
    ),
    case("cases_of", gradient_of(lambda x: cases_of(x, tf.shape(x))), f32(B, 3)),
    case("cases_of_shapes", cases_of_shapes, f32(B, 3), i32(1)),
    case("calls", calls, f32(B, 3)),
    case("custom_gradient", gradient_of(custom), f32(B, 3)),
    case("recomputed", gradient_of(tf.recompute_grad(lambda x: tf.tanh(x) * 2.0)), f32(B, T)),
]
