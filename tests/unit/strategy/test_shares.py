"""Shares change without a new trace and follow the measured times; records of the last steps."""

from __future__ import annotations

import itertools
import logging
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from evener import Plan, PlanError, Strategy
from evener.devices.names import tf_device
from evener.errors import EngineError
from evener.planner.run_times import NUM_FIRST_STEPS, run_times
from evener.strategy.prepared import StepRecords
from evener.strategy.shares import NUM_KEPT, WINDOW, ShareController, StepHistory


@tf.function
def record_and_review(
    controller: ShareController, samples: list[float], seconds: list[float]
) -> None:
    controller.record_and_review(tf.constant(samples, tf.float64), tf.constant(seconds, tf.float64))


def test_the_ring_keeps_the_last_steps_in_order() -> None:
    controller = ShareController(["cpu:0", "cpu:1"], [1, 1], measured=False)
    for step in range(WINDOW + 3):
        record_and_review(controller, [step, 2 * step], [0.1, 0.2])
    first, second = controller.last_steps()
    assert [samples for samples, _ in first] == list(range(3, WINDOW + 3))
    assert second[0] == (6.0, 0.2)


def test_shares_are_rebalanced_by_measured_times(caplog: pytest.LogCaptureFixture) -> None:
    controller = ShareController(["cpu:0", "cpu:1"], [1, 1], measured=True)
    with caplog.at_level(logging.INFO, logger="evener"):
        for _ in range(WINDOW):
            record_and_review(controller, [32, 32], [0.1, 0.4])
        assert controller.shares == (0.5, 0.5)
        for _ in range(WINDOW):
            record_and_review(controller, [32, 32], [0.1, 0.4])
    assert controller.shares == pytest.approx((0.8, 0.2))
    assert controller.variable.numpy() == pytest.approx([0.8, 0.2])
    (event,) = controller.events
    assert event.step == 2 * WINDOW
    assert str(event) in caplog.text


def test_given_shares_are_left_alone() -> None:
    controller = ShareController(["cpu:0", "cpu:1"], [1, 1], measured=False)
    for _ in range(3 * WINDOW):
        record_and_review(controller, [32, 32], [0.1, 0.4])
    assert controller.shares == (0.5, 0.5)
    assert controller.events == ()


def test_replicas_are_timed_and_nothing_is_traced_again_when_shares_or_batches_change() -> None:
    strategy = Strategy(devices=["cpu:0", "cpu:1"], shares=[3, 1])
    traces = []

    class Counted(layers.Layer):
        def call(self, x: tf.Tensor) -> tf.Tensor:
            traces.append(x.shape)
            return x

    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), Counted(), layers.Dense(3)])
        model.compile("sgd", "mse")
    x, y = np.ones((26, 4), "f4"), np.ones((26, 3), "f4")
    model.fit(x, y, batch_size=8, verbose=0)
    first, second = strategy.share_controller.last_steps()
    assert {samples for samples, _ in first[:3]} == {6.0}
    assert {samples for samples, _ in second[:3]} == {2.0}
    assert all(seconds > 0 for _, seconds in first + second)
    before = len(traces)
    for shares in ([1, 3], [1, 0], [0.2, 0.8]):
        strategy.set_shares(shares)
        model.fit(x, y, batch_size=8, verbose=0)
    assert len(traces) == before


@pytest.mark.parametrize("shares", [[1], [1, 1, 1], [-1, 2], [0, 0], [float("nan"), 1]])
def test_impossible_shares_change_nothing(shares: list[float]) -> None:
    strategy = Strategy(devices=["cpu:0", "cpu:1"], shares=[3, 1])
    with pytest.raises(PlanError):
        strategy.set_shares(shares)
    assert strategy.shares == (0.75, 0.25)
    strategy.set_shares([1, 3])
    assert strategy.shares == pytest.approx((0.25, 0.75))
    assert [replica.share for replica in strategy.plan.replicas] == pytest.approx([0.25, 0.75])


def test_shares_are_rebalanced_from_within_a_step() -> None:
    """In the graph of steps, as `fit` runs them, with times as a slow device has them."""
    controller = ShareController(["cpu:0", "cpu:1"], [1, 1], measured=True)

    @tf.function
    def steps(count: tf.Tensor) -> None:
        for _ in tf.range(count):
            samples = 32.0 * controller.variable.read_value()
            controller.record_and_review(samples, samples * [0.1, 0.4])

    steps(2 * WINDOW - 1)
    assert controller.shares == (0.5, 0.5)
    steps(1)
    assert controller.shares == pytest.approx((0.8, 0.2))
    assert controller.variable.numpy() == pytest.approx([0.8, 0.2])
    assert [event.step for event in controller.events] == [2 * WINDOW]
    steps(WINDOW)
    assert controller.variable.numpy() == pytest.approx([0.8, 0.2])


def test_shares_that_a_person_sets_while_steps_run_are_kept() -> None:
    controller = ShareController(["cpu:0", "cpu:1"], [1, 1], measured=True)

    def set_shares() -> None:
        controller.assign([0.3, 0.7])

    @tf.function
    def step() -> None:
        samples = 32.0 * controller.variable.read_value()
        tf.py_function(set_shares, [], [])
        controller.record_and_review(samples, samples * [0.1, 0.4])

    for _ in range(2 * WINDOW):
        step()
    assert controller.variable.numpy() == pytest.approx(controller.shares)
    assert controller.shares != (0.5, 0.5)


def test_a_slowed_device_gives_up_samples() -> None:
    strategy = Strategy(devices=["cpu:0", "cpu:1"])
    with strategy.scope():
        model = keras.Sequential([keras.Input((64,)), layers.Dense(64), layers.Dense(8)])
        model.compile("sgd", "mse")

    def work(part: int, num_samples: tf.Tensor) -> tf.Tensor:
        # Twenty times what part 0 does per sample, so that noise cannot hide it.
        rounds = tf.constant(0) if part == 0 else 20 * num_samples
        matrix = tf.eye(64)
        body = lambda k, m: (k + 1, tf.linalg.matmul(m, matrix))  # noqa: E731
        return tf.while_loop(lambda k, _: k < rounds, body, (0, matrix))[1]

    strategy.share_controller.before_part = work
    x, y = np.ones((64 * 3 * WINDOW, 64), "f4"), np.ones((64 * 3 * WINDOW, 8), "f4")
    model.fit(x, y, batch_size=64, verbose=0)
    assert strategy.shares[1] < 0.25
    assert strategy.share_controller.events


def test_loops_are_timed_in_steps_that_train() -> None:
    strategy = Strategy(devices=["cpu:1", "cpu:2"], shares=[3, 1])
    with strategy.scope():
        weight = tf.Variable(tf.ones([2]))

    def train(x: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(x[:, None] * weight)
        weight.assign_sub(tape.gradient(loss, weight))

    step = tf.function(lambda x: strategy.run(train, args=(x,)))
    test = tf.function(
        lambda x: strategy.run(lambda batch: tf.reduce_sum(batch) * weight, args=(x,))
    )
    for _ in range(2):
        step(tf.ones([8]))
        test(tf.ones([8]))
        strategy.run(tf.function(train), args=(tf.ones([4]),))
    first, second = strategy.share_controller.last_steps()
    assert [samples for samples, _ in first] == [6, 3, 6, 3]
    assert [samples for samples, _ in second] == [2, 1, 2, 1]
    assert all(seconds > 0 for _, seconds in first + second)


def record(history: StepHistory, number: int) -> None:
    def double(value: float) -> tf.Tensor:
        return tf.constant(value, tf.float64)

    samples = tf.constant([number, 2 * number], tf.float64)
    history.record(double(number / 10), samples, [double(0.5), double(0.25)])


def test_the_first_steps_are_left_out() -> None:
    history = StepHistory(2, 2)
    assert history.records() == []
    for number in range(NUM_FIRST_STEPS + 2):
        record(history, number)
    first, second = history.records()
    assert first.samples == (NUM_FIRST_STEPS, 2 * NUM_FIRST_STEPS)
    assert second.began == (NUM_FIRST_STEPS + 1) / 10
    assert second.busy_seconds == (0.5, 0.25)
    # Each call outside of a graph is a trace of its own.
    assert (first.trace, second.trace) == (NUM_FIRST_STEPS, NUM_FIRST_STEPS + 1)


def test_the_history_keeps_the_last_steps_in_order() -> None:
    history = StepHistory(2, 2)
    for number in range(NUM_KEPT + 10):
        record(history, number)
    samples = [record.samples[0] for record in history.records()]
    assert samples == list(range(10, NUM_KEPT + 10))


@pytest.mark.long
def test_steps_may_be_read_while_others_run() -> None:
    """Each record is of one step, and they follow each other, also when the ring turns."""
    history = StepHistory(2, 2)

    @tf.function
    def run(first: tf.Tensor, count: tf.Tensor) -> None:
        for number in tf.range(first, first + count):
            value = tf.cast(number, tf.float64)
            history.record(value, tf.stack([value, 2 * value]), [value, value])

    run(tf.constant(0), tf.constant(NUM_FIRST_STEPS + 2))
    thread = threading.Thread(
        target=run, args=(tf.constant(NUM_FIRST_STEPS + 2), tf.constant(100_000))
    )
    thread.start()
    num_reads = 0
    while thread.is_alive() or not num_reads:
        found = history.records()
        num_reads += 1
        numbers = [record.samples[0] for record in found]
        assert all(after - before == 1 for before, after in itertools.pairwise(numbers))
        assert all(record.began == record.samples[0] for record in found)
    thread.join()
    assert num_reads > 3
    assert len(history.records()) == NUM_KEPT


def test_steps_of_fit_are_recorded() -> None:
    strategy = Strategy(Plan.data_parallel(["cpu:1", "cpu:2"], shares=[3, 1]))
    strategy.share_controller.count([tf_device(name) for name in ("cpu:1", "cpu:2")])
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile("sgd", "mse")
    x = np.ones((8 * (NUM_FIRST_STEPS + 3), 3), "float32")
    model.fit(x, x[:, :2], batch_size=8, verbose=0)
    model.evaluate(x, x[:, :2], verbose=0)
    found = strategy.share_controller.step_records()
    assert [record.kind for record in found] == [(found[0].trace, (6, 2))] * 3
    begins = [record.began for record in found]
    assert begins == sorted(begins)
    assert all(len(record.busy_seconds) == 2 and min(record.busy_seconds) > 0 for record in found)


def test_memory_of_several_workers_is_not_mixed_up() -> None:
    """Their devices have the same names, under which memory is counted."""
    plan = Plan.data_parallel(["worker:0/cpu:0", "worker:1/cpu:0"], shares=[1, 1])
    with pytest.raises(EngineError, match=r"ENG-100.*several workers"):
        StepRecords().memory_estimate(plan.replicas, 8, {})


X = np.random.default_rng(0).normal(size=(8 * (NUM_FIRST_STEPS + 6), 16)).astype("float32")


def one_device(name: str = "cpu:1", *, counts: bool = True) -> Strategy:
    strategy = Strategy(devices=[name])
    if counts:
        strategy.share_controller.count([tf_device(name)])
    return strategy


def model_of(strategy: Strategy, **options: object) -> keras.Model:
    keras.utils.set_random_seed(1)
    with strategy.scope():
        parts = [layers.Dense(32, "tanh"), layers.Dropout(0.5), layers.Dense(1)]
        model = keras.Sequential([keras.Input((16,)), *parts])
        model.compile("adam", "mse", **options)
    return model


@pytest.mark.sampled(4)
@pytest.mark.parametrize("options", [{}, {"steps_per_execution": 2}], ids=str)
def test_steps_of_fit_are_timed_and_compute_the_same(options: dict[str, object]) -> None:
    timed, plain = one_device(), one_device(counts=False)
    found = []
    for strategy in (timed, plain):
        model = model_of(strategy, **options)
        model.fit(X, X[:, :1], batch_size=8, verbose=0)
        model.evaluate(X, X[:, :1], batch_size=8, verbose=0)
        model.predict(X, verbose=0)
        found.append([weight.numpy() for weight in model.variables])
    for wanted, got in zip(*found, strict=True):
        np.testing.assert_array_equal(wanted, got)
    records = timed.share_controller.step_records()
    assert [record.samples for record in records] == [(8,)] * 6
    assert timed.share_controller.total_samples() == (len(X),)
    begins = [record.began for record in records]
    assert begins == sorted(begins)
    times = run_times(records, ["cpu:1"], {}, with_updates=True)
    assert times is not None
    assert 0 < times.busy_seconds["cpu:1"] < times.step_seconds


def test_a_step_that_xla_compiles_is_not_timed() -> None:
    strategy = one_device("cpu:0")
    model = model_of(strategy, jit_compile=True)
    model.fit(X, X[:, :1], batch_size=8, verbose=0)
    assert strategy.share_controller.step_records() == []


def test_a_step_lasts_at_least_as_long_as_what_it_computes() -> None:
    strategy = one_device()
    with strategy.scope():
        weight = tf.Variable(tf.eye(400) / 2)

    def step(x: tf.Tensor, rounds: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            for _ in tf.range(rounds):
                x = tf.matmul(x, weight)
            loss = tf.reduce_sum(x)
        (gradient,) = tape.gradient(loss, [weight])
        weight.assign_sub(1e-9 * gradient)
        return loss

    @tf.function
    def run(x: tf.Tensor, rounds: tf.Tensor) -> tf.Tensor:
        return strategy.run(step, args=(x, rounds))

    seconds = []
    for rounds in (1, 40):
        for _ in range(NUM_FIRST_STEPS + 5):
            run(tf.ones([400, 400]), tf.constant(rounds))
        last = strategy.share_controller.step_records()[-5:]
        seconds.append(min(record.busy_seconds[0] for record in last))
    assert seconds[1] > 3 * seconds[0] > 0


def test_steps_without_training_or_batch_are_not_timed() -> None:
    strategy = one_device()
    with strategy.scope():
        weight = tf.Variable([1.0])
        count = tf.Variable(0.0, trainable=False)

    @tf.function
    def read(x: tf.Tensor) -> tf.Tensor:
        return strategy.run(lambda x: count.assign_add(tf.reduce_sum(weight * x)), args=(x,))

    @tf.function
    def without_batch() -> tf.Tensor:
        return strategy.run(lambda: weight.assign_add([1.0]))

    for _ in range(NUM_FIRST_STEPS + 2):
        read(tf.ones([4]))
        without_batch()
    assert strategy.share_controller.total_samples() == (0,)
    assert strategy.share_controller.step_records() == []


def test_a_step_that_is_a_traced_function_is_timed() -> None:
    strategy = one_device()
    with strategy.scope():
        weight = tf.Variable([1.0])
    inner = tf.function(lambda x: weight.assign_sub([tf.reduce_mean(x)]))

    @tf.function
    def run(x: tf.Tensor) -> tf.Tensor:
        return strategy.run(inner, args=(x,))

    for _ in range(NUM_FIRST_STEPS + 2):
        run(tf.ones([4]))
    assert [record.samples for record in strategy.share_controller.step_records()] == [(4,), (4,)]
