"""Steps with early writes, unusual types and state that is no variable, on workers that die."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from evener.errors import RunError
from exactness.steps.case import BuiltStep, normal, sgd, state, to_regress
from exactness.steps.runs import Run, check, train
from workers.in_threads import (
    Fault,
    FaultyGroup,
    Outcome,
    distributed,
    layout_of,
    run_case,
    run_workers,
    same_bits,
)

SIZES = (12, 12, 2, 7)
BUILDS: dict[str, Callable[[], BuiltStep]] = {}


def build(make: Callable[[], BuiltStep]) -> Callable[[], BuiltStep]:
    def from_seed() -> BuiltStep:
        keras.utils.set_random_seed(7)
        return make()

    BUILDS[make.__name__] = from_seed
    return make


@build
def counter_read_before_the_loss() -> BuiltStep:
    weight, counter = tf.Variable(tf.ones([6, 4])), tf.Variable(0.0)

    def step(x: Any, y: Any) -> Any:
        counter.assign_add(1.0)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ weight - y) ** 2) / counter.read_value()
        mean = tf.reduce_mean(loss * x)
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        counter.assign(counter * 1.5 + mean)
        return loss, counter.read_value()

    return BuiltStep(step=step, batch=to_regress(), variables=[weight, counter], sizes=SIZES)


@build
def weight_written_twice() -> BuiltStep:
    weight = tf.Variable(tf.ones([6, 4]))

    def step(x: Any, y: Any) -> Any:
        loss = tf.constant(0.0)
        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((x @ weight - y) ** 2)
            weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss

    return BuiltStep(step=step, batch=to_regress(), variables=[weight], sizes=SIZES)


@build
def numbers_of_a_generator() -> BuiltStep:
    generator, weight = tf.random.Generator.from_seed(3), tf.Variable(tf.ones([6, 4]))

    def step(x: Any, y: Any) -> Any:
        scale = generator.uniform([], minval=0.5)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((scale * x @ weight - y) ** 2)
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss, scale

    return BuiltStep(
        step=step, batch=to_regress(), variables=[weight, generator.state], sizes=SIZES
    )


@build
def nested_functions() -> BuiltStep:
    weight, steps = tf.Variable(tf.ones([6, 4])), tf.Variable(0, dtype=tf.int64)

    @tf.function
    def update(gradient: Any) -> None:
        weight.assign_sub(0.1 * gradient)
        steps.assign_add(1)

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ weight - y) ** 2)
        gradient = tape.gradient(loss, weight)
        if loss > 0.01:
            update(gradient)
        return loss

    return BuiltStep(step=step, batch=to_regress(), variables=[weight, steps], sizes=SIZES)


@build
def batch_norm_and_dropout() -> BuiltStep:
    stack = [keras.layers.Dense(5), keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)]
    model = keras.Sequential([keras.Input((6,)), *stack, keras.layers.Dense(4)])
    mean = keras.metrics.Mean()
    optimizer = sgd(model.trainable_variables, 0.05, use_ema=True)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        weights = model.trainable_variables
        optimizer.apply(tape.gradient(loss, weights), weights)
        mean.update_state(loss)
        return mean.result()

    return BuiltStep(
        step=step, batch=to_regress(), variables=state(model, optimizer, mean), sizes=SIZES
    )


@build
def unlike_types() -> BuiltStep:
    largest = tf.Variable(np.uint64(0), dtype=tf.uint64)

    def batch(rng: np.random.Generator, n: int) -> tuple[Any, ...]:
        high = np.full(n, 2**64 - 1, np.uint64) - rng.integers(3, size=n).astype(np.uint64)
        return normal(rng, n, 3), high, np.array([b"a" * k for k in range(n)], object)

    def step(x: Any, high: Any, texts: Any) -> Any:
        half = tf.cast(x, tf.float16)
        brain = tf.cast(x, tf.bfloat16)
        both = tf.complex(x, 2.0 * x)
        odd = tf.boolean_mask(high, x[:, 0] > 0)
        return (
            tf.reduce_max(half),
            tf.cast(tf.reduce_max(brain), tf.float32),
            tf.reduce_mean(both),
            both,
            odd,
            tf.strings.join([texts, texts]),
            tf.reduce_all(x > -1.0, 0),
        )

    return BuiltStep(step=step, batch=batch, variables=[largest], sizes=SIZES, tolerance=1e-5)


@build
def lists_of_numbers() -> BuiltStep:
    """Lists with one number of every sample, which are joined: each row needs the one before."""
    weight = tf.Variable(tf.ones([6, 4]))

    def step(x: Any, y: Any) -> Any:
        numbers = tf.reduce_sum(x, 1)
        decayed = tf.scan(lambda total, number: 0.5 * total + number, numbers)
        last = tf.foldl(lambda total, number: tf.tanh(total + number), numbers)
        first = tf.TensorArray(tf.float32, size=0, dynamic_size=True).unstack(numbers).read(0)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((decayed[:, None] * x @ weight - y) ** 2)
        weight.assign_sub(0.01 * tape.gradient(loss, weight))
        return loss, last, first

    return BuiltStep(step=step, batch=to_regress(), variables=[weight], sizes=SIZES)


@build
def three_layers() -> BuiltStep:
    layers = [tf.Variable(tf.ones(shape)) for shape in ([6, 5], [5, 3], [3, 4])]

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            hidden = x
            for layer in layers:
                hidden = tf.tanh(hidden @ layer)
            loss = tf.reduce_mean((hidden - y) ** 2)
        for layer, gradient in zip(layers, tape.gradient(loss, layers), strict=True):
            layer.assign_sub(0.1 * gradient)
        return loss

    return BuiltStep(step=step, batch=to_regress(), variables=layers, sizes=SIZES)


def run(name: str, *faults: Fault, devices: tuple[int, ...] = (1, 1, 1), **options: Any) -> Outcome:
    shares = (5.0, 3.0, 2.0, 4.0)[: sum(devices)]
    found = run_case(BUILDS[name], num_devices=devices, shares=shares, faults=faults, **options)
    assert not found.faults_left
    assert same_bits(found.runs)
    case, expected = BUILDS[name](), BUILDS[name]()
    wanted = train(expected, tf.function(expected.step))
    for actual in found.runs.values():
        check(case, wanted, actual)
    return found


@pytest.mark.long
@pytest.mark.parametrize("name", BUILDS)
def test_survivors_equal_one_device(name: str) -> None:
    """Of one step, a worker dies at every exchange; of the others, at the one in the middle."""
    counts = run(name).num_exchanges
    assert counts[0]
    every = name == "counter_read_before_the_loss"
    for exchange in range(counts[0] + 1) if every else [counts[0] // 2]:
        run(name, Fault(worker=exchange % 3, step=1, exchange=exchange))
    run(name, Fault(worker=1, step=0, exchange=counts[0] - 1))
    run(name, Fault(worker=0, step=2, exchange=counts[2] - 1, kind="hears nothing"))


@pytest.mark.long
@pytest.mark.parametrize("name", ["batch_norm_and_dropout", "nested_functions"])
def test_by_xla(name: str) -> None:
    def compiled(step: Any) -> Any:
        return tf.function(getattr(step, "python_function", step), jit_compile=True)

    counts = run_case(
        BUILDS[name], num_devices=(1, 1, 1), shares=(5.0, 3.0, 2.0), change_step=compiled
    ).num_exchanges
    found = run_case(
        BUILDS[name],
        num_devices=(1, 1, 1),
        shares=(5.0, 3.0, 2.0),
        change_step=compiled,
        faults=[Fault(worker=1, step=1, exchange=counts[1] - 1)],
    )
    assert found.num_retries == 2
    assert same_bits(found.runs)


@pytest.mark.parametrize("name", BUILDS)
def test_workers_with_unlike_devices(name: str) -> None:
    run(name, devices=(1, 2, 1))


def test_two_deaths_in_a_step() -> None:
    """The first is behind an exchange: before it, the other might still be in the step before."""
    run(
        "batch_norm_and_dropout",
        Fault(worker=0, step=1, exchange=1),
        Fault(worker=2, step=1, exchange=1, attempt=1),
    )


@pytest.mark.long
def test_a_death_while_a_view_is_formed() -> None:
    run(
        "batch_norm_and_dropout",
        Fault(worker=0, step=1, exchange=1),
        Fault(worker=1, step=1, exchange=1, kind="dies in a view"),
    )


def test_gradients_are_exchanged_in_the_order_of_the_backward_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of the last layer are there first."""
    shapes: list[list[tuple[int, ...]]] = []
    reduce = FaultyGroup.reduce

    def noted(group: FaultyGroup, label: str, arrays: list[np.ndarray], combine: str) -> Any:
        shapes.append([array.shape for array in arrays])
        return reduce(group, label, arrays, combine)

    monkeypatch.setattr(FaultyGroup, "reduce", noted)
    run("three_layers")
    assert [(3, 4), (5, 3), (6, 5)] in shapes


def test_a_loop_of_several_steps_is_refused() -> None:
    """The first of two steps in one function has committed: the second cannot be repeated.

    Its first exchange is over, so all workers have committed the first step.
    """

    def work(group: FaultyGroup, case: BuiltStep) -> Run:
        step = distributed(group, case.step, layout_of(group, (1, 1, 1)), (1.0, 1.0, 1.0))

        @tf.function
        def two(x: Any, y: Any) -> Any:
            return step(x, y), step(x, y)

        x, y = case.batch(np.random.default_rng(0), 12)
        group.begin_step()
        outline: Any = None
        group.call(lambda: two(tf.constant(x), tf.constant(y)), outline=outline, key=two)
        raise AssertionError("it was not refused")

    cases = [BUILDS["nested_functions"]() for _ in range(3)]
    of_a_step = run("nested_functions").num_exchanges[0]
    assert of_a_step > 1
    faults = [Fault(worker=1, step=0, exchange=of_a_step + 1)]
    with pytest.raises(AssertionError) as caught:
        run_workers(work, cases, faults=faults)
    assert isinstance(caught.value.__cause__, RunError)
    assert caught.value.__cause__.code == "RUN-092"


@pytest.mark.long
def test_a_death_behind_one_that_missed_the_end() -> None:
    """The worker that has finished a step dies in the next, and another has not finished it."""
    counts = run("batch_norm_and_dropout").num_exchanges
    run(
        "batch_norm_and_dropout",
        Fault(worker=1, step=1, exchange=counts[1] - 1, kind="hears nothing"),
        Fault(worker=2, step=2, exchange=0),
    )
