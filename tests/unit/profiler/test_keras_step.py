from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from evener.errors import ProfileError
from evener.profiler.layer_costs import layer_costs
from evener.profiler.measure import measure_step
from evener.profiler.profile import trace_keras_step
from unit.profiler.models import dense, sequence


def make() -> keras.Model:
    model = sequence((4,), dense(8, "a", "tanh"), keras.layers.Dropout(0.5), dense(3, "b"))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    return model


SPECS = tf.TensorSpec([4]), tf.TensorSpec([], tf.int32)


def test_the_step_of_a_model() -> None:
    step = trace_keras_step(make(), *SPECS)
    assert step.trains
    assert step.batch_axes == (0, 0)
    assert {"loss", "accuracy"} <= set(step.structure)


def test_a_model_that_is_made_here_has_the_same_costs_without_memory() -> None:
    whole = layer_costs(trace_keras_step(make(), *SPECS))
    keras.utils.clear_session(free_memory=False)
    step = trace_keras_step(make, *SPECS)
    assert layer_costs(step) == whole
    with pytest.raises(tf.errors.OpError):
        step.concrete(tf.zeros([2, 4]), tf.zeros([2], tf.int32))
    assert len(measure_step(step, "cpu:0", [2]).layers) == 3


def test_a_terabyte_of_weights() -> None:
    def large() -> keras.Model:
        width = 1 << 18
        model = sequence((width,), dense(width, "a"), dense(width, "b"))
        model.compile("adam", "mse")
        return model

    spec = tf.TensorSpec([1 << 18])
    layers = layer_costs(trace_keras_step(large, spec, spec)).layers
    assert [layer.weight_bytes for layer in layers] == [4 * ((1 << 36) + (1 << 18))] * 2


def test_inputs_by_name() -> None:
    left, right = keras.Input((2,), name="left"), keras.Input((3,), name="right")
    joint = keras.layers.Concatenate(name="joint")([left, right])
    model = keras.Model({"left": left, "right": right}, dense(1, "head")(joint))
    model.compile("sgd", "mse")
    x = {"left": tf.TensorSpec([2]), "right": tf.TensorSpec([3])}
    costs = layer_costs(trace_keras_step(model, x, tf.TensorSpec([1])))
    assert [layer.name for layer in costs.layers] == ["joint", "head"]
    assert costs.input_bytes == (2 + 3 + 1) * 4


def test_a_model_has_to_be_compiled() -> None:
    with pytest.raises(ProfileError, match="PROF-010") as raised:
        trace_keras_step(sequence((4,), dense(8, "a")), *SPECS)
    assert "model.compile" in raised.value.fix
