"""What a run refuses and warns of, and what its replicas know."""

from __future__ import annotations

import linecache
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import evener
from conformance.strategies import staged
from evener import EngineError, EvenerWarning, Strategy
from evener.engine.staged.loops import run as runs

THREE_TO_ONE = (3, 1)


def strategy_of_two(shares: Any = None) -> Strategy:
    return staged(["cpu:1", "cpu:2"], shares)


def test_something_else_than_a_dataset_is_refused() -> None:
    with pytest.raises(EngineError) as caught:
        strategy_of_two().experimental_distribute_dataset([1, 2])
    assert caught.value.code == "ENG-005"
    assert "list" in caught.value.what


def test_whole_arrays_are_warned_of_at_the_line_once() -> None:
    strategy = strategy_of_two()

    @tf.function
    def step(x: tf.Tensor) -> Any:
        return strategy.run(tf.reduce_sum, args=(x,))  # here

    with pytest.warns(EvenerWarning, match="ENG-060") as caught:
        step(np.ones((4, 2), "f4"))
        step(np.ones((5, 2), "f4"))
    (warning,) = [w for w in caught if "ENG-060" in str(w.message)]
    assert warning.filename == __file__
    assert "# here" in linecache.getline(__file__, warning.lineno)
    assert "experimental_distribute_dataset" in str(warning.message)


def test_numbers_and_variables_are_no_whole_arrays() -> None:
    strategy = strategy_of_two()
    with strategy.scope():
        variable = tf.Variable(tf.ones([3]))

    @tf.function
    def step() -> Any:
        return strategy.run(lambda a, b: a * tf.reduce_sum(b), args=(2.0, variable))

    assert [float(v) for v in strategy.experimental_local_results(step())] == [6.0, 6.0]


def test_eager_runs_are_warned_of_once() -> None:
    strategy = strategy_of_two()
    with pytest.warns(EvenerWarning, match="ENG-061") as caught:
        strategy.run(lambda: tf.zeros([]))
        strategy.run(lambda: tf.zeros([]))
    assert len([w for w in caught if "ENG-061" in str(w.message)]) == 1


def test_replicas_know_what_their_samples_weigh() -> None:
    strategy = strategy_of_two(THREE_TO_ONE)
    dataset = tf.data.Dataset.range(11).batch(8)

    def weight(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        run, replica = runs.current() or pytest.fail("no run")
        return run.weight(replica), tf.size(x)

    @tf.function
    def step(x: Any) -> Any:
        return strategy.run(weight, args=(x,))

    found = []
    for batch in strategy.experimental_distribute_dataset(dataset):
        weights, sizes = step(batch)
        found.append([
            (float(w), int(n))
            for w, n in zip(
                strategy.experimental_local_results(weights),
                strategy.experimental_local_results(sizes),
                strict=True,
            )
        ])  # fmt: skip
    assert found == [[(0.75, 6), (0.25, 2)], [(pytest.approx(2 / 3), 2), (pytest.approx(1 / 3), 1)]]


def test_a_function_inside_the_replicas_knows_it_in_every_trace() -> None:
    strategy = strategy_of_two(THREE_TO_ONE)

    @tf.function
    def inside(x: tf.Tensor) -> tf.Tensor:
        del x
        run, replica = runs.current() or pytest.fail("no run")
        return run.weight(replica)

    @tf.function
    def step(x: Any, unused: int) -> Any:
        # A new trace for every number, in which `inside` is not traced again.
        del unused
        return strategy.run(lambda part: inside(part), args=(x,))

    dataset = strategy.experimental_distribute_dataset(tf.data.Dataset.range(8).batch(8))
    (batch,) = list(dataset)
    for number in (1, 2):
        results = strategy.experimental_local_results(step(batch, number))
        assert [float(value) for value in results] == [0.75, 0.25]


def test_a_number_of_no_sample_is_zero() -> None:
    strategy = strategy_of_two()
    dataset = strategy.experimental_distribute_dataset(tf.data.Dataset.range(1).batch(4))
    (batch,) = list(dataset)

    @tf.function
    def mean(x: Any) -> Any:
        per_replica = strategy.run(
            lambda part: tf.reduce_mean(tf.cast(part, tf.float32) + 5.0), args=(x,)
        )
        return per_replica, strategy.reduce("MEAN", per_replica, axis=None)

    per_replica, whole = mean(batch)
    values = sorted(float(v) for v in strategy.experimental_local_results(per_replica))
    assert values == [0.0, 5.0]
    assert float(whole) == 5.0


def test_an_error_in_a_replica_comes_out_and_the_next_run_works() -> None:
    strategy = strategy_of_two()

    def fails() -> None:
        raise ValueError("my own")

    with pytest.raises(ValueError, match="my own"):
        tf.function(lambda: strategy.run(fails))()
    assert runs.current() is None
    done = tf.function(lambda: strategy.run(lambda: tf.ones([])))()
    assert len(strategy.experimental_local_results(done)) == 2


def test_one_per_device_takes_one_device_each() -> None:
    strategies = evener.Strategy.one_per_device(["cpu:1", "cpu:3"])
    assert [s.replica_devices for s in strategies] == [("cpu:1",), ("cpu:3",)]
    with strategies[1].scope():
        assert tf.Variable(tf.ones([30])).device.endswith("CPU:3")


def test_an_optimizer_in_a_condition_is_refused() -> None:
    strategy = strategy_of_two()
    with strategy.scope():
        weight = keras.Variable(tf.ones([2]))
        optimizer = keras.optimizers.SGD()
        optimizer.build([weight])

    def train(x: tf.Tensor) -> None:
        def apply() -> None:
            optimizer.apply([tf.ones([2])], [weight])

        tf.cond(tf.reduce_sum(x) > 0, apply, lambda: None)

    step = tf.function(lambda x: strategy.run(train, args=(x,)))
    (batch,) = strategy.experimental_distribute_dataset(tf.data.Dataset.range(8).batch(8))
    with pytest.raises(EngineError, match=r"(?s)ENG-067.*gradient_accumulation_steps"):
        step(batch)
