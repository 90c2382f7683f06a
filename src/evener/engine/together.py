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

from typing import TYPE_CHECKING, Any, NamedTuple

import keras
import tensorflow as tf

from evener import _tf_private
from evener.engine import added, split, totals, update
from evener.engine.clock import Stopwatch
from evener.engine.context import whole_batch
from evener.engine.loss import compiled_parts
from evener.engine.reduction import Gradient
from evener.engine.replica import RecordingScope, ReplicaInput, ReplicaOutput

if TYPE_CHECKING:
    from collections.abc import Callable

    from evener.engine.program import StepProgram


class StepResult(NamedTuple):
    """What the replicas have computed in one training step.

    Attributes:
        outputs: One per replica.
        gradients: For each contributor (replicas, and a loss that reads weights), one
            gradient per trainable variable.
        values: The value of each compiled loss over the batch.
        total: The loss over the batch.
    """

    outputs: list[ReplicaOutput]
    gradients: list[list[Gradient]]
    values: list[tf.Tensor]
    total: tf.Tensor


def forward_backward(
    program: StepProgram,
    data: Any,
    inputs: list[ReplicaInput],
    *,
    scale: tf.Tensor,
    num_samples: tf.Tensor,
    cuts: tf.Tensor,
) -> StepResult:
    """Run every replica forward and backward, with the loss of the whole batch between.

    Args:
        program: The step program.
        data: The global batch, ``(x, y, sample_weight)``.
        inputs: The samples of each replica.
        scale: The optimizer's loss scale, float32 scalar.
        num_samples: Samples of the batch, int32 scalar.
        cuts: Where the batch was cut, int32 vector.
    """
    borrowed = [program.borrow(k) for k in range(len(inputs))]
    stopwatch = Stopwatch(program.strategy.sharing)
    tapes: list[Any] = [None] * len(inputs)
    outputs: list[Any] = [None] * len(inputs)

    def forward(k: int) -> None:
        given = stopwatch.start(program, k, inputs[k])
        weights, state = borrowed[k]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            outputs[k] = program.replica.forward(weights, state, given, training=True)
        tapes[k] = tape

    loss: list[_Loss] = []

    def between() -> None:
        loss.append(_loss_and_seeds(program, data, outputs, inputs, scale, num_samples, cuts))

    gradients: list[list[Gradient]] = [[] for _ in inputs]

    def backward(k: int) -> None:
        targets, seeds = _targets(program, outputs[k]), loss[0].seeds[k]
        gradients[k] = tapes[k].gradient(targets, borrowed[k][0], output_gradients=seeds)
        stopwatch.stop(program, k, [*outputs[k].numerators, *gradients[k]])

    live = [tf.cast(given.num_samples > 0, tf.float32) for given in inputs]
    with program.strategy.extended.counting(live):
        _advance(program, forward, between, backward)
    stopwatch.record(inputs)
    gradients.extend(loss[0].from_weights)
    return StepResult(
        outputs=outputs, gradients=gradients, values=loss[0].values, total=loss[0].total
    )


def _advance(
    program: StepProgram,
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

    _tf_private.run_in_lockstep(program.strategy, in_thread)


def _on_each_device(program: StepProgram, part: Callable[[int], None]) -> None:
    for k, device in enumerate(program.devices):
        with tf.device(device):
            part(k)


class _Loss(NamedTuple):
    values: list[tf.Tensor]
    total: tf.Tensor
    seeds: list[list[tf.Tensor]]
    from_weights: list[list[Gradient]]


def _targets(program: StepProgram, output: ReplicaOutput) -> list[tf.Tensor]:
    """Return what a replica's gradient begins with, in the order of its seeds."""
    if program.replica.loss_here:
        return [*output.numerators, *output.added]
    return [*_float_leaves(output.y_pred), *output.added]


def _float_leaves(y_pred: Any) -> list[tf.Tensor]:
    return [leaf for leaf in keras.tree.flatten(y_pred) if leaf.dtype.is_floating]


def _loss_and_seeds(
    program: StepProgram,
    data: Any,
    outputs: list[ReplicaOutput],
    inputs: list[ReplicaInput],
    scale: tf.Tensor,
    num_samples: tf.Tensor,
    cuts: tf.Tensor,
) -> _Loss:
    if not program.replica.loss_here:
        return _gathered(program, data, outputs, inputs, scale, num_samples, cuts)
    divisors = totals.denominators(
        program.replica.denominators, [out.denominators for out in outputs], num_samples
    )
    coefficients = totals.coefficients(program.loss_weights, divisors, scale)
    kinds = program.kinds_of_added()
    seeds = [
        [*coefficients, *(scale * added.part_weight(kind, given.weight) for kind in kinds)]
        for given in inputs
    ]
    values, total = program.batch_loss(data, outputs, inputs, num_samples, training=True)
    return _Loss(values=values, total=total, seeds=seeds, from_weights=[])


def _gathered(
    program: StepProgram,
    data: Any,
    outputs: list[ReplicaOutput],
    inputs: list[ReplicaInput],
    scale: tf.Tensor,
    num_samples: tf.Tensor,
    cuts: tf.Tensor,
) -> _Loss:
    """Compute the loss on the outputs of the whole batch, and its gradient for each replica."""
    with tf.device(program.devices[0]):
        added_values = program.added_values(outputs, inputs)
        y_pred = gather(program, outputs)
        leaves = _float_leaves(y_pred)
        weights = program.borrow(0)[0] if program.own_compute_loss else []
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([*leaves, *added_values, *weights])
            values, total = gathered_loss(
                program, data, y_pred, added_values, num_samples, training=True, weights=weights
            )
            scaled = total * tf.cast(scale, total.dtype)
        sources = [leaves, added_values, weights]
        found: Any = tape.gradient(scaled, sources)
        d_leaves, d_added, d_weights = found
    d_leaves = [_dense(d, leaf) for d, leaf in zip(d_leaves, leaves, strict=True)]
    d_added = [_dense(d, term) for d, term in zip(d_added, added_values, strict=True)]
    kinds = program.kinds_of_added()
    seeds = []
    for k, given in enumerate(inputs):
        own = [d[cuts[k] : cuts[k + 1]] for d in d_leaves]
        parts = [
            d * added.part_weight(kind, given.weight)
            for kind, d in zip(kinds, d_added, strict=True)
        ]
        seeds.append([*own, *parts])
    from_weights = [d_weights] if program.own_compute_loss else []
    return _Loss(values=values, total=total, seeds=seeds, from_weights=from_weights)


def _dense(gradient: Gradient, source: tf.Tensor) -> tf.Tensor:
    return tf.zeros_like(source) if gradient is None else tf.convert_to_tensor(gradient)


def gather(program: StepProgram, outputs: list[ReplicaOutput]) -> Any:
    """Return the outputs of the whole batch, with their masks, on the first device."""
    with tf.device(program.devices[0]):
        y_pred = split.join([out.y_pred for out in outputs])
        if len(outputs) == 1:
            # Masks are set on the joined tensors; those of a lone replica are not joined.
            y_pred = keras.tree.map_structure(tf.identity, y_pred)
        leaves = keras.tree.flatten(y_pred)
        for index, leaf in enumerate(leaves):
            masks = [out.masks[index] for out in outputs]
            if masks[0] is not None:
                _tf_private.set_keras_mask(leaf, split.join(masks))
    return y_pred


def gathered_loss(
    program: StepProgram,
    data: Any,
    y_pred: Any,
    added_values: list[tf.Tensor],
    num_samples: tf.Tensor,
    *,
    training: bool,
    weights: list[tf.Tensor] | None = None,
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Return the value of every compiled loss, and the loss, from gathered outputs.

    Args:
        program: The step program.
        data: The global batch.
        y_pred: Outputs of the whole batch.
        added_values: The added losses over the whole batch.
        num_samples: Samples of the batch, int32 scalar.
        training: Passed to a ``compute_loss`` that a person wrote.
        weights: For such a ``compute_loss``, the weights it may read and be differentiated by.
    """
    x, y, sample_weight = data
    if program.own_compute_loss:
        total = _own_compute_loss(
            program, x, y, y_pred, sample_weight, added_values, weights or [], training=training
        )
        return [], tf.reduce_sum(total)
    count = tf.cast(num_samples, tf.float32)
    parts = compiled_parts(program.model, y, y_pred, sample_weight, num_samples=count)
    computed = [part.computed for part in parts if part.computed is not None]
    divisors = totals.denominators([p.denominator for p in parts], [computed], num_samples)
    values = totals.values([[part.numerator for part in parts]], divisors)
    penalty, _ = update.penalties(program.replica.trainable, tf.ones([]))
    terms = [*totals.weighted_sum(values, program.loss_weights), *added_values, *penalty]
    return values, tf.add_n([tf.cast(term, tf.float32) for term in terms])


def _own_compute_loss(
    program: StepProgram,
    x: Any,
    y: Any,
    y_pred: Any,
    sample_weight: Any,
    added_values: list[tf.Tensor],
    weights: list[tf.Tensor],
    *,
    training: bool,
) -> tf.Tensor:
    """Call a ``compute_loss`` that a person wrote, once, on the whole batch.

    It finds in ``self.losses`` the added losses and penalties of the whole batch. What it
    writes (its own metrics, say) is written once, afterwards.
    """
    model = program.model
    mapping = list(zip(program.replica.trainable, weights, strict=False)) if weights else []
    with RecordingScope(mapping, collect_losses=False) as scope:
        penalty = [
            v.regularizer(v.value) for v in program.replica.trainable if v.regularizer is not None
        ]
        with _tf_private.losses_overridden(model, [*added_values, *penalty]):
            total = model._compute_loss(
                x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training
            )
        new_values = [(v, scope.get_current_value(v)) for v in scope.written.values()]
    for variable, value in new_values:
        variable.assign(value)
    return total
