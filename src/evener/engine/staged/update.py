"""What happens once per step, after the replicas: penalties, update, state and metrics."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import keras
import tensorflow as tf

from evener import _tf_private
from evener.engine.staged.alike import updated_alike
from evener.engine.staged.reduction import Gradient, sum_on_owner
from evener.locality import beside_inputs


def loss_scale(optimizer: keras.optimizers.Optimizer | None) -> tf.Tensor:
    """Return by what the optimizer wants the loss multiplied, float32 scalar."""
    one = tf.ones([])
    return one if optimizer is None else tf.cast(optimizer.scale_loss(one), tf.float32)


def penalties(trainable: Sequence[Any], scale: tf.Tensor) -> tuple[list[tf.Tensor], list[Gradient]]:
    """Return the weight penalties and their gradients, each computed once, on the owner.

    Returns:
        The values of the variables that have a regularizer, and for every variable the
        gradient of its scaled penalty or None.
    """
    values: list[tf.Tensor] = []
    gradients: list[Gradient] = []
    for variable in trainable:
        if variable.regularizer is None:
            gradients.append(None)
            continue
        with tf.device(variable.value.device), tf.GradientTape() as tape:
            weight = tf.identity(variable.value)
            tape.watch(weight)
            value = tf.reduce_sum(variable.regularizer(weight))
        with tf.device(variable.value.device):
            seed = [tf.cast(scale, value.dtype)]
            gradients.extend(tape.gradient([value], [weight], output_gradients=seed))
        values.append(value)
    return values, gradients


def apply_gradients(
    optimizer: keras.optimizers.Optimizer,
    trainable: Sequence[Any],
    gradients: Sequence[Sequence[Gradient]],
    whole_slices: Collection[int] = (),
) -> None:
    """Sum every variable's gradients on its owner, and run the optimizer once.

    Args:
        optimizer: The compiled optimizer, built.
        trainable: Keras variables.
        gradients: For each contributor, one per variable.
        whole_slices: Positions of variables whose slices add up row by row.
    """
    columns = zip(*gradients, strict=True)
    sums = [
        sum_on_owner(g, v.value.device, row_by_row=k in whole_slices)
        for k, (v, g) in enumerate(zip(trainable, columns, strict=True))
    ]
    with beside_inputs(), updated_alike(optimizer):
        optimizer.apply_gradients(zip(sums, trainable, strict=True))


def assign_state(variables: Sequence[Any], values: Sequence[tf.Tensor | None]) -> None:
    """Write merged state to its owners."""
    for variable, value in zip(variables, values, strict=True):
        if value is not None:
            with tf.device(variable.value.device):
                variable.assign(value)


def count_metrics(variables: Sequence[Any], changes: Sequence[Sequence[tf.Tensor]]) -> None:
    """Add to every metric variable what the replicas have counted."""
    for variable, *column in zip(variables, *changes, strict=True):
        with tf.device(variable.value.device):
            total = column[0] if len(column) == 1 else tf.add_n(column)
            variable.assign(variable.value + tf.cast(total, variable.dtype))


def track_losses(
    model: keras.Model, total: tf.Tensor, values: Sequence[tf.Tensor], num_samples: tf.Tensor
) -> None:
    """Log the loss, and the loss of every output where there are several.

    Keras weights the loss of one output by the static batch size, which it forgets after a
    partial batch; here every batch counts by its samples.
    """
    _tf_private.loss_tracker(model).update_state(total, sample_weight=num_samples)
    compiled = _tf_private.compiled_loss(model)
    trackers = [] if compiled is None else compiled.metrics
    for tracker, value in zip(trackers, values, strict=False):
        tracker.update_state(value, sample_weight=num_samples)
