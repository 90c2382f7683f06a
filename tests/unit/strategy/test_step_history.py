"""The last steps of a run, step by step."""

from __future__ import annotations

import itertools
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from evener import Plan, Strategy
from evener.devices.names import tf_device
from evener.planner.run_times import NUM_FIRST_STEPS
from evener.strategy.shares import NUM_KEPT, StepHistory


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


def test_the_ring_keeps_the_last_steps_in_order() -> None:
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


def test_steps_of_fit_are_recorded(logical_cpus: tuple[str, ...]) -> None:
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
