from __future__ import annotations

import resource
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from evener import Strategy
from evener._tf_private.patches import owner_of
from evener._tf_private.tensors import (
    HOST_READS,
    LOCAL_DEVICES,
    OneDeviceExtended,
    around_new_variables,
    current_device,
    explicit_device,
    in_xla,
    is_eager_tensor,
    keras_variable_being_made,
    leave_large_variables_unwritten,
    plain_variable,
    renew_variable,
    symbolic_lengths,
    unallocated_variables,
    unwrapped,
    waits_for,
)
from unit._tf_private.test_datasets import noting

pytestmark = pytest.mark.usefixtures("logical_cpus")


def test_a_variable_has_a_shape_and_no_value() -> None:
    with unallocated_variables():
        variable = tf.Variable(lambda: tf.ones([1 << 20, 1 << 20]), name="large", trainable=False)
    assert variable.shape == (1 << 20, 1 << 20)
    assert variable.dtype == tf.float32
    assert not variable.trainable
    assert variable.read_value().shape == (0,)
    # A value that is there gives its shape; outside, variables are as ever.
    with unallocated_variables():
        variable = tf.Variable([[1, 2]], dtype=tf.int64)
    assert (variable.shape, variable.dtype) == ((1, 2), tf.int64)
    assert tf.Variable(2.0).numpy() == 2.0


@pytest.mark.usefixtures("patches_undone")
def test_large_variables_take_no_memory_until_they_are_written() -> None:
    leave_large_variables_unwritten(1 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    large = [
        keras.Variable("ones", shape=(32_768, 65_536), dtype=dtype)
        for dtype in ("float32", "bfloat16", "float32")
    ]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000
    for variable in large:
        assert variable.value.shape == (32_768, 65_536)
        assert float(variable.value[7, 9]) == 0.0
    first, second = (keras.Variable("zeros", shape=(1024, 1024)) for _ in range(2))
    first.assign_add(np.ones((1024, 1024), np.float32))
    assert float(first.value[5, 6]) == 1.0 and float(second.value[5, 6]) == 0.0
    small = keras.Variable("ones", shape=(2, 3))
    np.testing.assert_array_equal(small.numpy(), np.ones((2, 3)))
    given = keras.Variable(np.ones((1024, 1024), np.float32))
    assert float(given.value[3, 4]) == 1.0


def test_the_keras_variable_behind_an_initial_value_is_found() -> None:
    seen = []

    def creator(next_creator, **kwargs):
        seen.append(keras_variable_being_made(kwargs["initial_value"]))
        return next_creator(**kwargs)

    with tf.variable_creator_scope(creator):
        layer = layers.Dense(2, name="here")
        layer.build((None, 3))
    assert [variable.path for variable in seen] == ["here/kernel", "here/bias"]
    assert tuple(seen[0].shape) == (3, 2)
    assert keras_variable_being_made(tf.zeros([2])) is None


def test_new_variables_are_made_inside_the_context(patches_undone: None) -> None:
    made = []

    def creator(next_creator, **kwargs):
        made.append(kwargs["name"])
        return next_creator(**kwargs)

    around_new_variables(lambda: tf.variable_creator_scope(creator))
    keras.utils.clear_session(free_memory=False)
    layer = layers.Dense(2, name="here")
    layer.build((None, 3))
    optimizer = keras.optimizers.SGD(momentum=0.9)
    optimizer.build(layer.trainable_variables)
    assert made[:2] == ["kernel", "bias"]
    assert any("momentum" in name for name in made)


def test_a_plain_variable_has_no_owner() -> None:
    strategy = Strategy(devices=["cpu:0", "cpu:1"], shares="even")
    with strategy.scope():
        variable = plain_variable([1.0], tf.float32)
    assert not strategy.owner_registry.holds(variable)
    assert not variable.trainable


def test_variables_that_wait_keep_their_device() -> None:
    import evener

    evener.pin("cpu:1")  # Puts it in place.

    class Late(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.inner = layers.Dense(2)

        def call(self, x: tf.Tensor) -> tf.Tensor:
            with tf.device("/CPU:2"):
                return self.inner(x)

    model = Late()
    model(tf.ones([1, 3]))
    assert model.inner.kernel.value.device.endswith("CPU:2")


def test_a_variable_is_made_anew_on_another_device() -> None:
    variable = keras.Variable([1.0, 2.0], trainable=False)
    with tf.device("/CPU:1"):
        old = renew_variable(variable)
    assert old.device.endswith("CPU:0")
    assert variable.value.device.endswith("CPU:1")
    assert variable.numpy().tolist() == [1.0, 2.0]
    assert not variable.value.trainable
    assert not waits_for(variable, "/CPU:2")


def test_the_length_of_a_tensor_in_a_graph_is_its_first_size() -> None:
    lengths: list[int] = []

    @tf.function(autograph=False)
    def of(tensor: tf.Tensor) -> tf.Tensor:
        with symbolic_lengths():
            lengths.append(len(tensor))
        return tensor

    of(tf.zeros([3, 2]))
    assert lengths == [3]
    with pytest.raises(TypeError, match="len"):
        of.get_concrete_function(tf.TensorSpec([None], tf.float32))
    with pytest.raises(TypeError, match="len"):
        tf.function(lambda x: x[: len(x)], autograph=False)(tf.zeros([3]))


def test_containers_of_a_module_are_taken_out_of_their_wrappers() -> None:
    module = tf.Module()
    module.rates = {"a": 1.0}
    assert type(module.rates) is not dict
    assert type(unwrapped(module.rates)) is dict
    assert unwrapped(module) is module
    assert is_eager_tensor(tf.constant(1.0))
    with tf.Graph().as_default():
        assert not is_eager_tensor(tf.constant(1.0))


def test_every_way_to_the_host_is_one_function(patches_undone: None) -> None:
    seen: list[Any] = []
    tensor = tf.constant(2.0)
    HOST_READS.apply(noting(lambda _, value: seen.append(value)))
    for read in (float, int, bool, str, repr, lambda value: value.numpy(), "{:.1f}".format):
        seen.clear()
        read(tensor)
        assert seen == [2.0], read


def test_the_device_of_now_is_seen_in_graphs_too() -> None:
    assert (explicit_device(), current_device()) == ("", "")
    with tf.device("/CPU:1"):
        assert explicit_device().endswith("CPU:1")
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


def test_the_strategy_of_one_device_is_found() -> None:
    assert type(tf.distribute.OneDeviceStrategy("cpu:0").extended) is OneDeviceExtended


def test_the_old_list_of_local_devices_is_replaced(patches_undone: None) -> None:
    device_lib, _ = owner_of("tensorflow.python.client.device_lib:list_local_devices")
    LOCAL_DEVICES.apply(lambda original: lambda: [*original(), "one more"])
    found = device_lib.list_local_devices()
    assert found[0].name == "/device:CPU:0"
    # What stands in for a GPU is written into a copy of these.
    assert (found[0].device_type, found[0].physical_device_desc) == ("CPU", "")
    assert found[-1] == "one more"
