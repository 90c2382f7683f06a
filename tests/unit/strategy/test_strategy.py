"""The strategy's face: what it accepts, what it refuses, and where a step looks."""

from __future__ import annotations

import functools
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import evener
from evener import DeviceError, EvenerWarning, Plan, PlanError, Strategy
from evener.plan import PlanDevice, Replica, Stage

X, Y = np.ones((8, 4), "f4"), np.zeros((8, 1), "f4")


def model_with(*more: keras.Layer) -> keras.Model:
    model = keras.Sequential(
        [keras.Input((4,)), layers.Dense(3, name="first"), *more, layers.Dense(1)]
    )
    model.compile("sgd", "mse")
    return model


def plan_with(**replica: object) -> Plan:
    devices = tuple(PlanDevice(name=f"cpu:{k}", kind="cpu") for k in range(5))
    stages = replica.pop("stages", (Stage(device="cpu:0"),))
    return Plan(devices=devices, replicas=(Replica(share=1, stages=stages, **replica),))


PLAN_OF_FILE = "Plan.from_json(pathlib.Path('plan.json').read_text())"


@pytest.mark.parametrize(
    ("arguments", "code", "write"),
    [
        ({"plan": plan_with(), "shares": [1]}, "PLAN-051", ""),
        ({"shares": "uneven"}, "PLAN-050", ""),
        ({"owners": "nobody"}, "PLAN-019", ""),
        # What is to be written instead.
        ({"plan": "cpu:2"}, "PLAN-053", "devices='cpu:2'"),
        ({"plan": ["cpu:0"]}, "PLAN-053", "devices=['cpu:0']"),
        ({"plan": 2}, "PLAN-053", "devices='cpu:2'"),
        ({"plan": "plan.json"}, "PLAN-053", PLAN_OF_FILE),
        ({"devices": 3}, "DEV-002", "'cpu:3' for 3 stand-ins"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], code: str, write: str) -> None:
    if "plan" not in arguments:
        arguments = {"devices": ["cpu:1", "cpu:2"], **arguments}
    with pytest.raises((PlanError, DeviceError)) as caught:
        Strategy(**arguments)
    assert caught.value.code == code
    assert write in caught.value.fix


def test_a_notebook_shows_the_plan_of_a_strategy() -> None:
    strategy = Strategy(devices=["cpu:0", "cpu:1"], shares=[3, 1])
    assert repr(strategy) == "<evener.Strategy on cpu:0, cpu:1: data parallel>"
    assert strategy._repr_html_() == strategy.plan._repr_html_()
    assert "75.0%" in strategy._repr_html_()


def test_a_plan_runs_and_is_given_back() -> None:
    strategy = Strategy(plan_with())
    with strategy.scope():
        model = model_with()
    model.fit(X, Y, verbose=0)
    assert strategy.plan == plan_with()


def test_training_goes_on_inside_the_scope_as_outside() -> None:
    results = []
    for inside in (False, True):
        keras.utils.set_random_seed(1)
        strategy = Strategy(devices=["cpu:0", "cpu:1"], shares=[3, 1])
        with strategy.scope():
            model = model_with()
            if inside:
                model.fit(X, Y, verbose=0)
        if not inside:
            model.fit(X, Y, verbose=0)
        results.append(model.get_weights())
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)


def test_models_without_a_strategy_are_left_to_keras() -> None:
    Strategy(devices=["cpu:0", "cpu:1"])
    model = model_with()
    model.fit(X, Y, verbose=0)
    assert "evener" not in type(model.train_function).__module__


@pytest.mark.long
def test_layers_that_keep_states_of_samples_go_on_as_on_one_device() -> None:
    x = np.random.default_rng(0).normal(size=(8, 3, 4)).astype("f4")
    predictions = []
    for strategy in (
        Strategy(devices=["cpu:0"]),
        Strategy(devices=["cpu:0", "cpu:1", "cpu:2"], shares="even"),
        Strategy(plan_with(num_micro_batches=3)),
    ):
        keras.utils.set_random_seed(1)
        with strategy.scope():
            lstm = layers.LSTM(2, stateful=True, name="keeps")
            model = keras.Sequential([keras.Input(batch_shape=(8, 3, 4)), lstm])
            model.compile("sgd", "mse")
        model.train_on_batch(x, np.ones((8, 2), "f4"))
        predictions.append([model.predict(x, batch_size=8, verbose=0) for _ in range(2)])
    for other in predictions[1:]:
        np.testing.assert_allclose(predictions[0], other, rtol=1e-5, atol=1e-6)
    assert np.abs(predictions[0][0] - predictions[0][1]).max() > 1e-3


def test_an_eager_fit_is_told_of_once() -> None:
    strategy = Strategy(devices=["cpu:1", "cpu:2"])
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), layers.Dense(1)])
        model.compile("sgd", "mse", run_eagerly=True)
    with pytest.warns(EvenerWarning, match="ENG-086") as caught:
        model.fit(X, Y, epochs=2, verbose=0)
        model.evaluate(X, Y, verbose=0)
    assert len([w for w in caught if "ENG-086" in str(w.message)]) == 1


def test_an_optimizer_made_outside_the_scope_trains_as_well() -> None:
    optimizer = keras.optimizers.Adam()
    strategy = Strategy(devices=["cpu:1", "cpu:2"])
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), layers.Dense(1)])
    model.compile(optimizer, "mse")
    model.fit(X, Y, verbose=0)
    assert int(optimizer.iterations) == 1
    kernel = model.layers[0].kernel
    assert optimizer._momentums[0].value.device == kernel.value.device


@pytest.mark.filterwarnings("ignore:.ENG-086")
@pytest.mark.parametrize("synchronized", [False, True])
def test_eager_mode_gives_the_same(synchronized: bool) -> None:
    weights, x = [], np.random.default_rng(0).normal(size=(8, 4)).astype("f4")
    for run_eagerly in (False, True):
        keras.utils.set_random_seed(1)
        strategy = Strategy(devices=["cpu:0", "cpu:1"], shares=[3, 1])
        with strategy.scope():
            model = keras.Sequential([
                keras.Input((4,)), layers.BatchNormalization(synchronized=synchronized),
                layers.Dense(1),
            ])  # fmt: skip
            model.compile("adam", "mse", run_eagerly=run_eagerly)
        model.fit(x, x[:, :1], shuffle=False, batch_size=4, verbose=0)
        model.predict(X, verbose=0)
        weights.append(model.get_weights())
    for a, b in zip(*weights, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


DOORS = {
    "a function of the program": lambda strategy, step: tf.function(
        lambda x: strategy.run(step, args=(x,))
    ),
    "a function that the strategy runs": lambda strategy, step: functools.partial(
        lambda traced, x: strategy.run(traced, args=(x,)), tf.function(step)
    ),
    "both": lambda strategy, step: functools.partial(
        lambda traced, x: strategy.run(traced, args=(x,)),
        tf.function(lambda x: strategy.run(step, args=(x,))),
    ),
    "a distributed step": lambda strategy, step: evener.distribute(
        step, devices=["cpu:0", "cpu:1"], shares=[3, 1]
    ),
    "a distributed function": lambda strategy, step: evener.distribute(
        tf.function(step), devices=["cpu:0", "cpu:1"], shares=[3, 1]
    ),
}


@pytest.mark.parametrize("name", DOORS)
def test_conditions_and_loops_on_tensors_work_in_every_door(name: str) -> None:
    def clipped(loss: tf.Tensor) -> tf.Tensor:
        while loss > 1.0:
            loss = loss / 2.0
        return loss

    def step(x: tf.Tensor) -> tf.Tensor:
        loss = tf.reduce_mean(x)
        if loss > 3.0:
            return clipped(loss)
        return -loss

    strategy = evener.Strategy(devices=["cpu:0", "cpu:1"], shares=[3, 1])
    run = DOORS[name](strategy, step)
    x = tf.reshape(tf.range(8.0), [4, 2])
    assert [float(run(x)), float(run(x - 3.0))] == [0.875, -0.5]


def test_functions_whose_signature_is_unknown_or_another_run() -> None:
    def take(batches: Any, times: int) -> Any:
        return next(batches) * times

    @functools.wraps(take)
    def twice(batches: Any) -> Any:
        return take(batches, 2)

    strategy = evener.Strategy(devices=["cpu:0", "cpu:1"])
    batches = iter(tf.data.Dataset.range(12).batch(4))
    run = tf.function(lambda: (strategy.run(next, (batches,)), strategy.run(twice, (batches,))))
    assert [part.numpy().tolist() for part in run()] == [[0, 1, 2, 3], [8, 10, 12, 14]]


@pytest.mark.parametrize("name", [*DOORS][1:3] + [*DOORS][4:])
def test_a_function_without_autograph_stays_without_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        return x if tf.reduce_mean(x) > 3.0 else -x

    strategy = evener.Strategy(devices=["cpu:0", "cpu:1"], shares=[3, 1])
    monkeypatch.setattr(tf, "function", functools.partial(tf.function, autograph=False))
    with pytest.raises(tf.errors.OperatorNotAllowedInGraphError):
        DOORS[name](strategy, step)(tf.ones([4, 2]))
