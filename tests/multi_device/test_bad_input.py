"""Every mistake gets an error in the house form, early, and leaves the weights as they were.

What is no mistake on one device is none under a strategy of one replica.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import keras
import numpy as np
import pytest
from keras import layers

from evener import EngineError, EvenerError, Plan, PlanError, Strategy

from .mistakes import (
    TWO,
    acts_as_plain_keras,
    assert_house_form,
    compiled_under,
    data,
    in_micro_batches,
    one_replica,
    plain_like,
    refused,
    small,
)


@pytest.mark.parametrize(
    ("devices", "named"),
    [
        (["cpu:0", "gpu:7"], "gpu:7"),
        (["cpu:0", "cpu:31"], "cpu:31"),
        (["cpu:0", "tpu:0"], "tpu:0"),
        (["cpu:0", "GPU:0"], "GPU:0"),
        (["cpu:0", "cpu:0"], "cpu:0"),
        ([], "empty"),
        ("gpu:0,", "gpu:0,"),
        ("cpu:zero", "cpu:zero"),
    ],
)
def test_unknown_device(devices: str | list[str], named: str) -> None:
    """A device that is not there, or is no device, is named."""
    with pytest.raises(EvenerError) as caught:
        Strategy(devices=devices)
    assert_house_form(caught.value, "DEV-", named)


@pytest.mark.parametrize(
    ("shares", "code", "names"),
    [
        ([1, -1], "PLAN-007", ["-1", "negative"]),
        ([0, 0], "PLAN-009", ["0"]),
        ([0.0, 0.0], "PLAN-009", ["0"]),
        ([1, float("nan")], "PLAN-008", ["nan"]),
        ([1, float("inf")], "PLAN-008", ["inf"]),
        ([3, 2, 1], "PLAN-010", ["3", "2"]),
        ([1], "PLAN-011", ["1", "2"]),
        ([], "PLAN-", []),
        ("uneven", "PLAN-050", ["uneven"]),
    ],
)
def test_shares_that_cannot_be(shares: str | list[float], code: str, names: list[str]) -> None:
    """Shares are refused before a strategy exists, and when they are changed."""
    with pytest.raises(PlanError) as caught:
        Strategy(devices=TWO, shares=shares)
    assert_house_form(caught.value, code, *names)
    if isinstance(shares, str):
        return
    strategy = Strategy(devices=TWO, shares=[3, 1])
    with pytest.raises(PlanError) as caught:
        strategy.set_shares(shares)
    assert_house_form(caught.value, code, *names)
    assert strategy.shares == (0.75, 0.25)


def test_bad_shares_between_steps_leave_the_training_whole() -> None:
    """A refused change of shares changes nothing: the training goes on."""
    strategy = Strategy(devices=TWO, shares=[3, 1])
    model = compiled_under(strategy)
    model.train_on_batch(*data())
    refused(model, lambda: strategy.set_shares([1, -1]), "PLAN-007", "-1")
    model.train_on_batch(*data())
    assert int(model.optimizer.iterations.numpy()) == 2


def test_a_plan_for_other_devices() -> None:
    """The device that the plan has and this machine lacks is named."""
    plan = Plan.data_parallel(["cpu:0", "gpu:3"])
    with pytest.raises(EvenerError) as caught:
        Strategy(plan)
    assert_house_form(caught.value, "PLAN-029", "gpu:3")


def test_a_plan_and_shares() -> None:
    """Two sources for one thing."""
    with pytest.raises(PlanError) as caught:
        Strategy(Plan.data_parallel(TWO), shares=[1, 1])
    assert_house_form(caught.value, "PLAN-051", "shares")


def test_a_variable_without_owner() -> None:
    """Owners by pattern that leave a variable out: the variable and the patterns are named."""
    strategy = Strategy(devices=TWO, owners={"*/dense/*": "cpu:1"})
    with pytest.raises(EngineError) as caught:
        compiled_under(strategy)
    assert_house_form(caught.value, "ENG-010", "head/kernel", "*/dense/*")


def test_owners_on_an_unknown_device() -> None:
    """An owner that is not among the devices."""
    with pytest.raises(PlanError) as caught:
        Strategy(devices=TWO, owners={"*": "cpu:4"})
    assert_house_form(caught.value, "PLAN-", "cpu:4")


ACTS: dict[str, Callable[[keras.Model], object]] = {
    "fit": lambda model: model.fit(*data(), batch_size=8, shuffle=False, verbose=0).history,
    "evaluate": lambda model: model.evaluate(*data(), verbose=0),
    "predict": lambda model: model.predict(data()[0], verbose=0),
    "train_on_batch": lambda model: model.train_on_batch(*data()),
}


@pytest.mark.covering(1)
@pytest.mark.sampled(12)
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("compiled_inside", [True, False])
def test_a_model_made_outside_the_scope(act: str, compiled_inside: bool) -> None:
    """Made without a strategy, used under one: it trains on all devices."""
    model = small()
    strategy = one_replica()
    with strategy.scope() if compiled_inside else contextlib.nullcontext():
        model.compile("adam", "mse", metrics=["mae"])
    reference = plain_like(model)

    def use(used: keras.Model) -> object:
        with strategy.scope() if used is model else contextlib.nullcontext():
            return ACTS[act](used)

    acts_as_plain_keras(model, reference, use)
    assert strategy.report().num_operations > 0


@pytest.mark.covering(1)
@pytest.mark.sampled(20)
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("second", [one_replica, in_micro_batches])
@pytest.mark.parametrize("first", [one_replica, in_micro_batches])
def test_a_model_moved_between_strategies(
    first: Callable[[], Strategy], second: Callable[[Sequence[str]], Strategy], act: str
) -> None:
    """Made under one strategy, used in the scope of another."""
    model = compiled_under(first())
    other = second(("cpu:2", "cpu:3"))

    def use() -> object:
        with other.scope():
            return ACTS[act](model)

    refused(model, use, "ENG-085")


def with_a_layer_made_outside() -> Callable[[], keras.Model]:
    """Make one layer of a model now, and the model when called."""
    outside = layers.Dense(4, name="outside")
    outside.build((None, 4))
    return lambda: keras.Sequential([keras.Input((4,)), outside, layers.Dense(1)])


@pytest.mark.covering(1)
@pytest.mark.sampled(12)
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("make", [one_replica, in_micro_batches])
def test_a_layer_made_outside_the_scope(make: Callable[[], Strategy], act: str) -> None:
    """One layer of the model was made before the scope: all devices compute it."""
    strategy = make()
    model = compiled_under(strategy, with_a_layer_made_outside())
    acts_as_plain_keras(model, plain_like(model, with_a_layer_made_outside()), ACTS[act])
    assert strategy.report().num_operations > 0


OPTIMIZERS: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01, epsilon=1e-3, ema_momentum=0.9, use_ema=True),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)),
}


@pytest.mark.covering(1)
@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("make", [one_replica, in_micro_batches])
def test_an_optimizer_made_outside_the_scope(make: Callable[[], Strategy], name: str) -> None:
    """It trains as on one device, and what it keeps is there."""
    strategy = make()
    optimizer = OPTIMIZERS[name]()
    with strategy.scope():
        model = small()
    model.compile(optimizer, "mse", metrics=["mae"])
    reference = plain_like(model, optimizer=OPTIMIZERS[name]())
    acts_as_plain_keras(model, reference, ACTS["fit"])
    assert int(optimizer.iterations.numpy()) == 2
    for ours, plain in zip(optimizer.variables, reference.optimizer.variables, strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-6, err_msg=ours.path)
    if make is one_replica:
        assert strategy.report().num_operations > 0


def test_a_second_layout_of_devices() -> None:
    """Five devices are laid out: seven cannot be had any more, and both are named."""
    model = compiled_under(Strategy(devices=TWO))
    refused(model, lambda: Strategy(devices="cpu:7"), "DEV-013", "cpu:7", "cpu:4")
    model.train_on_batch(*data())
