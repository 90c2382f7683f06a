"""Names of devices for pins: what is understood, and what is refused."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

import evener
from evener.devices.names import tf_device
from evener.errors import PlacementError
from evener.pinning.placement import check_device_exists, tf_name

pytestmark = pytest.mark.usefixtures("logical_cpus")


@pytest.mark.parametrize(
    "name",
    [
        "cpu:1",
        "CPU:1",
        "/CPU:1",
        "/cpu:1",
        "device:CPU:1",
        "/device:CPU:1",
        "/job:localhost/replica:0/task:0/device:CPU:1",
        tf.config.LogicalDevice("/device:CPU:1", "CPU"),
    ],
    ids=str,
)
def test_every_name_of_a_device_is_understood(name: Any) -> None:
    assert tf_name(name) == "/device:CPU:1"
    assert evener.pin(name).device == "cpu:1"


@pytest.mark.parametrize(
    "name", ["", "cpu", "cpu:", "cpu:x", "gpu:0,gpu:1", "1", None, 1, ["cpu:0"], "/job:w/cpu:0"]
)
def test_what_is_no_name_is_refused(name: Any) -> None:
    with pytest.raises(PlacementError, match="PLACE-001"):
        evener.pin(name)


def test_hardware_is_refused_with_the_name_to_use() -> None:
    with pytest.raises(PlacementError, match="PLACE-002") as raised:
        evener.pin("/physical_device:GPU:1")
    assert "'gpu:1'" in raised.value.fix
    with pytest.raises(PlacementError, match="PLACE-002"):
        evener.pin(tf.config.PhysicalDevice("/physical_device:CPU:0", "CPU"))


def test_a_device_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(PlacementError, match="PLACE-003") as raised:
        evener.pin("cpu:9")
    assert "cpu:0, cpu:1, cpu:2, cpu:3, cpu:4" in raised.value.why
    assert "Did you mean 'cpu:" in raised.value.what
    with pytest.raises(PlacementError, match="PLACE-003"):
        check_device_exists("/device:TPU:0")


@pytest.mark.parametrize(
    ("what", "hint"),
    [
        (lambda: 3, "Only Keras layers, models"),
        (lambda: keras.layers.Dense, "Pin an instance of it"),
        (lambda: keras.optimizers.SGD(), "Pin the layers"),
        (lambda: None, "Only Keras layers, models"),
        (lambda: tf.Variable(1.0), ""),
        (lambda: keras.losses.MeanSquaredError(), "Pin a function"),
    ],
    ids=["number", "class", "optimizer", "nothing", "variable", "loss"],
)
def test_what_cannot_be_pinned_is_refused(what: Callable[[], Any], hint: str) -> None:
    with pytest.raises(PlacementError, match="PLACE-004") as raised:
        evener.pin("cpu:1")(what())
    assert hint in str(raised.value)


def test_a_partial_and_a_method_can_be_pinned() -> None:
    assert evener.pin("cpu:1")(functools.partial(tf.ones, [2]))().device.endswith("CPU:1")
    assert evener.pin("cpu:2")(tf.constant(1.0).__add__)(2.0).device.endswith("CPU:2")


def test_short_names_are_eveners() -> None:
    assert tf_device("gpu:3") == "/device:GPU:3"
    assert repr(evener.pin("CPU:1")) == "evener.pin('cpu:1')"


@pytest.mark.long
def test_a_pin_can_be_made_before_tensorflow_starts(run_python: Any) -> None:
    done = run_python(
        """
        import evener, tensorflow as tf
        late = evener.pin("cpu:7")
        evener.use_devices("cpu:2")
        try:
            with late:
                pass
        except evener.PlacementError as error:
            print(error.code)
        """
    )
    assert done.stdout.strip() == "PLACE-003"
