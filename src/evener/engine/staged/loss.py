"""The compiled loss as numerators and denominators, so that shares add up exactly.

Keras reduces each loss to one number. Over shares, the mean of the whole batch is

      sum over replicas of N_i          N_i = weighted sum over the share's samples
      ------------------------          D_i = what Keras would divide by
      sum over replicas of D_i

with D the number of samples (a plain mean), of unmasked entries (with a mask) or the sum of
weights (`mean_with_sample_weight`), or 1 (`sum`). That holds for losses that treat samples
one by one. All others see the outputs of the whole batch, gathered on one device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import keras
import tensorflow as tf
from keras import ops

from evener import _tf_private

Denominator = Literal["samples", "one", "computed"]

_SEPARABLE = frozenset({
    keras.losses.binary_crossentropy,
    keras.losses.binary_focal_crossentropy,
    keras.losses.categorical_crossentropy,
    keras.losses.categorical_focal_crossentropy,
    keras.losses.categorical_generalized_cross_entropy,
    keras.losses.categorical_hinge,
    keras.losses.cosine_similarity,
    keras.losses.ctc,
    keras.losses.hinge,
    keras.losses.huber,
    keras.losses.kl_divergence,
    keras.losses.log_cosh,
    keras.losses.mean_absolute_error,
    keras.losses.mean_absolute_percentage_error,
    keras.losses.mean_squared_error,
    keras.losses.mean_squared_logarithmic_error,
    keras.losses.poisson,
    keras.losses.sparse_categorical_crossentropy,
    keras.losses.squared_hinge,
})  # fmt: skip
REDUCTIONS = frozenset({"sum", "sum_over_batch_size", "mean", "mean_with_sample_weight"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LossPart:
    """One compiled loss over the samples at hand.

    Attributes:
        numerator: Float scalar tensor.
        denominator: How the losses of all replicas are divided: by the number of samples,
            by 1, or by the sum of ``computed``.
        computed: Float scalar tensor if the denominator is computed from masks or weights.
    """

    numerator: tf.Tensor
    denominator: Denominator
    computed: tf.Tensor | None = None


def is_separable(loss: Any) -> bool:
    """Return whether a resolved Keras loss treats the samples of a batch one by one."""
    return (
        type(loss).__call__ is keras.losses.Loss.__call__
        and getattr(loss, "fn", None) in _SEPARABLE
        and type(loss).call is _WRAPPER.call
        and getattr(loss, "_fn_kwargs", {}).get("axis", -1) != 0
        and loss.reduction in REDUCTIONS
    )


_WRAPPER = type(keras.losses.MeanSquaredError()).__mro__[1]


def compiled_parts(
    model: keras.Model, y: Any, y_pred: Any, sample_weight: Any, *, num_samples: tf.Tensor
) -> list[LossPart]:
    """Return the parts of every compiled loss over the given samples.

    Args:
        model: A compiled model whose losses are built.
        y: Targets, nested as the model's losses expect them.
        y_pred: Outputs of the model.
        sample_weight: Weights, or None.
        num_samples: Samples that count, float32 scalar: 0 or the size of the batch axis.
    """
    parts: dict[int, LossPart] = {}

    def recorder(index: int, loss: Any) -> Any:
        def record(y_true: Any, y_out: Any, weight: Any = None) -> tf.Tensor:
            part = _separable_part if is_separable(loss) else _whole_part
            parts[index] = part(loss, y_true, y_out, weight, num_samples)
            return parts[index].numerator

        return record

    compiled = _tf_private.compiled_loss(model)
    if compiled is None:
        return []
    trackers = [v for metric in compiled.metrics for v in metric.variables]
    held = [(v, tf.zeros(v.shape, v.dtype)) for v in trackers]
    with _tf_private.losses_replaced(model, recorder), _scope_with(held):
        compiled(y, y_pred, sample_weight)
    return [parts[index] for index in sorted(parts)]


def _scope_with(held: list[tuple[Any, tf.Tensor]]) -> keras.StatelessScope:
    """A scope that swallows the updates of the loss trackers, over the scope around it."""
    outer = _tf_private.current_stateless_scope()
    scope = keras.StatelessScope(held, collect_losses=False)
    if outer is not None:
        scope.state_mapping = {**outer.state_mapping, **scope.state_mapping}
        scope.losses = outer.losses
    return scope


def separable_part(loss: Any, y: Any, y_pred: Any, sample_weight: Any) -> LossPart | None:
    """Return a loss's part of samples that all count, or None if it gives one number for them.

    A plain mean is left a mean over these samples.
    """
    values, masks = _values_of(loss, y, y_pred)
    if values.shape.rank == 0:
        return None
    return _part_of_values(loss, values, masks, sample_weight, tf.ones([]))


def _whole_part(loss: Any, y: Any, y_pred: Any, weight: Any, num_samples: tf.Tensor) -> LossPart:
    """Return a loss that needs the whole batch, as Keras itself reduces it."""
    del num_samples
    value = ops.cast(loss(y, y_pred, weight), keras.config.floatx())
    return LossPart(numerator=tf.reduce_sum(value), denominator="one")


def _separable_part(
    loss: Any, y: Any, y_pred: Any, weight: Any, num_samples: tf.Tensor
) -> LossPart:
    values, masks = _values_of(loss, y, y_pred)
    return _part_of_values(loss, values, masks, weight, num_samples)


def _values_of(loss: Any, y: Any, y_pred: Any) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Return the losses of all entries, and the masks they come with."""
    dtype = loss.dtype
    mask = _tf_private.keras_mask(y_pred)
    y_pred = keras.tree.map_structure(lambda t: ops.convert_to_tensor(t, dtype=dtype), y_pred)
    y = keras.tree.map_structure(lambda t: ops.convert_to_tensor(t, dtype=dtype), y)
    values = ops.convert_to_tensor(loss.call(y, y_pred), dtype=dtype)
    own_mask = _tf_private.keras_mask(values)
    return values, [m for m in (mask, own_mask) if m is not None]


def _part_of_values(
    loss: Any, values: tf.Tensor, masks: list[tf.Tensor], weight: Any, num_samples: tf.Tensor
) -> LossPart:
    dtype = loss.dtype
    live = tf.cast(num_samples > 0, dtype)
    if weight is not None:
        weight = ops.cast(ops.convert_to_tensor(weight), dtype)
    if not masks:
        return _unmasked(loss.reduction, values, weight, num_samples, live)
    valid = masks[0] if len(masks) == 1 else masks[0] & masks[1]
    return _masked(loss.reduction, values, weight, ops.cast(valid, dtype), live)


def _unmasked(
    reduction: str, values: tf.Tensor, weight: Any, num_samples: tf.Tensor, live: tf.Tensor
) -> LossPart:
    total_weight = None
    if weight is not None:
        values, weight = _same_rank(values, weight)
        values = values * weight
        total_weight = tf.reduce_sum(weight)
    total = tf.reduce_sum(values)
    if reduction == "sum":
        return LossPart(numerator=total * live, denominator="one")
    if reduction == "mean_with_sample_weight" and total_weight is not None:
        return LossPart(
            numerator=total * live, denominator="computed", computed=total_weight * live
        )
    mean = tf.math.divide_no_nan(total, _size(values))
    return LossPart(numerator=mean * tf.cast(num_samples, mean.dtype), denominator="samples")


def _masked(
    reduction: str, values: tf.Tensor, weight: Any, mask: tf.Tensor, live: tf.Tensor
) -> LossPart:
    """The same with a mask: Keras gives valid entries the weight total / valid."""
    combined = mask
    if weight is not None:
        combined, weight = _same_rank(combined, weight)
        combined = combined * weight
    values, combined = _same_rank(values, combined)
    total = tf.reduce_sum(values * combined) * live
    if reduction == "sum":
        return LossPart(numerator=total, denominator="one")
    if reduction == "mean_with_sample_weight":
        divisor = tf.reduce_sum(combined) * live
        return LossPart(numerator=total, denominator="computed", computed=divisor)
    entries_per_mask = tf.math.divide_no_nan(_size(mask), _size(values))
    valid = tf.reduce_sum(mask) * live
    return LossPart(numerator=total * entries_per_mask, denominator="computed", computed=valid)


def _size(tensor: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.size(tensor), tensor.dtype)


def _same_rank(values: tf.Tensor, weight: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Fit ranks that differ by one as Keras does: a trailing axis of 1 is dropped or added."""
    if values.shape.rank == weight.shape.rank + 1:
        if values.shape[-1] == 1 and weight.shape.rank != 1:
            return tf.squeeze(values, -1), weight
        if values.shape[-1] == 1:
            return values, tf.expand_dims(weight, -1)
    if weight.shape.rank == values.shape.rank + 1 and weight.shape[-1] == 1:
        if values.shape.rank == 1:
            return tf.expand_dims(values, -1), weight
        return values, tf.squeeze(weight, -1)
    return values, weight
