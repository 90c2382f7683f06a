"""Devices that the code around asks for."""

from __future__ import annotations

import pytest
import tensorflow as tf

from evener._tf_private.patches import owner_of
from evener._tf_private.tensors import LOCAL_DEVICES, current_device, explicit_device, in_xla


def test_explicit_device_is_seen() -> None:
    assert explicit_device() == ""
    with tf.device("/CPU:1"):
        assert explicit_device().endswith("CPU:1")


def test_the_device_of_now_is_seen_in_graphs_too() -> None:
    assert current_device() == ""
    with tf.device("/CPU:1"):
        assert current_device().endswith("CPU:1")
        with tf.Graph().as_default(), tf.device("/CPU:2"):
            assert current_device().endswith("CPU:2")


@pytest.mark.parametrize("jit_compile", [True, None])
def test_a_graph_for_xla_is_known_while_it_is_traced(jit_compile: bool | None) -> None:
    seen = []

    @tf.function(jit_compile=jit_compile)
    def traced() -> tf.Tensor:
        seen.append(in_xla(tf.compat.v1.get_default_graph()))
        return tf.constant(1.0)

    traced.get_concrete_function()
    assert set(seen) == {bool(jit_compile)}


def test_the_old_list_of_local_devices_is_replaced(patches_undone: None) -> None:
    device_lib, _ = owner_of("tensorflow.python.client.device_lib:list_local_devices")
    LOCAL_DEVICES.apply(lambda original: lambda: [*original(), "one more"])
    found = device_lib.list_local_devices()
    assert found[0].name == "/device:CPU:0"
    # What stands in for a GPU is written into a copy of these.
    assert (found[0].device_type, found[0].physical_device_desc) == ("CPU", "")
    assert found[-1] == "one more"
