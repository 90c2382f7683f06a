"""Optimizers in a replica: the gradients of all are summed, and the update is made once.

`tf.distribute` lets every replica clip, average and accumulate its own gradients. Here all
replicas wait, and the whole of the optimizer's ``apply`` runs once, on sums, as it would on
one device; each variable's part on its owner.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from evener import _tf_private
from evener.engine.staged.context import whole_batch
from evener.engine.staged.loops import idle
from evener.engine.staged.loops import run as runs
from evener.engine.staged.loops.run import Run, is_number
from evener.engine.staged.loops.scaled import to_mend
from evener.engine.staged.reduction import sum_on_owner
from evener.errors import EngineError
from evener.locality import beside_inputs


def apply_in_replica(
    original: Callable[..., Any],
    optimizer: Any,
    grads: Sequence[Any],
    trainable_variables: Any = None,
) -> Any:
    """Do what ``optimizer.apply(grads, trainable_variables)`` means here."""
    here = runs.current()
    if here is None:
        return _outside(original, optimizer, grads, trainable_variables)
    run, replica = here
    if not run.in_one_graph():
        raise EngineError(
            "ENG-067",
            "An optimizer was applied in a condition, a loop or a function inside strategy.run.",
            why="Every replica has to come there for its gradients to be added up, and in a graph "
            "of its own none can wait for another.",
            fix="Apply it in the function given to strategy.run itself. To apply it every few "
            "steps, give the optimizer gradient_accumulation_steps.",
        )
    known = None if trainable_variables is None else list(trainable_variables)
    targets = optimizer._trainable_variables if known is None else known

    def merged(gradients: list[Any]) -> None:
        if run.live is not None and run.has_talked:
            # Through what the replicas have told each other, a gradient comes to one that has
            # no samples, too.
            gradients = [
                idle.all_counted(g, has) for g, has in zip(gradients, run.live, strict=True)
            ]
        _update(run, optimizer, original, gradients, targets, known)

    run.merge(replica, list(grads), merged)
    return None


def _outside(original: Callable[..., Any], optimizer: Any, grads: Any, variables: Any) -> Any:
    """Update in a scope, but in no replica: as on one device, each variable on its owner."""
    strategy = tf.distribute.get_strategy()
    if not tf.distribute.has_strategy():
        made_in = _tf_private.optimizer_strategy(optimizer)
        if runs.is_ours(made_in):
            with made_in.scope():
                _build(optimizer, made_in, variables)
    if not runs.is_ours(strategy) or not tf.distribute.in_cross_replica_context():
        return original(optimizer, grads, variables)
    _build(optimizer, strategy, variables)
    with whole_batch(), beside_inputs():
        return original(optimizer, grads, variables)


def _build(optimizer: Any, strategy: tf.distribute.Strategy, variables: Any) -> None:
    """Make an optimizer's state, where the strategy's own scope is still the innermost one."""
    if variables is not None and not optimizer.built:
        _tf_private.adopt_optimizer(optimizer, strategy)
        optimizer.build(list(variables))
        optimizer.built = True


def _update(
    run: Run,
    optimizer: Any,
    original: Callable[..., Any],
    gradients: list[list[Any]],
    targets: Sequence[Any],
    variables: list[Any] | None,
) -> None:
    _build(optimizer, run.strategy, variables)
    columns = zip(*gradients, strict=True)
    sums = [
        sum_on_owner(
            run.stages.add_up(column),
            _device_of(variable),
            row_by_row=_are_same_rows(column),
        )
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


def gradient_in_replica(
    original: Callable[..., Any], tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any
) -> Any:
    """Return gradients of a tape, of a loss that is a part of the batch's.

    The mean over a replica's own samples is no such part: replicas add up their gradients,
    and two replicas would take steps of twice the size. It is made one here, and that is said.
    """
    here = runs.current()
    with contextlib.nullcontext() if here is None else here[0].stages.gradient():
        return _gradient(original, tape, target, sources, *args, **kwargs)


def _gradient(
    original: Callable[..., Any], tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any
) -> Any:
    here = runs.current()
    given = args or kwargs.get("output_gradients") is not None
    targets = tf.nest.flatten(target)
    if here is None or here[0].is_alone or given or not all(map(_is_floating, targets)):
        return original(tape, target, sources, *args, **kwargs)
    run, replica = here
    seeds = _seeds(run, replica, targets)
    if seeds is None:
        return original(tape, target, sources, *args, **kwargs)
    also, begin = seeds
    return original(tape, also, sources, output_gradients=begin, **kwargs)


def _is_floating(target: Any) -> bool:
    return isinstance(target, tf.Tensor) and target.dtype.is_floating


def _seeds(
    run: Run, replica: int, targets: list[tf.Tensor]
) -> tuple[list[tf.Tensor], list[tf.Tensor]] | None:
    """Return what to differentiate, and what each begins with; None if it is the targets."""
    count = run.strategy.num_replicas_in_sync
    numbers = [target for target in targets if is_number(target)]
    ends = [end for number in numbers for end in to_mend(number, run.whole_rows)]
    if not ends and run.live is None:
        return None
    if any(end.is_whole(count) for end in ends):
        run.strategy.loop_state.say_once(
            "ENG-066",
            "The loss holds a mean over one replica's samples, or a term of model.losses, that "
            "is not scaled.",
            why=f"Gradients of replicas are added up, so it would count {count} times as much as "
            "on one device. It is therefore weighed by the replica's samples.",
            fix="Use a Keras loss or tf.nn.compute_average_loss(per_example_loss), and "
            "tf.nn.scale_regularization_loss(sum(model.losses)).",
        )
    weight = run.weight(replica)
    begin = {}
    for target in targets:
        counts = tf.cast(weight > 0, target.dtype)
        seed = counts if target.shape.rank == 0 else counts * tf.ones_like(target)
        begin[id(target)] = (target, seed)
    for end in ends:
        _, before = begin.get(id(end.tensor), (None, tf.zeros_like(end.tensor)))
        counts = tf.cast(weight > 0, end.tensor.dtype)
        begin[id(end.tensor)] = (end.tensor, before + counts * end.lacks(weight, count))
    pairs = list(begin.values())
    return [tensor for tensor, _ in pairs], [seed for _, seed in pairs]
