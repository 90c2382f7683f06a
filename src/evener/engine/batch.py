"""The loss of the whole batch, from what the replicas give: added up, or on gathered outputs."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from evener import _tf_private
from evener.engine import added, split, totals, update
from evener.engine.loss import Denominator, compiled_parts
from evener.engine.program import Program, StepInput
from evener.engine.replica import RecordingScope, ReplicaOutput


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
    weights = [given.weight for given in step.replicas]
    return added.batch_value([out.added for out in outputs], kinds, weights)


def _total(program: Program, values: list[tf.Tensor], added_values: list[tf.Tensor]) -> tf.Tensor:
    penalties, _ = update.penalties(program.replica.trainable, tf.ones([]))
    weighted = totals.weighted_sum(values, program.loss_weights)
    terms = [*weighted, *added_values, *penalties]
    return tf.add_n([tf.cast(term, tf.float32) for term in terms]) if terms else tf.zeros([])


def gather(program: Program, outputs: list[ReplicaOutput]) -> Any:
    """Return the outputs of the whole batch, with their masks, on the first device."""
    with tf.device(program.devices[0]):
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
