"""Replicas together: in one graph, side by side, for what needs them all in mid-step.

      forward 0 ──► y_pred 0 ──┐                 ┌──► backward 0 ──► gradients 0
                       ▲       ├──► loss of the ─┤
      forward 1 ──► y_pred 1 ──┘    whole batch  └──► backward 1 ──► gradients 1
           synchronised layers
           add up here

Layers that synchronise (`BatchNormalization(synchronized=True)`) make the replicas advance
in lockstep. A loss that a person wrote sees the outputs of the whole batch on one device,
and its gradient with respect to them is handed back to the replicas.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from evener import _tf_private
from evener.engine import added, batch, totals
from evener.engine.clock import Stopwatch
from evener.engine.context import whole_batch
from evener.engine.masked_moments import masked_moments_in_lockstep
from evener.engine.program import Program, StepInput, StepResult
from evener.engine.reduction import Gradient
from evener.engine.replica import ReplicaOutput


class _Seeds(NamedTuple):
    """The loss of the whole batch, and what each replica's backward pass begins with.

    Attributes:
        values: The value of each compiled loss.
        total: The loss.
        of_replicas: For each replica, one gradient per target (`_targets`).
        of_weights: Gradients of a loss that reads weights itself; empty for others.
    """

    values: list[tf.Tensor]
    total: tf.Tensor
    of_replicas: list[list[tf.Tensor]]
    of_weights: list[list[Gradient]]


def forward_backward(program: Program, step: StepInput, scale: tf.Tensor) -> StepResult:
    """Run every replica forward and backward, with the loss of the whole batch between.

    Args:
        program: The program.
        step: The global batch, split.
        scale: The optimizer's loss scale, float32 scalar.
    """
    num_replicas = len(step.replicas)
    borrowed = [program.borrow(k) for k in range(num_replicas)]
    stopwatch = Stopwatch(program)
    tapes: list[Any] = [None] * num_replicas
    outputs: list[Any] = [None] * num_replicas
    gradients: list[list[Gradient]] = [[]] * num_replicas
    seeds: list[_Seeds] = []

    def forward(k: int) -> None:
        given = stopwatch.start(k, step.replicas[k])
        weights, state = borrowed[k]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            outputs[k] = program.replica.forward(weights, state, given, training=True)
        tapes[k] = tape

    def between() -> None:
        make_seeds = _added_up if program.replica.loss_here else _gathered
        seeds.append(make_seeds(program, step, outputs, scale))

    def backward(k: int) -> None:
        targets, begin = _targets(program, outputs[k]), seeds[0].of_replicas[k]
        gradients[k] = tapes[k].gradient(targets, borrowed[k][0], output_gradients=begin)
        stopwatch.stop(k, [*outputs[k].numerators, *gradients[k]])

    live = [tf.cast(given.num_samples > 0, tf.float32) for given in step.replicas]
    with program.strategy.extended.counting(live):
        _advance(program, forward, between, backward)
    stopwatch.record(step.replicas)
    return StepResult(
        outputs=outputs,
        gradients=[*gradients, *seeds[0].of_weights],
        values=seeds[0].values,
        total=seeds[0].total,
    )


def _advance(
    program: Program,
    forward: Callable[[int], None],
    between: Callable[[], None],
    backward: Callable[[int], None],
) -> None:
    """Run ``forward`` of each replica, ``between`` once, and ``backward`` of each replica.

    Each replica's part runs on its device; in lockstep where layers need it.
    """
    if not program.lockstep:
        _on_each_device(program, forward)
        between()
        _on_each_device(program, backward)
        return

    def merge(strategy: tf.distribute.Strategy) -> None:
        del strategy
        with whole_batch():
            between()

    def in_thread() -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        # In a graph, TensorFlow gives the number as a constant tensor.
        replica = int(tf.get_static_value(context.replica_id_in_sync_group))
        forward(replica)
        context.merge_call(merge)
        backward(replica)
        return tf.zeros([])

    with masked_moments_in_lockstep():
        _tf_private.run_in_lockstep(program.strategy, in_thread)


def _on_each_device(program: Program, part: Callable[[int], None]) -> None:
    for k, device in enumerate(program.devices):
        with tf.device(device):
            part(k)


def _targets(program: Program, output: ReplicaOutput) -> list[tf.Tensor]:
    """Return what a replica's gradient begins with, in the order of its seeds."""
    if program.replica.loss_here:
        return [*output.numerators, *output.added]
    return [*_float_leaves(output.y_pred), *output.added]


def _float_leaves(y_pred: Any) -> list[tf.Tensor]:
    return [leaf for leaf in keras.tree.flatten(y_pred) if leaf.dtype.is_floating]


def _added_up(
    program: Program, step: StepInput, outputs: list[ReplicaOutput], scale: tf.Tensor
) -> _Seeds:
    """Add the parts of the replicas up: no output has to leave its device."""
    divisors = batch.divisors_of(program, step, [out.denominators for out in outputs])
    coefficients = totals.coefficients(program.loss_weights, divisors, scale)
    kinds = program.kinds_of_added(training=True)
    of_replicas = [
        [*coefficients, *added.seeds(kinds, given.weight, scale)] for given in step.replicas
    ]
    values, total = batch.loss_of(program, step, outputs, training=True)
    return _Seeds(values=values, total=total, of_replicas=of_replicas, of_weights=[])


def _gathered(
    program: Program, step: StepInput, outputs: list[ReplicaOutput], scale: tf.Tensor
) -> _Seeds:
    """Compute the loss on the outputs of the whole batch, and its gradient for each replica."""
    with tf.device(program.devices[0]):
        added_values = batch.added_over(program, step, outputs, training=True)
        y_pred = batch.gather(program, outputs)
        leaves = _float_leaves(y_pred)
        weights = program.borrow(0)[0] if program.own_compute_loss else []
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([*leaves, *added_values, *weights])
            values, total = batch.gathered_loss(
                program, step, y_pred, added_values, training=True, weights=weights
            )
            scaled = total * tf.cast(scale, total.dtype)
        found: Any = tape.gradient(scaled, [leaves, added_values, weights])
        d_leaves, d_added, d_weights = found
        d_leaves = [_dense(d, leaf) for d, leaf in zip(d_leaves, leaves, strict=True)]
        d_added = [_dense(d, term) for d, term in zip(d_added, added_values, strict=True)]
    kinds = program.kinds_of_added(training=True)
    of_replicas = []
    for k, given in enumerate(step.replicas):
        own = [d[step.cuts[k] : step.cuts[k + 1]] for d in d_leaves]
        of_added = added.parts(kinds, given.weight, d_added)
        of_replicas.append([*own, *of_added])
    of_weights = [d_weights] if program.own_compute_loss else []
    return _Seeds(values=values, total=total, of_replicas=of_replicas, of_weights=of_weights)


def _dense(gradient: Gradient, source: tf.Tensor) -> tf.Tensor:
    return tf.zeros_like(source) if gradient is None else tf.convert_to_tensor(gradient)
