"""Small models whose costs can be computed by hand, and their traced steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import layers

from evener.graph.trace import TracedStep
from evener.profile import LayerCosts, ModelCosts
from evener.profiler.layer_costs import layer_costs
from evener.profiler.profile import trace_keras_step

FLOAT = 4


def dense(units: int, name: str, activation: str | None = None) -> keras.Layer:
    return layers.Dense(units, activation=activation, name=name)


def sequence(shape: Sequence[int], *body: keras.Layer, dtype: str = "float32") -> keras.Model:
    return keras.Sequential([keras.Input(tuple(shape), dtype=dtype), *body])


def traced(
    model: keras.Model, y_shape: Sequence[int], *, optimizer: Any = "adam", **compiled: Any
) -> TracedStep:
    """Compile a model with a squared error, unless another loss is given, and trace its step."""
    model.compile(optimizer, **{"loss": "mse", **compiled})
    (given,) = model.inputs
    return trace_keras_step(
        model, tf.TensorSpec(given.shape[1:], given.dtype), tf.TensorSpec(list(y_shape))
    )


def costs_of(model: keras.Model, y_shape: Sequence[int], **arguments: Any) -> ModelCosts:
    return layer_costs(traced(model, y_shape, **arguments))


def by_name(costs: ModelCosts) -> dict[str, LayerCosts]:
    return {layer.name: layer for layer in costs.layers}


def custom_step(model: Callable[..., Any], variables: Sequence[tf.Variable]) -> Callable[..., Any]:
    """Return a step of a person's own with momentum, as one writes it without Keras."""
    momenta = [tf.Variable(tf.zeros_like(variable), trainable=False) for variable in variables]

    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x) - y))
        gradients = tape.gradient(loss, list(variables))
        for variable, momentum, gradient in zip(variables, momenta, gradients, strict=True):
            momentum.assign(0.9 * momentum + gradient)
            variable.assign_sub(0.1 * momentum)
        return loss

    step.keeps = momenta  # type: ignore[attr-defined]
    return step
