"""Reductions and gathering over the replicas.

A mean over replicas counts every replica by its samples where they are known, so that the
mean of means is the mean of the batch. A replica without samples may have computed a mean
over nothing: a number that is not finite does not count there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from evener import _tf_private
from evener.engine.loops.run import Run
from evener.errors import EngineError

_MEAN = tf.distribute.ReduceOp.MEAN


def reduced(op: Any, values: Sequence[Any], devices: Sequence[str], run: Run | None) -> list[Any]:
    """Return the reduced value on each of the devices.

    Args:
        op: ``ReduceOp.SUM`` or ``MEAN``.
        values: One per replica: tensors or slices.
        devices: TensorFlow's names of where the result is wanted.
        run: The run that has given the values, if it is known.
    """
    if all(isinstance(value, tf.IndexedSlices) for value in values):
        slices = _joined(op, list(values), run)
        return [slices] * len(devices)
    tensors = [tf.convert_to_tensor(value) for value in values]
    tensors = _weighted(op, tensors, run)
    results = []
    for device in devices:
        with tf.device(device):
            total = tf.add_n(tensors)
            if op == _MEAN and run is None:
                total = _divided(total, len(tensors))
            results.append(total)
    return results


def _weighted(op: Any, tensors: list[tf.Tensor], run: Run | None) -> list[tf.Tensor]:
    if run is None:
        return tensors
    counted = []
    for k, tensor in enumerate(tensors):
        with tf.device(tensor.device):
            if op == _MEAN:
                tensor = _times(tensor, run.weights[k])
            elif run.num_samples is not None and tensor.dtype.is_floating:
                if tensor.shape.rank == 0:
                    counts = tf.math.is_finite(tensor) | (run.num_samples[k] > 0)
                    tensor = tf.where(counts, tensor, tf.zeros_like(tensor))
        counted.append(tensor)
    return counted


def _times(tensor: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    if tensor.dtype.is_floating or tensor.dtype.is_complex:
        return tf.math.multiply_no_nan(tensor, tf.cast(weight, tensor.dtype))
    return tf.cast(tf.cast(tensor, tf.float64) * tf.cast(weight, tf.float64), tensor.dtype)


def _divided(total: tf.Tensor, count: int) -> tf.Tensor:
    if total.dtype.is_floating or total.dtype.is_complex:
        return total / tf.cast(count, total.dtype)
    return total // tf.cast(count, total.dtype)


def _joined(op: Any, slices: list[Any], run: Run | None) -> tf.IndexedSlices:
    parts = []
    for k, one in enumerate(slices):
        part = one.values
        if op == _MEAN:
            weight = 1.0 / len(slices) if run is None else run.weights[k]
            part = _times(part, tf.convert_to_tensor(weight))
        parts.append(part)
    return tf.IndexedSlices(
        values=tf.concat(parts, 0),
        indices=tf.concat([one.indices for one in slices], 0),
        dense_shape=slices[0].dense_shape,
    )


def same_everywhere(op: Any, value: Any, num_replicas: int) -> Any:
    """Return the reduction of a value that is no replica's own.

    Raises:
        EngineError: If it should be added up: nobody can tell whether it counts once.
    """
    if op == _MEAN or num_replicas == 1 or _is_zero(value):
        return value
    raise EngineError(
        "ENG-063",
        f"A {type(value).__name__} was to be added up over the replicas, but it is no "
        "replica's own.",
        why="It is the same for all replicas, so it cannot be told whether it counts once or "
        f"{num_replicas} times.",
        fix="Give reduce what strategy.run has returned, or use ReduceOp.MEAN.",
    )


def _is_zero(value: Any) -> bool:
    return isinstance(value, int | float) and value == 0


def gathered(values: Sequence[Any], device: str, axis: int) -> tf.Tensor:
    """Return the values of all replicas joined along an axis, on a device."""
    with tf.device(device):
        return tf.concat([tf.convert_to_tensor(value) for value in values], axis)


def devices_of(destinations: Any, everywhere: Sequence[str]) -> list[str] | str:
    """Return where a result is wanted: one device, or those of all replicas."""
    if isinstance(destinations, str):
        return destinations
    if _tf_private.is_per_replica(destinations):
        return list(everywhere)
    return getattr(destinations, "device", "") or everywhere[0]
