"""Optimizers in a replica: the gradients of all are summed, and the update is made once.

`tf.distribute` lets every replica clip, average and accumulate its own gradients. Here all
replicas wait, and the whole of the optimizer's ``apply`` runs once, on sums, as it would on
one device; each variable's part on its owner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from evener import _tf_private
from evener.engine.context import whole_batch
from evener.engine.loops import run as runs
from evener.engine.loops.losses import by_weight
from evener.engine.loops.origin import warn_at_user_line
from evener.engine.loops.run import Run
from evener.engine.loops.scaled import kind_of
from evener.engine.reduction import beside_inputs, sum_on_owner


def apply_in_replica(
    original: Callable[..., Any], optimizer: Any, grads: Sequence[Any], variables: Any
) -> Any:
    """Do what ``optimizer.apply(grads, variables)`` means here."""
    here = runs.current()
    if here is None:
        return original(optimizer, grads, variables)
    run, replica = here
    known = None if variables is None else list(variables)
    targets = optimizer._trainable_variables if known is None else known

    def merged(gradients: list[Any]) -> None:
        _update(run, optimizer, original, gradients, targets, known)

    run.merge(replica, list(grads), merged)
    return None


def _update(
    run: Run,
    optimizer: Any,
    original: Callable[..., Any],
    gradients: list[list[Any]],
    targets: Sequence[Any],
    variables: list[Any] | None,
) -> None:
    if variables is not None and not optimizer.built:
        # Here, where the strategy's own scope is still the innermost one.
        _tf_private.adopt_optimizer(optimizer, run.strategy)
        optimizer.build(variables)
        optimizer.built = True
    columns = zip(*gradients, strict=True)
    sums = [
        sum_on_owner(column, _device_of(variable), row_by_row=_are_same_rows(column))
        for variable, column in zip(targets, columns, strict=True)
    ]
    with whole_batch(), beside_inputs():
        original(optimizer, sums, variables)


def _device_of(variable: Any) -> str:
    value = getattr(variable, "value", variable)
    return (value if hasattr(value, "device") else variable).device


def _are_same_rows(column: Sequence[Any]) -> bool:
    """Whether slices are of the same rows in every replica: rows that no batch chooses."""
    if len(column) == 1 or not all(isinstance(g, tf.IndexedSlices) for g in column):
        return False
    return not tf.executing_eagerly() and all(_is_constant(g.indices) for g in column)


def _is_constant(tensor: tf.Tensor) -> bool:
    waiting, seen = [tensor.op], set()
    while waiting:
        operation = waiting.pop()
        if operation in seen:
            continue
        seen.add(operation)
        if not operation.inputs and operation.type != "Const":
            return False
        waiting.extend(t.op for t in operation.inputs)
    return True


def gradient_in_replica(target: Any, gradients: Any) -> Any:
    """Return gradients of a tape, of a loss that is a part of the batch's.

    The mean over a replica's own samples is no such part: replicas add up their gradients,
    and two replicas would take steps of twice the size. It is made one here, and that is said.
    """
    here = runs.current()
    if here is None or here[0].is_alone or not isinstance(target, tf.Tensor):
        return gradients
    run, replica = here
    if target.shape.rank != 0 or kind_of(target, run.strategy.num_replicas_in_sync) != "mean":
        return gradients
    if run.strategy.loop_state.is_first("ENG-066"):
        warn_at_user_line(
            "ENG-066",
            "The loss is the mean over the samples of one replica, and is not scaled.",
            why="Gradients of replicas are added up, so the steps would be "
            f"{run.strategy.num_replicas_in_sync} times as large as on one device. Each "
            "replica's gradient is therefore weighed by its samples.",
            fix="Use a Keras loss, or tf.nn.compute_average_loss(per_example_loss).",
        )

    def one(gradient: Any) -> Any:
        if gradient is None:
            return None
        if isinstance(gradient, tf.IndexedSlices):
            return tf.IndexedSlices(
                by_weight(gradient.values, run, replica), gradient.indices, gradient.dense_shape
            )
        return by_weight(gradient, run, replica)

    return tf.nest.map_structure(one, gradients)
