"""Steps at the edges of what can be partitioned, against one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import evener
from evener.errors import EvenerWarning
from evener.graph.trace import trace_step
from evener.strategy.distribute import _sizes as sizes_of_parts

from .test_written_steps import PLANS

DEVICES = ["cpu:0", "cpu:1", "cpu:2"]


X = np.random.default_rng(0).normal(size=(24, 5)).astype("float32")


IMAGE = np.ones((1, 4, 4, 2), "float32")


def distributed(step: Callable[..., Any], shares: tuple[int, ...] = (13, 4, 7)) -> Any:
    return evener.distribute(step, devices=DEVICES, shares=shares)


def agree(step: Callable[..., Any], x: Any, shares: tuple[int, ...] = (13, 4, 7)) -> None:
    expected = tf.nest.flatten(tf.function(step)(x))
    actual = tf.nest.flatten(distributed(step, shares)(x))
    for wanted, got in zip(expected, actual, strict=True):
        assert wanted.dtype == got.dtype
        np.testing.assert_allclose(wanted, got, rtol=1e-5)


def test_a_sum_in_a_loop_that_starts_from_a_constant() -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        total = tf.constant(3.0)
        for k in tf.range(4):
            total += tf.reduce_sum(x * tf.cast(k, tf.float32))
        return total

    agree(step, X)


def test_a_loop_of_no_rounds_keeps_what_it_was_given() -> None:
    start, rounds = tf.Variable(3.0), tf.Variable(0)

    def step(x: tf.Tensor) -> Any:
        most, every, product = -start, start > 0.0, start * 2.0
        for _ in tf.range(rounds):
            most = tf.reduce_max(x)
            every = tf.reduce_all(x > 0)
            product = tf.reduce_prod(x)
        return most, every, product

    agree(step, X)


def test_counters_of_a_loop_beside_a_convolution_without_samples() -> None:
    kernel = tf.Variable(tf.ones([3, 3, 2, 2]))

    def step(x: tf.Tensor) -> Any:
        y, growth, count = tf.nn.conv2d(x, kernel, 1, "SAME"), tf.constant(1.0), 0
        while growth < 10.0:
            y = y * 0.5 + growth
            growth, count = growth * 1.5, count + 1
        z = y - tf.sort(y, 0)
        while growth < 1000.0:
            z = z + growth
            growth = growth * 2.0
        return count, growth, tf.reduce_sum(y), tf.reduce_sum(z)

    agree(step, IMAGE, shares=(4, 7, 13))


def test_integers_that_overflow() -> None:
    def step(x: tf.Tensor) -> Any:
        seed = tf.constant(123456789) * 1103515245 + 12345
        half = (tf.constant(200, tf.uint8) + tf.constant(100, tf.uint8)) // tf.constant(2, tf.uint8)
        place = (tf.shape(x)[0] * 40503001 * 7919) % 1013
        return seed % 1000, half, place

    agree(step, X)


def test_the_maximum_of_infinities_with_a_part_without_samples() -> None:
    kernel = tf.Variable(tf.ones([3, 3, 2, 2]))

    def step(x: tf.Tensor) -> tf.Tensor:
        found = tf.nn.conv2d(x, kernel, 1, "SAME") > 1e9
        return tf.reduce_max(tf.where(found, 1.0, -np.inf))

    agree(step, IMAGE, shares=(4, 7, 13))


def test_sums_times_infinity_and_over_zero() -> None:
    agree(lambda x: (tf.reduce_sum(x) * np.inf, tf.reduce_sum(x, 0) / 0.0), X)


def test_mirrored_padding_with_parts_without_samples() -> None:
    agree(lambda x: tf.pad(x, [[0, 0], [1, 2]], "REFLECT"), X[:2])


def test_no_samples_at_all() -> None:
    agree(lambda x: (tf.reduce_sum(x), x * 2.0), X[:0])


def test_the_signature_of_a_function_is_kept() -> None:
    @tf.function(input_signature=[tf.TensorSpec([None, 5])])
    def step(x: tf.Tensor) -> Any:
        return x * 2.0, tf.reduce_mean(x)

    double, mean = distributed(step)(X.tolist())
    np.testing.assert_allclose(double, X * 2.0)
    np.testing.assert_allclose(mean, X.mean(), rtol=1e-5)


def test_a_tape_around_the_step_is_right_and_warned_of() -> None:
    step, x = distributed(lambda x: tf.reduce_sum(tf.square(x))), tf.constant(X)
    with pytest.warns(EvenerWarning, match="ENG-081"), tf.GradientTape() as tape:
        tape.watch(x)
        total = step(x)
    np.testing.assert_allclose(tape.gradient(total, x), 2 * X)


def test_ragged_rows_are_traced_once() -> None:
    traces = []

    def step(x: tf.RaggedTensor) -> tf.Tensor:
        traces.append(1)
        return tf.reduce_sum(x.values)

    run = distributed(step)
    for count in (1, 2, 3, 3):
        assert float(run(tf.ragged.constant([[1.0, 2.0], [3.0]] * count))) == 6.0 * count
    assert len(traces) <= 2


def test_two_kinds_of_arguments_are_traced_twice() -> None:
    traces = []

    def step(x: tf.Tensor) -> tf.Tensor:
        traces.append(1)
        return tf.reduce_sum(x)

    run = distributed(step)
    for _ in range(3):
        run(X)
        run(X.astype("float64"))
    assert len(traces) == 2


def test_numbers_that_are_returned_become_tensors() -> None:
    found = distributed(lambda x: {"rows": tf.shape(x)[0], "three": 3})(X)
    assert int(found["three"].numpy()) == 3
    assert int(found["rows"]) == 24


def test_a_step_in_a_loop_keeps_the_static_size() -> None:
    inner = distributed(lambda y: y * 1.0)

    @tf.function
    def outer(x: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, inner(y) * 0.5), [0, x])[1]

    np.testing.assert_allclose(outer(tf.constant(X)), X / 8, rtol=1e-6)


Step = Callable[[Any], Any]


CONSTANT: dict[str, Step] = {
    "by_rank": lambda x: tf.cond(tf.rank(x) == 0, lambda: x, lambda: tf.tanh(x) * x),
    "either": lambda x: tf.cond(
        tf.logical_or(tf.rank(x) == 0, tf.shape(x)[1] == 3),
        lambda: tf.exp(x),
        lambda: tf.nn.softmax(x, 0),
    ),
    "neither": lambda x: tf.cond(
        tf.logical_not(tf.logical_and(tf.rank(x) == 2, tf.shape(x)[0] > 4)),
        lambda: tf.sin(x),
        lambda: tf.cos(x) * tf.reduce_mean(x),
    ),
    "one_in_another": lambda x: tf.cond(
        tf.rank(x) == 2,
        lambda: tf.cond(tf.shape(x)[1] < 2, lambda: x, lambda: tf.square(x) * tf.sin(x)),
        lambda: -x,
    ),
}


IN_BATCH = {"neither"}


"""Those whose answer depends on the size of the batch, which is 9, or 2."""


def with_gradient(step: Step) -> Step:
    def both(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = step(x)
        return y, tape.gradient(y, x)

    return both


@pytest.mark.parametrize("plan", ["5", "cut"])
@pytest.mark.parametrize("name", CONSTANT)
def test_conditions_equal_one_device(name: str, plan: str) -> None:
    step = with_gradient(CONSTANT[name])
    actual = evener.distribute(step, plan=PLANS[plan])
    for size in (9, 2):
        x = tf.constant(np.random.default_rng(size).normal(size=[size, 3]))
        for left, right in zip(tf.function(step)(x), actual(x), strict=True):
            np.testing.assert_allclose(right, left, rtol=1e-9, atol=1e-12)
    if name not in IN_BATCH:
        assert not actual.report().gathered


@pytest.mark.parametrize("name", CONSTANT)
def test_the_branch_that_is_taken_is_there_alone(name: str) -> None:
    specs = [tf.TensorSpec([None, 3], tf.float64)]
    graph = trace_step(with_gradient(CONSTANT[name]), specs, (0,), autograph=True).graph
    ops = [node.op for node in graph]
    assert any("If" in op for op in ops) == (name in IN_BATCH)
    assert ("OptionalGetValue" in ops) is False


def read(x: Any) -> Any:
    return tf.debugging.check_numerics(tf.sqrt(x), "a bad root") * 2.0


def not_read(x: Any) -> Any:
    tf.debugging.check_numerics(tf.sqrt(x), "a bad root")
    return x * 2.0


def of_the_whole_batch(x: Any) -> Any:
    """Parts hold terms of a sum, which may be finite where the sum is not."""
    return tf.debugging.check_numerics(tf.reduce_sum(tf.sqrt(x) * 1e38), "a bad root")


@pytest.mark.parametrize("step", [read, not_read, of_the_whole_batch])
def test_a_bad_row_of_any_part_fails(step: Step) -> None:
    distributed = evener.distribute(step, devices="cpu:3", shares=[4, 0, 3])
    x = np.full([9, 2], 1e-6, "float32")
    np.testing.assert_allclose(distributed(x), step(x), rtol=1e-6)
    assert not distributed.report().gathered
    for row in (0, 8):
        bad = x.copy()
        bad[row] = -1.0
        with pytest.raises(tf.errors.InvalidArgumentError, match="a bad root"):
            distributed(bad)
    if step is of_the_whole_batch:
        with pytest.raises(tf.errors.InvalidArgumentError, match="Inf"):
            distributed(np.ones_like(x))


def statistics(x: Any) -> Any:
    """Reductions over the batch, and the gradients of a loss."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        classes = tf.range(tf.shape(x)[0]) % 8
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(classes, x)
        loss = tf.reduce_mean(losses)
    rows = tf.reshape(x, [-1, 2, 4])
    moments = (*tf.nn.moments(x, [0]), tf.math.reduce_variance(x), tf.math.reduce_std(x))
    means = tf.reduce_mean(x), tf.reduce_mean(rows, 0, keepdims=True), tf.reduce_mean(rows, [0, 1])
    sums = tf.reduce_sum(x / 256, 0), tf.norm(x / 256), tf.nn.l2_loss(x / 256)
    return loss, tape.gradient(loss, x), *moments, *means, *sums


@pytest.mark.parametrize("jit_compile", [True, False])
@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16], ids=lambda dtype: dtype.name)
def test_reductions_are_those_of_one_device(dtype: tf.DType, jit_compile: bool) -> None:
    """The sum of 16,000 numbers around 100 is no float16, their mean is one.

    Without XLA, the kernel of one device adds up float16 in float16, so few numbers and small ones.
    """
    is_wide = jit_compile or dtype == tf.bfloat16
    rows, scale = (2000, 100.0) if is_wide else (80, 0.1)
    numbers = np.random.default_rng(1).normal(loc=scale, scale=scale / 10, size=(rows, 8))
    x = tf.cast(tf.constant(numbers), dtype)
    plain = tf.function(statistics, autograph=False, jit_compile=jit_compile)
    several = evener.distribute(plain, devices=["cpu:0", "cpu:1", "cpu:2"], shares=[5, 0, 3])
    for actual, expected in zip(several(x), plain(x), strict=True):
        assert actual.dtype == expected.dtype == dtype
        actual, expected = (tf.cast(value, tf.float32).numpy() for value in (actual, expected))
        largest = np.abs(expected).max()
        assert np.isfinite(largest)
        np.testing.assert_allclose(actual, expected, rtol=0, atol=0.02 * largest + 1e-6)


def test_a_size_of_the_data_that_nothing_needs() -> None:
    def masked(x: Any) -> Any:
        tf.reduce_sum(tf.boolean_mask(x, x[:, 0] > 0))
        return 2 * x

    step = tf.function(masked, autograph=False, jit_compile=True)
    x = tf.random.stateless_normal([9, 3], [1, 2])
    several = evener.distribute(step, devices=["cpu:0", "cpu:1"], shares=[5, 4])
    np.testing.assert_array_equal(several(x), 2 * x)


ON_THREE, SHARES = ["cpu:0", "cpu:1", "cpu:2"], [5, 0, 3]


START = np.random.default_rng(0).normal(size=[20, 6]) * 0.2


Draw = Callable[[tf.random.Generator], Any]


def noise(generator: tf.random.Generator) -> Any:
    return [generator.normal([64, 20], dtype=tf.float64)]


def noises_of_unlike_rows(generator: tf.random.Generator) -> Any:
    return [generator.normal([rows, 20], dtype=tf.float64) for rows in (64, 24, 3)]


def make_step(draw: Draw) -> tuple[tf.Variable, Callable[..., Any]]:
    """Return a weight and a step that trains it: a loss over all rows, and what is drawn."""
    weight, generator = tf.Variable(START), tf.random.Generator.from_seed(3)

    def step(rate: Any = 0.1) -> Any:
        loss = tf.constant(0.0, tf.float64)
        with tf.GradientTape() as tape:
            for rows in draw(generator):
                y = tf.tanh(rows @ weight)
                y -= tf.reduce_mean(y, 0)
                loss += tf.reduce_mean(tf.square(tf.matmul(y, y, transpose_b=True) - 1.0))
        weight.assign_sub(tf.cast(rate, tf.float64) * tape.gradient(loss, weight))
        return loss, y

    return weight, step


@pytest.mark.parametrize("draw", [noise, noises_of_unlike_rows])
@pytest.mark.parametrize("door", ["run", "eager"])
def test_rows_that_are_drawn_equal_one_device(draw: Draw, door: str) -> None:
    expected, plain = make_step(draw)
    actual, step = make_step(draw)
    single = tf.function(plain)
    strategy = evener.Strategy(devices=ON_THREE, shares=SHARES)
    distributed: Any = evener.distribute(step, devices=ON_THREE, shares=SHARES, in_axes=None)
    rate = tf.constant(0.1)
    several: Any = tf.function(lambda rate: strategy.run(step, (rate,)))
    several = several if door == "run" else distributed
    for _ in range(3):
        for left, right in zip(single(rate), several(rate), strict=True):
            np.testing.assert_allclose(right, left, rtol=1e-9)
    np.testing.assert_allclose(actual, expected, rtol=1e-9)
    report = (strategy if door == "run" else distributed).report()
    assert report.flops_of_parts > 10 * sum(report.flops_once.values())


def test_rows_are_split_by_the_shares() -> None:
    _, step = make_step(noises_of_unlike_rows)
    distributed: Any = evener.distribute(step, devices=ON_THREE, shares=SHARES, in_axes=None)
    distributed(tf.constant(0.1))
    [trace] = distributed._traces.steps
    assert sizes_of_parts(None, trace, distributed._context.controller) == [40, 0, 24]


def test_a_step_without_rows_is_on_the_first_device() -> None:
    distributed: Any = evener.distribute(
        lambda x: x * 2.0, devices=ON_THREE, shares=SHARES, in_axes=None
    )
    assert float(distributed(tf.constant(3.0))) == 6.0
    [trace] = distributed._traces.steps
    assert sizes_of_parts(None, trace, distributed._context.controller) == [1, 0, 0]
