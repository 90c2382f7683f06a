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
from typing import Any

import tensorflow as tf

from evener import _tf_private
from evener.engine import batch
from evener.engine.clock import Stopwatch
from evener.engine.context import whole_batch
from evener.engine.masked_moments import masked_moments_in_lockstep
from evener.engine.program import Program, StepInput, StepResult
from evener.engine.reduction import Gradient
from evener.engine.replica import ReplicaOutput


def forward_backward(program: Program, step: StepInput, scale: tf.Tensor) -> StepResult:
    """Run every replica forward and backward, with the loss of the whole batch between.

    Args:
        program: The program.
        step: The global batch, split.
        scale: The optimizer's loss scale, float32 scalar.
    """
    num_replicas = len(step.pieces)
    borrowed = [program.borrow(k) for k in range(num_replicas)]
    stopwatch = Stopwatch(program)
    tapes: list[Any] = [None] * num_replicas
    outputs: list[Any] = [None] * num_replicas
    gradients: list[list[Gradient]] = [[]] * num_replicas
    seeds: list[batch.Seeds] = []

    def forward(k: int) -> None:
        given = stopwatch.start(k, step.pieces[k])
        weights, state = borrowed[k]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            outputs[k] = program.replica.forward(weights, state, given, training=True)
        tapes[k] = tape

    def between() -> None:
        make_seeds = _added_up if program.replica.loss_here else batch.gathered
        seeds.append(make_seeds(program, step, outputs, scale))

    def backward(k: int) -> None:
        targets, begin = batch.targets(program, outputs[k]), seeds[0].of_pieces[k]
        gradients[k] = tapes[k].gradient(targets, borrowed[k][0], output_gradients=begin)
        if not tf.executing_eagerly():
            program.replica.learn_slices(gradients[k])
        stopwatch.stop(k, [*outputs[k].numerators, *gradients[k]])

    live = [tf.cast(given.num_samples > 0, tf.float32) for given in step.pieces]
    with program.strategy.extended.counting(live):
        _advance(program, forward, between, backward)
    stopwatch.record(step.pieces)
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


def _added_up(
    program: Program, step: StepInput, outputs: list[ReplicaOutput], scale: tf.Tensor
) -> batch.Seeds:
    """Add the parts of the replicas up: no output has to leave its device."""
    divisors = batch.divisors_of(program, step, [out.denominators for out in outputs])
    of_pieces = batch.seeds_from(program, step, divisors, scale)
    values, total = batch.loss_of(program, step, outputs, training=True)
    return batch.Seeds(values=values, total=total, of_pieces=of_pieces, of_weights=[])
