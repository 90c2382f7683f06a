from __future__ import annotations

import resource

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from evener import Strategy
from evener._tf_private.tensors import (
    around_new_variables,
    keras_variable_being_made,
    leave_large_variables_unwritten,
    plain_variable,
    renew_variable,
    unallocated_variables,
    waits_for,
)

pytestmark = pytest.mark.usefixtures("logical_cpus")


def test_a_variable_has_a_shape_and_no_value() -> None:
    with unallocated_variables():
        variable = tf.Variable(lambda: tf.ones([1 << 20, 1 << 20]), name="large", trainable=False)
    assert variable.shape == (1 << 20, 1 << 20)
    assert variable.dtype == tf.float32
    assert not variable.trainable
    assert variable.read_value().shape == (0,)


def test_a_value_that_is_there_gives_its_shape() -> None:
    with unallocated_variables():
        variable = tf.Variable([[1, 2]], dtype=tf.int64)
    assert (variable.shape, variable.dtype) == ((1, 2), tf.int64)


def test_outside_variables_are_as_ever() -> None:
    with unallocated_variables():
        pass
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
    small = keras.Variable("ones", shape=(2, 3))
    np.testing.assert_array_equal(small.numpy(), np.ones((2, 3)))
    given = keras.Variable(np.ones((1024, 1024), np.float32))
    assert float(given.value[3, 4]) == 1.0


@pytest.mark.usefixtures("patches_undone")
def test_a_large_variable_is_written_as_ever() -> None:
    leave_large_variables_unwritten(1 << 20)
    first, second = (keras.Variable("zeros", shape=(1024, 1024)) for _ in range(2))
    first.assign_add(np.ones((1024, 1024), np.float32))
    assert float(first.value[5, 6]) == 1.0 and float(second.value[5, 6]) == 0.0


@pytest.fixture
def strategy() -> Strategy:
    return Strategy(devices=["cpu:0", "cpu:1"], shares="even")


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


def test_a_plain_variable_has_no_owner(strategy: Strategy) -> None:
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
