"""Reductions and gathering over the replicas.

A mean over replicas counts every replica by its samples where they are known, so that the
mean of means is the mean of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from evener import _tf_private
from evener.engine.staged.loops import idle
from evener.engine.staged.loops.run import Run
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
    if op == _MEAN:
        tensors = [_for_a_mean(tensor) for tensor in tensors]
    weights = _weights(op, run)
    parts = _counted(tensors, run) if weights is None else _weighted(tensors, weights)
    is_half = tensors[0].dtype == tf.float32
    kind = tf.convert_to_tensor(values[0]).dtype if is_half else tensors[0].dtype
    results = []
    for device in devices:
        with tf.device(device):
            total = tf.add_n(parts)
            if op == _MEAN and weights is None:
                total = total / tf.cast(len(parts), total.dtype)
            results.append(tf.cast(total, kind))
    return results


def _for_a_mean(tensor: tf.Tensor) -> tf.Tensor:
    """Return what is added up: whole numbers have a mean between them, halves little room."""
    if tensor.dtype.is_integer or tensor.dtype.is_bool:
        return tf.cast(tensor, tf.float64)
    return tf.cast(tensor, tf.float32) if tensor.dtype.size == 2 else tensor


def _weights(op: Any, run: Run | None) -> list[tf.Tensor] | None:
    """Return what each replica counts in a mean, or None if all count the same."""
    return run.weights if op == _MEAN and run is not None and run.num_samples is not None else None


def _weighted(tensors: list[tf.Tensor], weights: list[tf.Tensor]) -> list[tf.Tensor]:
    return [
        _on_its_device(tensor, lambda t, w=weight: tf.math.multiply_no_nan(t, tf.cast(w, t.dtype)))
        for tensor, weight in zip(tensors, weights, strict=True)
    ]


def _counted(values: list[Any], run: Run | None) -> list[Any]:
    """Return the values, with 0 for what a replica without samples gives."""
    if run is None or run.live is None:
        return values
    return [
        _on_its_device(value, lambda t, has=live: idle.counted(t, has))
        for value, live in zip(values, run.live, strict=True)
    ]


def _on_its_device(tensor: tf.Tensor, fn: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    with tf.device(tensor.device):
        return fn(tensor)


def _joined(op: Any, slices: list[Any], run: Run | None) -> tf.IndexedSlices:
    parts = [one.values for one in slices]
    weights = _weights(op, run)
    if weights is not None:
        parts = _weighted(parts, weights)
    else:
        parts = _counted(parts, run)
        if op == _MEAN:
            parts = [part / tf.cast(len(parts), part.dtype) for part in parts]
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
    known = tf.get_static_value(value) if tf.is_tensor(value) else value
    return known is not None and not np.any(known)


def gathered(values: Sequence[Any], device: str, axis: int, run: Run | None) -> tf.Tensor:
    """Return the values of all replicas joined along an axis, on a device.

    Args:
        values: One per replica.
        device: TensorFlow's name of where the result is wanted.
        axis: The axis.
        run: The run whose replicas are giving the values, if they are in the middle of it.
    """
    with tf.device(device):
        tensors = [tf.convert_to_tensor(value) for value in values]
        if run is not None and run.live is not None:
            tensors = [idle.rows(t, has, axis) for t, has in zip(tensors, run.live, strict=True)]
        return tf.concat(tensors, axis)


def devices_of(destinations: Any, everywhere: Sequence[str]) -> list[str] | str:
    """Return where a result is wanted: one device, or those of all replicas."""
    if isinstance(destinations, str):
        return destinations
    if _tf_private.is_per_replica(destinations):
        return list(everywhere)
    return getattr(destinations, "device", "") or everywhere[0]
