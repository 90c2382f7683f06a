"""BatchNormalization with the statistics of each device's samples: ``batch_norm="per_device"``."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import keras
import tensorflow as tf

PER_PART_SCOPE = "evener_per_part"
"""The name scope of the means that every part takes of its own samples."""

_IS_PER_DEVICE: ContextVar[bool] = ContextVar("evener_batch_norm_per_device", default=False)


@contextlib.contextmanager
def per_device_batch_norm() -> Iterator[None]:
    """Mark the statistics of BatchNormalization in the step that this thread traces.

    Why: in the graph of a step, the mean of a normalization looks like any other mean, and its
    gradient has to use the samples of one device too.
    If it changes: the statistics are those of the global batch, as without it.
    """
    _mark_statistics()
    token = _IS_PER_DEVICE.set(True)
    try:
        yield
    finally:
        _IS_PER_DEVICE.reset(token)


def _mark_statistics() -> None:
    """Patch the layer, once. Outside of `per_device_batch_norm` nothing changes."""
    layer_type = keras.layers.BatchNormalization
    original = layer_type.call
    if hasattr(original, "_evener_original"):
        return

    @functools.wraps(original)
    def call(self: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        # Keras 3.12 has no renorm.
        is_plain = mask is None and not getattr(self, "renorm", False) and not self.synchronized
        if not (_IS_PER_DEVICE.get() and training and self.trainable and is_plain):
            return original(self, inputs, training=training, mask=mask)
        return _call(self, inputs)

    vars(call)["_evener_original"] = original
    layer_type.call = call


def _call(layer: Any, inputs: Any) -> Any:
    """Normalise and update the moving averages, as `BatchNormalization.call` does."""
    inputs = keras.ops.cast(inputs, keras.backend.result_type(inputs.dtype, "float32"))
    axis = layer.axis % len(inputs.shape)
    shape = [1] * len(inputs.shape)
    shape[axis] = inputs.shape[axis]
    axes = [k for k in range(len(shape)) if k != axis]
    ones, zeros = tf.ones(shape, inputs.dtype), tf.zeros(shape, inputs.dtype)
    gamma = _shaped(layer.gamma, shape, inputs.dtype) if layer.scale else ones
    beta = _shaped(layer.beta, shape, inputs.dtype) if layer.center else zeros

    @tf.custom_gradient
    def normalised(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> Any:
        return normalise(x, gamma, beta, axes=axes, epsilon=layer.epsilon)

    untyped: Any = normalised
    outputs, mean, variance = untyped(inputs, gamma, beta)
    for variable, statistic in ((layer.moving_mean, mean), (layer.moving_variance, variance)):
        moving = keras.ops.cast(variable, inputs.dtype)
        now = tf.reshape(statistic, [shape[axis]])
        variable.assign(moving * layer.momentum + now * (1.0 - layer.momentum))
    return keras.ops.cast(outputs, layer.compute_dtype)


def _shaped(variable: Any, shape: Sequence[int], dtype: Any) -> tf.Tensor:
    return tf.reshape(keras.ops.cast(variable, dtype), shape)


def normalise(
    x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, *, axes: Sequence[int], epsilon: float
) -> tuple[tuple[tf.Tensor, tf.Tensor, tf.Tensor], Any]:
    """Normalise samples by their mean and variance.

    The gradient is written out, so that its two means are taken of the same samples.

    Args:
        x: Samples, of any shape and a floating-point type.
        gamma: Scale, of the rank of x, with size 1 along the axes.
        beta: Offset, of the shape of gamma.
        axes: Axes that the statistics are taken over.
        epsilon: Number that is added to the variance.

    Returns:
        The normalised samples with mean and variance, and the gradient.

    Source: S. Ioffe and C. Szegedy, Batch Normalization (2015), section 3.
    """
    mean = _mean(x, axes)
    centred = x - mean
    variance = _mean(tf.square(centred), axes)
    inverse = tf.math.rsqrt(variance + epsilon)
    normal = centred * inverse

    def gradient(upstream: tf.Tensor, *_: tf.Tensor) -> list[tf.Tensor]:
        scaled = upstream * gamma
        common = _mean(scaled, axes) + normal * _mean(scaled * normal, axes)
        gradients = [
            inverse * (scaled - common),
            tf.reduce_sum(upstream * normal, axes, keepdims=True),
            tf.reduce_sum(upstream, axes, keepdims=True),
        ]
        message = 'batch_norm="per_device" has no second derivative; leave it out.'
        return [tf.raw_ops.PreventGradient(input=each, message=message) for each in gradients]

    return (normal * gamma + beta, mean, variance), gradient


def _mean(x: tf.Tensor, axes: Sequence[int]) -> tf.Tensor:
    with tf.name_scope(PER_PART_SCOPE):
        return tf.reduce_mean(x, axes, keepdims=True)
