"""What becomes of non-trainable state when several replicas have each updated it.

    state                               merged as
    BatchNormalization, moving mean     mean over replicas, weighted by samples
    BatchNormalization, moving variance the same, plus the spread of the replicas' means:
                                        the law of total variance
    seed generators                     every replica draws from its own stream; the
                                        counter goes on by one step
    aggregation="sum"                   old value plus all changes
    aggregation="only_first_replica"    replica 0's value
    other floats                        mean, weighted by samples
    other types                         replica 0's value

One replica alone leaves exactly what one device leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import keras
import tensorflow as tf

from evener import _tf_private

Rule = Literal["mean", "variance", "seed", "sum", "first"]

# Streams of replicas are 2^32 / golden ratio apart, so that close seeds do not meet.
_STREAM = 0x9E3779B9


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRule:
    """How the replicas' values of one state variable are merged.

    Attributes:
        rule: Which of the rules above.
        mean_of: For a variance: position of the moving mean that belongs to it.
        momentum: For a variance: the momentum of its layer.
    """

    rule: Rule
    mean_of: int = -1
    momentum: float = 0.0


def rules_for(model: keras.Model, variables: Sequence[Any]) -> list[StateRule]:
    """Return the merge rule of every state variable, in the order given."""
    position = {id(v): k for k, v in enumerate(variables)}
    rules = [StateRule(rule=rule_of(v)) for v in variables]
    for layer in _tf_private.all_layers(model):
        if not isinstance(layer, keras.layers.BatchNormalization):
            continue
        mean, variance = layer.moving_mean, layer.moving_variance
        if id(mean) in position and id(variance) in position:
            rules[position[id(variance)]] = StateRule(
                rule="variance", mean_of=position[id(mean)], momentum=layer.momentum
            )
    return rules


def rule_of(variable: Any) -> Rule:
    """Return the merge rule of one state variable, of Keras or of TensorFlow."""
    if is_seed(variable):
        return "seed"
    if variable.aggregation in ("sum", tf.VariableAggregation.SUM):
        return "sum"
    if variable.aggregation in ("only_first_replica", tf.VariableAggregation.ONLY_FIRST_REPLICA):
        return "first"
    return "mean" if tf.as_dtype(variable.dtype).is_floating else "first"


def is_seed(variable: Any) -> bool:
    """Return whether a Keras variable is the state of a seed generator."""
    return variable.name == "seed_generator_state" and not variable.trainable


def seed_for_replica(seed: tf.Tensor, replica: int) -> tf.Tensor:
    """Return the seed state that one replica draws from: replica 0 has the model's own."""
    if replica == 0:
        return seed
    offset = tf.constant([(replica * _STREAM) % 2**32, 0], tf.uint32)
    return tf.cast(tf.cast(seed, tf.uint32) + offset, seed.dtype)


def merge(
    rules: Sequence[StateRule],
    old: Sequence[tf.Tensor],
    new: Sequence[Sequence[tf.Tensor | None]],
    weights: tf.Tensor,
) -> list[tf.Tensor | None]:
    """Return the merged value of every state variable that any replica changed.

    Args:
        rules: One for each variable.
        old: Values before the step.
        new: For each replica, its values after the step; None where it changed nothing.
        weights: Samples of each replica over those of the batch, float32, sums to 1.
    """
    if len(new) == 1:
        return list(new[0])
    merged: list[tf.Tensor | None] = [None] * len(rules)
    # Means first: variances need them.
    order = sorted(range(len(rules)), key=lambda k: rules[k].rule == "variance")
    for k in order:
        values = [replica[k] for replica in new]
        if any(v is None for v in values):
            continue
        rule = rules[k]
        if rule.rule == "variance" and merged[rule.mean_of] is not None:
            means = [replica[rule.mean_of] for replica in new]
            merged[k] = _total_variance(rule, values, means, merged[rule.mean_of], weights)
        else:
            merged[k] = _merge_one(rule.rule, old[k], values, weights)
    return merged


def _merge_one(rule: Rule, old: tf.Tensor, values: list[Any], weights: tf.Tensor) -> tf.Tensor:
    if rule in ("seed", "first"):
        return values[0]
    if rule == "sum":
        return old + _sum_where_live([value - old for value in values], weights)
    return _weighted_mean(values, weights)


def _sum_where_live(changes: list[tf.Tensor], weights: tf.Tensor) -> tf.Tensor:
    """Add up changes, without those of replicas that had no samples."""
    zero = tf.zeros_like(changes[0])
    return tf.add_n([tf.where(weights[k] > 0, c, zero) for k, c in enumerate(changes)])


def _weighted_mean(values: list[Any], weights: tf.Tensor) -> tf.Tensor:
    terms = []
    for k, value in enumerate(values):
        weight = tf.cast(weights[k], value.dtype)
        # A replica without samples may have computed a mean over nothing.
        terms.append(tf.where(weight > 0, value * weight, tf.zeros_like(value)))
    return tf.add_n(terms)


def _total_variance(
    rule: StateRule,
    variances: list[Any],
    means: list[Any],
    merged_mean: Any,
    weights: tf.Tensor,
) -> tf.Tensor:
    """Merge moving variances: mean of the variances plus variance of the means.

    A moving statistic after a step is ``momentum * old + (1 - momentum) * batch``. The old
    part is the same on all replicas, so ``new_mean_i - merged_mean`` is ``(1 - momentum)``
    times the distance of the batch means, and its square, divided by ``1 - momentum``, is
    the spread on the scale of the moving variance.
    """
    within = _weighted_mean(variances, weights)
    if rule.momentum >= 1.0:
        return within
    spread = _weighted_mean([tf.square(mean - merged_mean) for mean in means], weights)
    return within + spread / (1.0 - rule.momentum)
