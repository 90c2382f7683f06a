"""Replacements while a step is traced: BatchNormalization, and reads of unknown dimensions."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import keras
import tensorflow as tf

from evener._tf_private.patches import Patch, setting, wrap_with
from evener.base.user_code import is_own, is_rewritten

_READS = Patch(
    "reads of unknown dimensions",
    *(
        f"tensorflow:TensorShape.{name}"
        for name in ("__getitem__", "__iter__", "as_list", "num_elements")
    ),
    why="A step that is traced for batches of any size gets None from ``x.shape[0]``, but a number "
    "if it is traced for a fixed size. It may then compute something else without an error. There "
    "is no public hook.",
    if_it_changes="Such steps silently compute with None.",
)
_OF_KERAS = frozenset({("elastic_transform", "keras/src/backend/tensorflow/image.py")})
"""Functions of Keras, with their files, that compute something else for an unknown batch size.

Why: other functions of libraries that read None give what they give for a number, so they do not
count. This one distorts all images by the numbers that it draws for one.
If it changes: steps with such a layer, called with tensors, differ from one device.
"""


@dataclass(slots=True)
class AskedSizes:
    """Whether an unknown dimension was read."""

    is_asked: bool = False


class _Step(threading.local):
    asked: AskedSizes | None = None  # where reads of unknown dimensions are noted
    has_separate_batch_norm = False  # whether the fused kernel becomes several operations
    has_batch_norm_per_device = False


_step = _Step()
"""The step that this thread traces."""


@contextlib.contextmanager
def noticing_unknown_sizes() -> Generator[AskedSizes]:
    """Detect that user code of this thread gets None for a dimension."""
    asked = AskedSizes()
    with setting(_step, asked=asked), _READS.applied(_noticing):
        yield asked


def _noticing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(shape: tf.TensorShape, *args: Any) -> Any:
        asked = _step.asked
        if asked is not None and not asked.is_asked and not shape.is_fully_defined():
            asked.is_asked = _counts(sys._getframe(1)) and _is_unknown(original(shape, *args))
        return original(shape, *args)

    return method


def _counts(frame: FrameType | None) -> bool:
    """Return whether a person's code asks, which AutoGraph may have rewritten, or the like."""
    autograph = "tensorflow/python/autograph/impl/api.py"
    while frame is not None and frame.f_code.co_filename.endswith(autograph):
        frame = frame.f_back
    name, file = ("", "") if frame is None else (frame.f_code.co_name, frame.f_code.co_filename)
    if any(name == known and file.endswith(path) for known, path in _OF_KERAS):
        return True
    return is_own(file) or is_rewritten(file) or file.startswith("<")


def _is_unknown(value: Any) -> bool:
    if isinstance(value, tf.TensorShape):
        return False  # a part of a shape: what is taken of it is noticed then
    return value is None or (not isinstance(value, int) and None in list(value))


# BatchNormalization: the fused kernel in several operations, and ``batch_norm="per_device"``.

PER_PART_SCOPE = "evener_per_part"
"""The name scope of the means that every part takes of its own samples."""

_FUSED = Patch(
    "fused BatchNormalization",
    "tensorflow:compat.v1.nn.fused_batch_norm",
    why="One kernel computes the mean of all samples and what follows from it, so no part can "
    "compute it of its own samples. Keras 2 and TensorFlow 1 normalise images by it.",
    if_it_changes="Such steps are exact, and each of these layers is computed on one device.",
)


def batch_norm_in_parts() -> contextlib.AbstractContextManager[None]:
    """Make `tf.compat.v1.nn.fused_batch_norm` several operations in what this thread traces."""
    _FUSED.apply(wrap_with(_fused_batch_norm))
    return setting(_step, has_separate_batch_norm=True)


def _fused_batch_norm(original: Callable[..., Any], x, scale, offset, *args, **kwargs) -> Any:
    x = tf.convert_to_tensor(x)
    # The kernel refuses other types and ranks, and says so.
    is_known = x.dtype in (tf.float16, tf.bfloat16, tf.float32) and x.shape.rank in (4, 5)
    if not _step.has_separate_batch_norm or tf.executing_eagerly() or not is_known:
        return original(x, scale, offset, *args, **kwargs)
    return _separate(x, scale, offset, *args, **kwargs)


def _separate(
    x: tf.Tensor,
    scale: Any,
    offset: Any,
    mean: Any = None,
    variance: Any = None,
    epsilon: float = 0.001,
    data_format: str = "NHWC",
    is_training: bool = True,
    name: str | None = None,
    exponential_avg_factor: float = 1.0,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Compute what `tf.compat.v1.nn.fused_batch_norm` computes, which says what is given."""
    if (not is_training or exponential_avg_factor != 1.0) and (mean is None or variance is None):
        raise ValueError(
            "fused_batch_norm needs a mean and a variance, since is_training is "
            f"{is_training} and exponential_avg_factor is {exponential_avg_factor}."
        )
    axis = 1 if data_format.startswith("NC") else x.shape.rank - 1
    axes = [k for k in range(x.shape.rank) if k != axis]
    shape = [-1 if k == axis else 1 for k in range(x.shape.rank)]

    def along(values: Any) -> tf.Tensor:
        return tf.reshape(tf.cast(values, tf.float32), shape)

    with tf.name_scope(name or "FusedBatchNorm"):
        wide = tf.cast(x, tf.float32)
        # The kernel gives the gradient of its first result alone, and none of these two.
        given: list[Any] = [
            value if value is None else tf.stop_gradient(value) for value in (mean, variance)
        ]
        used = tf.nn.moments(wide, axes) if is_training else given
        if is_training:
            # TensorFlow stops the gradient at the mean there: this adds 0, and the second gradient.
            used = used[0], used[1] - tf.square(used[0] - tf.stop_gradient(used[0]))
        inverse = tf.math.rsqrt(along(used[1]) + epsilon) * along(scale)
        result = tf.cast((wide - along(used[0])) * inverse + along(offset), x.dtype)
        if not is_training:
            return result, given[0], given[1]
        count = tf.cast(tf.size(x) / tf.size(used[0]), tf.float32)
        unbiased = used[1] * (count / tf.maximum(count - 1.0, 1.0))
        now = [tf.stop_gradient(value) for value in (used[0], unbiased)]
        if exponential_avg_factor == 1.0:
            return result, now[0], now[1]
        rest = 1.0 - exponential_avg_factor
        moved = [
            rest * before + exponential_avg_factor * value
            for before, value in zip(given, now, strict=True)
        ]
        return result, moved[0], moved[1]


def per_device_batch_norm() -> contextlib.AbstractContextManager[None]:
    """Mark the statistics of BatchNormalization in the step that this thread traces."""
    _CALLS.apply(wrap_with(_normalise_layer))
    return setting(_step, has_batch_norm_per_device=True)


_CALLS = Patch(
    "statistics of BatchNormalization",
    "keras:layers.BatchNormalization.call",
    why="In the graph of a step, the mean of a normalization looks like any other mean, and its "
    "gradient has to use the samples of one device too.",
    if_it_changes='With batch_norm="per_device" the statistics are those of the global batch.',
)


def _normalise_layer(original: Callable[..., Any], layer, inputs, training=None, mask=None) -> Any:
    """Normalise and update the moving averages, as `BatchNormalization.call` does."""
    # Keras 3.12 has no renorm.
    is_plain = mask is None and not getattr(layer, "renorm", False) and not layer.synchronized
    if not (_step.has_batch_norm_per_device and training and layer.trainable and is_plain):
        return original(layer, inputs, training=training, mask=mask)
    inputs = keras.ops.cast(inputs, keras.backend.result_type(inputs.dtype, "float32"))
    axis = layer.axis % len(inputs.shape)
    shape = [1] * len(inputs.shape)
    shape[axis] = inputs.shape[axis]
    axes = [k for k in range(len(shape)) if k != axis]
    gamma, beta = tf.ones(shape, inputs.dtype), tf.zeros(shape, inputs.dtype)
    if layer.scale:
        gamma = tf.reshape(keras.ops.cast(layer.gamma, inputs.dtype), shape)
    if layer.center:
        beta = tf.reshape(keras.ops.cast(layer.beta, inputs.dtype), shape)

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


def normalise(
    x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, *, axes: Sequence[int], epsilon: float
) -> tuple[tuple[tf.Tensor, tf.Tensor, tf.Tensor], Any]:
    """Normalise samples by their mean and variance."""
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
