"""The loss of the whole batch, from what the replicas give: added up, or on gathered outputs."""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
import tensorflow as tf

from evener import _tf_private
from evener.engine.staged import added, split, totals, update
from evener.engine.staged.loss import Denominator, compiled_parts
from evener.engine.staged.program import Program, StepInput
from evener.engine.staged.reduction import Gradient
from evener.engine.staged.replica import RecordingScope, ReplicaOutput


class Seeds(NamedTuple):
    """The loss of the whole batch, and what each piece's backward pass begins with.

    Attributes:
        values: The value of each compiled loss.
        total: The loss.
        of_pieces: For each piece, one gradient per target (`targets`).
        of_weights: Gradients of a loss that reads weights itself; empty for others.
    """

    values: list[tf.Tensor]
    total: tf.Tensor
    of_pieces: list[list[tf.Tensor]]
    of_weights: list[list[Gradient]]


def loss_of(
    program: Program, step: StepInput, outputs: list[ReplicaOutput], *, training: bool
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Return the value of every compiled loss, and the loss, over the whole batch."""
    added_values = added_over(program, step, outputs, training=training)
    if not program.replica.loss_here:
        y_pred = gather(program, outputs)
        return gathered_loss(program, step, y_pred, added_values, training=training)
    divisors = divisors_of(program, step, [out.denominators for out in outputs])
    values = totals.values([out.numerators for out in outputs], divisors)
    return values, _total(program, values, added_values)


def divisors_of(
    program: Program, step: StepInput, computed: list[list[tf.Tensor]]
) -> list[tf.Tensor]:
    """Return what each compiled loss is divided by; see `totals.denominators`."""
    return totals.denominators(program.replica.denominators, computed, step.num_samples)


def added_over(
    program: Program, step: StepInput, outputs: list[ReplicaOutput], *, training: bool
) -> list[tf.Tensor]:
    """Return the value of every ``add_loss`` over the whole batch."""
    kinds = program.kinds_of_added(training=training)
    weights = [given.weight for given in step.pieces]
    return added.batch_value([out.added for out in outputs], kinds, weights)


def _total(program: Program, values: list[tf.Tensor], added_values: list[tf.Tensor]) -> tf.Tensor:
    penalties, _ = update.penalties(program.replica.trainable, tf.ones([]))
    weighted = totals.weighted_sum(values, program.loss_weights)
    terms = [*weighted, *added_values, *penalties]
    return tf.add_n([tf.cast(term, tf.float32) for term in terms]) if terms else tf.zeros([])


def gather(program: Program, outputs: list[ReplicaOutput]) -> Any:
    """Return the outputs of the whole batch, with their masks, on the first device."""
    with tf.device(program.gathering_device):
        y_pred = split.join([out.y_pred for out in outputs])
        if len(outputs) == 1:
            # Masks are set on the joined tensors; those of a lone replica are not joined.
            y_pred = keras.tree.map_structure(tf.identity, y_pred)
        for index, leaf in enumerate(keras.tree.flatten(y_pred)):
            masks = [out.masks[index] for out in outputs]
            if masks[0] is not None:
                _tf_private.set_keras_mask(leaf, split.join(masks))
    return y_pred


def gathered_loss(
    program: Program,
    step: StepInput,
    y_pred: Any,
    added_values: list[tf.Tensor],
    *,
    training: bool,
    weights: list[tf.Tensor] | None = None,
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Return the value of every compiled loss, and the loss, from gathered outputs.

    Args:
        program: The program.
        step: The global batch.
        y_pred: Outputs of the whole batch.
        added_values: The added losses over the whole batch.
        training: Passed to a ``compute_loss`` that a person wrote.
        weights: For such a ``compute_loss``, the weights it may read and be differentiated by.
    """
    if program.own_compute_loss:
        total = _own_compute_loss(
            program, step, y_pred, added_values, weights or [], training=training
        )
        return [], tf.reduce_sum(total)
    _, y, sample_weight = step.data
    count = tf.cast(step.num_samples, tf.float32)
    parts = compiled_parts(program.model, y, y_pred, sample_weight, num_samples=count)
    computed = [part.computed for part in parts if part.computed is not None]
    kinds: list[Denominator] = [part.denominator for part in parts]
    divisors = totals.denominators(kinds, [computed], step.num_samples)
    values = totals.values([[part.numerator for part in parts]], divisors)
    return values, _total(program, values, added_values)


def _own_compute_loss(
    program: Program,
    step: StepInput,
    y_pred: Any,
    added_values: list[tf.Tensor],
    weights: list[tf.Tensor],
    *,
    training: bool,
) -> tf.Tensor:
    """Call a ``compute_loss`` that a person wrote, once, on the whole batch.

    It finds in ``self.losses`` the added losses and penalties of the whole batch. What it
    writes (its own metrics, say) is written once, afterwards.
    """
    x, y, sample_weight = step.data
    trainable = program.replica.trainable
    mapping = list(zip(trainable, weights, strict=True)) if weights else []
    with RecordingScope(mapping, collect_losses=False) as scope:
        penalties = [v.regularizer(v.value) for v in trainable if v.regularizer is not None]
        with _tf_private.losses_overridden(program.model, [*added_values, *penalties]):
            total = program.model._compute_loss(
                x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training
            )
        new_values = [(v, scope.get_current_value(v)) for v in scope.written.values()]
    for variable, value in new_values:
        variable.assign(value)
    return total


def targets(program: Program, output: ReplicaOutput) -> list[tf.Tensor]:
    """Return the outputs at which a piece's gradient begins, in the order of its seeds."""
    if program.replica.loss_here:
        return [*output.numerators, *output.added]
    return [*_float_leaves(output.y_pred), *output.added]


def seeds_from(
    program: Program, step: StepInput, divisors: list[tf.Tensor], scale: tf.Tensor
) -> list[list[tf.Tensor]]:
    """Return for each piece the gradient at each target, where parts of the loss add up."""
    coefficients = totals.coefficients(program.loss_weights, divisors, scale)
    kinds = program.kinds_of_added(training=True)
    return [[*coefficients, *added.seeds(kinds, given.weight, scale)] for given in step.pieces]


def _float_leaves(y_pred: Any) -> list[tf.Tensor]:
    return [leaf for leaf in keras.tree.flatten(y_pred) if leaf.dtype.is_floating]


def gathered(
    program: Program, step: StepInput, outputs: list[ReplicaOutput], scale: tf.Tensor
) -> Seeds:
    """Compute the loss on the outputs of the whole batch, and its gradient for each piece."""
    with tf.device(program.gathering_device):
        added_values = added_over(program, step, outputs, training=True)
        y_pred = gather(program, outputs)
        leaves = _float_leaves(y_pred)
        weights = program.borrow(0)[0] if program.own_compute_loss else []
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([*leaves, *added_values, *weights])
            values, total = gathered_loss(
                program, step, y_pred, added_values, training=True, weights=weights
            )
            scaled = total * tf.cast(scale, total.dtype)
        found: Any = tape.gradient(scaled, [leaves, added_values, weights])
        d_leaves, d_added, d_weights = found
        d_leaves = [_dense(d, leaf) for d, leaf in zip(d_leaves, leaves, strict=True)]
        d_added = [_dense(d, term) for d, term in zip(d_added, added_values, strict=True)]
    kinds = program.kinds_of_added(training=True)
    of_pieces = []
    for k, given in enumerate(step.pieces):
        own = [d[step.cuts[k] : step.cuts[k + 1]] for d in d_leaves]
        of_added = added.parts(kinds, given.weight, d_added)
        of_pieces.append([*own, *of_added])
    of_weights = [d_weights] if program.own_compute_loss else []
    return Seeds(values=values, total=total, of_pieces=of_pieces, of_weights=of_weights)


def _dense(gradient: Gradient, source: tf.Tensor) -> tf.Tensor:
    return tf.zeros_like(source) if gradient is None else tf.convert_to_tensor(gradient)
