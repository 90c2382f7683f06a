"""The strategy's face: what it accepts and refuses, when it is unused, and plans of workers."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import evener
from evener import DeviceError, EvenerWarning, Plan, PlanError, Strategy
from evener.errors import RunError
from evener.plan import PlanDevice, Replica, Stage
from evener.strategy.plans import devices_of_all, devices_of_owners, own_devices
from evener.strategy.shares import SharesOfWorkers
from evener.workers.messages import View

X, Y = np.ones((8, 4), "f4"), np.zeros((8, 1), "f4")
TWO = ["cpu:0", "cpu:1"]


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
    strategy = Strategy(devices=TWO, shares=[3, 1])
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
        strategy = Strategy(devices=TWO, shares=[3, 1])
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
    Strategy(devices=TWO)
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
        strategy = Strategy(devices=TWO, shares=[3, 1])
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
        step, devices=TWO, shares=[3, 1]
    ),
    "a distributed function": lambda strategy, step: evener.distribute(
        tf.function(step), devices=TWO, shares=[3, 1]
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

    strategy = evener.Strategy(devices=TWO, shares=[3, 1])
    run = DOORS[name](strategy, step)
    x = tf.reshape(tf.range(8.0), [4, 2])
    assert [float(run(x)), float(run(x - 3.0))] == [0.875, -0.5]


def test_functions_whose_signature_is_unknown_or_another_run() -> None:
    def take(batches: Any, times: int) -> Any:
        return next(batches) * times

    @functools.wraps(take)
    def twice(batches: Any) -> Any:
        return take(batches, 2)

    strategy = evener.Strategy(devices=TWO)
    batches = iter(tf.data.Dataset.range(12).batch(4))
    run = tf.function(lambda: (strategy.run(next, (batches,)), strategy.run(twice, (batches,))))
    assert [part.numpy().tolist() for part in run()] == [[0, 1, 2, 3], [8, 10, 12, 14]]


@pytest.mark.parametrize("name", [*DOORS][1:3] + [*DOORS][4:])
def test_a_function_without_autograph_stays_without_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        return x if tf.reduce_mean(x) > 3.0 else -x

    strategy = evener.Strategy(devices=TWO, shares=[3, 1])
    monkeypatch.setattr(tf, "function", functools.partial(tf.function, autograph=False))
    with pytest.raises(tf.errors.OperatorNotAllowedInGraphError):
        DOORS[name](strategy, step)(tf.ones([4, 2]))


def outside(**settings: object) -> keras.Model:
    model = keras.Sequential([keras.Input((4,)), layers.Dense(1)], name="outside")
    model.compile("sgd", "mse", **settings)
    return model


def codes(train: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train()
    return [str(each.message)[1:8] for each in caught if issubclass(each.category, EvenerWarning)]


def test_an_unused_strategy_is_warned_of_with_the_model_the_devices_and_the_line() -> None:
    strategy = Strategy(devices=TWO)
    model = outside()
    with pytest.warns(EvenerWarning, match="ENG-088") as caught:
        model.fit(X, Y, verbose=0)
    assert "'outside'" in str(caught[0].message) and "cpu:0, cpu:1" in str(caught[0].message)
    assert caught[0].filename == __file__
    assert codes(lambda: outside().fit(X, Y, verbose=0)) == [], "once for a strategy"
    assert strategy.share_controller.num_steps == 0


@pytest.mark.parametrize(
    "train",
    [
        lambda: outside().train_on_batch(X, Y),
        lambda: outside(run_eagerly=True).fit(X, Y, verbose=0),
    ],
    ids=["train_on_batch", "eagerly"],
)
def test_every_way_to_train_is_seen(train: Callable[[], object]) -> None:
    strategy = Strategy(Plan.pipeline({"cpu:0": "dense", "cpu:1": "head"}))
    assert codes(train) == ["ENG-088"]
    del strategy


def fit_in_scope(strategy: Strategy) -> None:
    model = outside()
    with strategy.scope():
        model.compile("sgd", "mse")
        model.fit(X, Y, verbose=0)
    assert strategy.share_controller.num_steps == 1


def fit_beside_another_model(strategy: Strategy) -> None:
    with strategy.scope():
        used = keras.Sequential([layers.Dense(1)])
    outside().fit(X, Y, verbose=0)
    del used


def fit_after_a_loop(strategy: Strategy) -> None:
    strategy.run(tf.function(lambda x: x * 2.0), args=(X,))
    outside().fit(X, Y, verbose=0)


def fit_under_another_strategy(_: Strategy) -> None:
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        model = outside()
    model.fit(X, Y, verbose=0)


def evaluate_and_predict(_: Strategy) -> None:
    model = outside()
    model.evaluate(X, Y, verbose=0)
    model.predict(X, verbose=0)


def fit_beside_one_device(_: Strategy) -> None:
    outside().fit(X, Y, verbose=0)


@pytest.mark.parametrize(
    ("train", "devices"),
    [
        (fit_in_scope, TWO),
        (fit_beside_another_model, TWO),
        (fit_after_a_loop, TWO),
        (fit_under_another_strategy, TWO),
        (evaluate_and_predict, TWO),
        # That is no loss.
        (fit_beside_one_device, ["cpu:1"]),
    ],
)
def test_a_strategy_that_is_used_or_not_needed_is_not_missed(
    train: Callable[[Strategy], None], devices: list[str]
) -> None:
    strategy = Strategy(devices=devices)
    assert codes(lambda: train(strategy)) == []


def test_a_strategy_that_is_gone_is_not_missed() -> None:
    strategy = Strategy(devices=TWO)
    strategy.itself = [strategy]  # Only the collection of garbage frees it.
    del strategy
    assert codes(lambda: outside().fit(X, Y, verbose=0)) == []


OF_WORKERS = Plan.data_parallel(["worker:0/gpu:0", "worker:1/cpu:0", "worker:1/cpu:1"])


def group(index: int, count: int) -> Any:
    return SimpleNamespace(index=index, count=count)


def test_own_devices_of_a_plan() -> None:
    assert own_devices(group(0, 2), OF_WORKERS) == ["gpu:0"]
    assert own_devices(group(1, 2), OF_WORKERS) == ["cpu:0", "cpu:1"]


@pytest.mark.parametrize(
    ("plan", "count"),
    [(OF_WORKERS, 3), (OF_WORKERS, 1), (Plan.data_parallel(["gpu:0", "gpu:1"]), 2)],
)
def test_a_plan_for_other_workers(plan: Plan, count: int) -> None:
    with pytest.raises(PlanError, match="PLAN-052"):
        own_devices(group(0, count), plan)


def told_by(index: int, *told: Any) -> list[PlanDevice]:
    """Return the devices of three workers, some of which have told theirs; of a CPU in each."""
    found = group(index, 3)
    found.exchange = lambda name, own: [*told, own] if index == 2 else [*told]
    return devices_of_all(found, [PlanDevice(name="cpu:0", kind="cpu")])


def test_a_worker_that_died_before_it_told_its_devices_has_a_place() -> None:
    """Its replacement computes alone in the end."""
    devices = told_by(2, [0, [["cpu:0", "cpu", None]]])
    assert [device.name for device in devices] == [f"worker:{k}/cpu:0" for k in range(3)]
    assert told_by(1, [0, [["cpu:0", "cpu", None]]]) == devices[:1] + devices[1:]
    names = [device.name for device in devices]
    shares = SharesOfWorkers(names, [1, 1, 1], measured=False, group=group(1, 3), workers=(0, 1, 2))
    for number, members in ((2, (0, 1)), (3, (1,))):
        view = View(number=number, members=members, addresses={}, done={0: 5}, joined=())
        shares.begin_with(shares.common_state(), view)
    assert shares.shares == (0.0, 1.0, 0.0)


def test_a_replacement_with_other_devices_than_expected_is_refused() -> None:
    with pytest.raises(RunError, match="RUN-094") as caught:
        told_by(1, [0, [["gpu:0", "gpu", None], ["gpu:1", "gpu", None]]])
    assert "they have gpu:0, gpu:1 as its devices" in str(caught.value)


def test_all_workers_choose_owners_among_the_same_devices() -> None:
    assert devices_of_owners(OF_WORKERS) == ["cpu:0", "cpu:1"]
    assert devices_of_owners(Plan.data_parallel(["gpu:0", "gpu:1"])) == ["gpu:0", "gpu:1"]
