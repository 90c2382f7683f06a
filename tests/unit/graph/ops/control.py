"""Control flow and functions: branches, loops over time and over samples, custom gradients."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from unit.graph.ops.op_case import (
    B,
    OpCase,
    States,
    case,
    gathered_if_sharded,
    i32,
    ints,
    loose,
)


def loop_over_time(x: Any, w: Any) -> Any:
    """Return all states of a recurrence; the time is the second axis."""
    steps = tf.shape(x)[1]
    states = tf.TensorArray(tf.float32, steps)

    def body(step: Any, state: Any, states: Any) -> Any:
        state = tf.tanh(x[:, step] + tf.matmul(state, w))
        return step + 1, state, states.write(step, state)

    start = (tf.constant(0), tf.zeros_like(x[:, 0]), states)
    _, last, states = tf.while_loop(lambda step, *_: step < steps, body, start)
    return last, tf.transpose(states.stack(), [1, 0, 2])


def loop_with_unstack(x: Any, w: Any) -> Any:
    """The same with the time first, read from an array of tensors."""
    inputs = tf.TensorArray(tf.float32, tf.shape(x)[0]).unstack(x)

    def body(step: Any, state: Any) -> Any:
        return step + 1, tf.tanh(inputs.read(step) + tf.matmul(state, w))

    start = (tf.constant(0), tf.zeros_like(x[0]))
    return tf.while_loop(lambda step, _: step < tf.shape(x)[0], body, start)[1]


def loop_with_sum(x: Any) -> Any:
    """A number over the whole batch is in the state of the loop."""

    def body(step: Any, scale: Any, state: Any) -> Any:
        return step + 1, tf.reduce_mean(tf.abs(state)), state / (1.0 + scale)

    return tf.while_loop(lambda step, *_: step < 3, body, (0, tf.constant(1.0), x))[1:]


def loop_until(x: Any) -> Any:
    """Loop with a number of rounds that depends on all samples."""
    return tf.while_loop(
        lambda state: tf.reduce_max(tf.abs(state)) > 0.5, lambda state: (state * 0.5,), (x,)
    )[0]


def loop_that_becomes_sharded(x: Any) -> Any:
    """The state begins replicated and becomes sharded in the loop."""
    start = tf.zeros([tf.shape(x)[0], 4])
    return tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, y + x * 2), (0, start))[1]


def loop_from_a_size(x: Any) -> Any:
    """A partial sum begins with the number of samples: that is added once, and not by each part."""
    total = lambda i, y: (i + 1, y + tf.reduce_sum(x))  # noqa: E731
    return tf.while_loop(lambda i, _: i < 3, total, (0, tf.shape(x)[0]))[1]


def loop_with_terms(x: Any, y: Any) -> Any:
    """Every round adds to a sum over the batch what all parts have; or takes it away."""

    def body(i: Any, total: Any, rows: Any) -> Any:
        number = tf.cast(i, x.dtype)
        return i + 1, 2 - (total + tf.reduce_sum(x) - number), rows + tf.reduce_sum(x, 0) + y

    start = (0, tf.zeros([], x.dtype), tf.zeros([4], x.dtype))
    return tf.while_loop(lambda i, *_: i < 3, body, start)[1:]


def branch_with_term(x: Any, y: Any) -> Any:
    """As in a loop, one part adds the term."""
    return tf.cond(
        tf.shape(x)[1] > 2,
        lambda: tf.add_n([tf.reduce_sum(x, 0), y]),
        lambda: 1 - tf.reduce_sum(x, 0),
    )


def loop_over_samples(x: Any) -> Any:
    """A running sum over the samples, one after the other."""
    total = tf.shape(x)[0]
    return tf.while_loop(
        lambda i, _: i < total, lambda i, y: (i + 1, tf.tanh(y + x[i])), (0, tf.zeros([4]))
    )[1]


def branch_of_number(x: Any) -> Any:
    return tf.cond(tf.shape(x)[1] > 2, lambda: x * 2, lambda: x - 1)


def branch_of_sum(x: Any) -> Any:
    return tf.cond(tf.reduce_sum(x) > 0, lambda: tf.exp(x), lambda: x * 3)


def branch_of_replicated(x: Any, y: Any) -> Any:
    return tf.cond(tf.reduce_sum(y) > 0, lambda: x * y, lambda: x + y)


def branch_with_sum(x: Any) -> Any:
    """One branch gives a partial sum, the other a constant."""
    return tf.cond(
        tf.shape(x)[1] > 2, lambda: tf.reduce_sum(x, 0), lambda: tf.zeros([tf.shape(x)[1]])
    )


def switch(x: Any, i: Any) -> Any:
    branches = [lambda: x * 2, lambda: tf.sin(x), lambda: tf.zeros_like(x)]
    return tf.switch_case(i[0], branches)


@tf.function(autograph=False)
def inner(x: Any, w: Any) -> Any:
    return tf.nn.relu(tf.matmul(x, w)), tf.reduce_sum(x, 0)


@tf.function(autograph=False)
def outer(x: Any, w: Any) -> Any:
    y, total = inner(x, w)
    z, _ = inner(y, w)
    return z + total


def twice(x: Any, w: Any) -> Any:
    """One function of sharded and of replicated arguments."""
    return inner(x, w)[0], inner(tf.ones([2, 4]), w)[0]


@tf.custom_gradient
def doubled_gradient(x: Any) -> Any:
    return tf.square(x), lambda dy: 2.0 * dy * x + tf.reduce_mean(dy)


@tf.recompute_grad
def recomputed(x: Any, w: Any) -> Any:
    return tf.tanh(tf.matmul(x, w)) * tf.reduce_mean(x)


def first_gradient_read(states: States) -> str:
    """Expect "gathered" of sharded rows: TensorFlow reads the first number of their gradient."""
    if states[0] is None:
        return "any"
    return gathered_if_sharded(states)


def inner_gradient(x: Any, w: Any) -> Any:
    """A gradient by the inputs, of which the step takes a gradient again."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(tf.tanh(tf.matmul(x, w)), 1)
    return tf.norm(tape.gradient(y, x), axis=1)


def jacobian(x: Any, w: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.tanh(tf.matmul(x, w))
    return tape.batch_jacobian(y, x)


def jacobian_by_weights(x: Any, w: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(w)
        y = tf.reduce_mean(tf.tanh(tf.matmul(x, w)), 0)
    return tape.jacobian(y, w)


def scan(x: Any) -> Any:
    return tf.scan(lambda state, row: tf.tanh(state + row), x, tf.zeros_like(x[0]))


def two_arrays(x: Any) -> Any:
    """An array of tensors of unlike sharding: rows of time and sums over the batch."""
    rows, sums = tf.TensorArray(tf.float32, 3), tf.TensorArray(tf.float32, 3)
    for step in range(3):
        rows = rows.write(step, x[step] * 2)
        sums = sums.write(step, tf.reduce_sum(x[step], 0))
    return rows.stack(), sums.stack(), rows.gather([2, 0])


def assertion(x: Any) -> Any:
    with tf.control_dependencies([tf.debugging.assert_less(tf.reduce_max(x), 100.0)]):
        return tf.identity(x) * 2


ROW_NUMBERS, NUMBERS = i32(B, 4, values=ints(-4, 9)), i32(4, values=ints(-4, 9))

CASES: tuple[OpCase, ...] = (
    loose("loop_over_time", "B 3 4, 4 4", loop_over_time),
    loose("loop_with_unstack", "3 B 4, 4 4", loop_with_unstack),
    loose("loop_with_sum", "B 4", loop_with_sum),
    loose("loop_until", "B 4", loop_until),
    loose("loop_that_becomes_sharded", "B 4", loop_that_becomes_sharded),
    case("loop_from_a_size", [i32(B, 3, values=ints(-4, 9))], loop_from_a_size),
    case("loop_with_terms", "B 4, 4", loop_with_terms),
    loose("loop_with_integers", [ROW_NUMBERS, NUMBERS], loop_with_terms),
    case("branch_with_term", "B 4, 4", branch_with_term),
    loose("loop_over_samples", "B 4", loop_over_samples),
    loose("branch_of_number", "B 4", branch_of_number),
    loose("branch_of_sum", "B 4", branch_of_sum),
    loose("branch_of_replicated", "B 4, 4", branch_of_replicated),
    loose("branch_with_sum", "B 4", branch_with_sum),
    loose("switch", "B 4, int<3 1", switch),
    loose("switch_of_samples", "B 4, int<3 B", switch),
    loose("map_over_samples", "B 4", lambda x: tf.map_fn(tf.nn.softmax, x)),
    loose(
        "map_over_time",
        "3 B 4",
        lambda x: tf.map_fn(lambda row: row * tf.reduce_sum(row, 1, keepdims=True), x),
    ),
    loose(
        "vectorized_map",
        "B 4",
        # (TensorFlow itself fails with a norm, for one row of a batch of unknown size.)
        lambda x: tf.vectorized_map(lambda row: tf.nn.softmax(row) * tf.reduce_sum(row), x),
    ),
    loose("scan_over_time", "3 B 4", scan),
    loose("scan_over_samples", "B 4", scan),
    loose("fold", "3 B", lambda x: tf.foldl(lambda a, row: a * 0.5 + row, x)),
    case("function", "B 4, 4 4", inner),
    case("function_in_function", "B 4, 4 4", outer),
    case("function_twice", "B 4, 4 4", twice),
    case("custom_gradient", "B 4", doubled_gradient),
    case("recomputed", "B 4, 4 4", recomputed, expect_gradient=first_gradient_read),
    case("inner_gradient", "B 4, 4 4", inner_gradient),
    loose("jacobian", "B 3, 3 2", jacobian),
    loose("jacobian_by_weights", "B 3, 3 2", jacobian_by_weights),
    loose("two_arrays", "3 B 2", two_arrays),
    case("assertion", "B 4", assertion),
    case("stop_gradient", "B 4", lambda x: x * tf.stop_gradient(tf.reduce_mean(x, 0))),
    case("prevent_gradient", "B 4", lambda x: tf.identity(x) + tf.stop_gradient(x)),
    loose(
        "numpy_function",
        "B 4",
        lambda x: tf.ensure_shape(tf.numpy_function(lambda v: v * 2, [x], tf.float32), x.shape),
        gradient=False,
    ),
    case("group", "B 4", lambda x: tf.tuple([x * 2, tf.reduce_sum(x, 0)], control_inputs=[x + 1])),
)
