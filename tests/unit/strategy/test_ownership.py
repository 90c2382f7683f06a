"""Every variable has one owner, chosen by the rule, and its slots live beside it."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf
from keras import layers

from evener import EngineError, Strategy
from evener.devices.names import device_name
from evener.strategy.ownership import OwnerRegistry

DEVICES = ["cpu:1", "cpu:2"]


def mlp() -> keras.Model:
    return keras.Sequential(
        [keras.Input((32,))] + [layers.Dense(32, name=f"d{k}") for k in range(4)]
    )


def device_of(variable: keras.Variable) -> str:
    return device_name(variable.value.device)


def test_sharded_owners_are_balanced_by_bytes_and_counters_live_on_the_host() -> None:
    """Weights do not go to the host because counters are there; slots live beside their weights."""
    strategy = Strategy(devices=DEVICES)
    with strategy.scope():
        metric, optimizer = keras.metrics.Mean(), keras.optimizers.Adam()
        counters = [*metric.variables, *optimizer.variables]
        model, other = mlp(), keras.optimizers.Nadam()
        optimizer.build(model.trainable_variables)
        other.build(model.trainable_variables)
    # Keras marks this number as trainable.
    counters.append(other._u_product)
    assert {device_of(variable) for variable in counters} == {"cpu:0"}
    assert {device_of(variable) for variable in model.variables} == set(DEVICES)
    for variable, momentum in zip(model.trainable_variables, optimizer._momentums, strict=True):
        assert device_of(momentum) == device_of(variable)
    owned = strategy.owner_registry.owned_bytes()
    assert abs(owned["cpu:1"] - owned["cpu:2"]) <= 0.05 * sum(owned.values())


def test_slots_have_the_same_owners_on_workers_with_fewer_devices() -> None:
    """All workers make the same partition, in which owners are devices of the worker with most."""
    plan = Strategy(devices=DEVICES).plan

    def owners(own_name: Callable[[str], str]) -> list[str | None]:
        registry = OwnerRegistry(plan, DEVICES, own_name)
        made: list[tf.Variable] = []

        def make(**kwargs: Any) -> tf.Variable:
            made.append(registry.create(lambda **given: tf.Variable(**given), **kwargs))
            return made[-1]

        for number in range(3):
            weight = make(initial_value=tf.zeros([40 - number]), name=f"w{number}")
            for slot in ("momentum", "velocity"):
                make(initial_value=tf.zeros_like(weight), name=slot, colocate_with=weight)
        return [registry.common_owner(variable.handle) for variable in made]

    expected = owners(lambda device: device)
    assert set(expected) == {"/device:CPU:1", "/device:CPU:2"}
    assert owners(lambda _: "cpu:1") == expected


def test_workers_choose_alike_whenever_they_free_variables() -> None:
    plan = Strategy(devices=DEVICES).plan

    def owners(*, frees: bool) -> list[str | None]:
        registry = OwnerRegistry(plan, DEVICES, all_alike=True)
        found: list[str | None] = []
        kept: list[tf.Variable] = []
        for number in range(6):
            variable = registry.create(
                lambda **given: tf.Variable(**given),
                initial_value=tf.zeros([40 + 10 * number]),
                name=f"w{number}",
            )
            found.append(registry.common_owner(variable.handle))
            if not frees:
                kept.append(variable)
            del variable
            gc.collect()
        assert sum(registry.owned_bytes().values()) == 4 * sum(v.shape[0] for v in kept)
        return found

    assert owners(frees=True) == owners(frees=False)


@pytest.mark.parametrize(
    ("owners", "expected"),
    [
        ("central", ["cpu:0"] * 4),
        ({"*/d0/*": "cpu:2", "*": "cpu:1"}, ["cpu:2", "cpu:1", "cpu:1", "cpu:1"]),
    ],
    ids=["central", "by_path"],
)
def test_owners_are_the_host_or_named_by_path(owners: Any, expected: list[str]) -> None:
    with Strategy(devices=DEVICES, owners=owners).scope():
        model = mlp()
    for weight in ("kernel", "bias"):
        assert [device_of(getattr(layer, weight)) for layer in model.layers] == expected


def test_a_variable_without_owner_is_refused() -> None:
    strategy = Strategy(devices=DEVICES, owners={"embedding*": "cpu:1"})
    with strategy.scope(), pytest.raises(EngineError) as caught:
        layers.Dense(2).build((None, 40))
    assert caught.value.code == "ENG-010"
    assert "embedding*" in str(caught.value)
    assert "kernel" in caught.value.what


def test_an_explicit_device_is_obeyed() -> None:
    strategy = Strategy(devices=DEVICES)
    with strategy.scope(), tf.device("/CPU:3"):
        layer = layers.Dense(8)
        layer.build((None, 8))
    assert device_of(layer.kernel) == "cpu:3"


def test_slots_of_a_variable_made_outside_of_the_scope_are_beside_it() -> None:
    with tf.device("/CPU:2"):
        model = mlp()
    strategy = Strategy(devices=DEVICES)
    with strategy.scope():
        optimizer = keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)
    slots = [v for v in optimizer.variables if v.shape.rank]
    assert len(slots) == 2 * len(model.trainable_variables)
    assert {device_name(slot.value.device) for slot in slots} == {"cpu:2"}


def test_variables_that_are_gone_take_no_room() -> None:
    strategy = Strategy(devices=["cpu:1", "cpu:2"])
    registry = strategy.owner_registry
    with strategy.scope():
        first = tf.Variable(tf.ones([100]))
        second = tf.Variable(tf.ones([100]))
        assert {first.device[-5:], second.device[-5:]} == {"CPU:1", "CPU:2"}
        place = first.device
        del first
        gc.collect()
        assert sorted(registry.owned_bytes().values()) == [0, 0, 400]
        third = tf.Variable(tf.ones([100]))
    assert third.device == place
    registry.forget(third)
    registry.forget(third)
    assert sorted(registry.owned_bytes().values()) == [0, 0, 400]
