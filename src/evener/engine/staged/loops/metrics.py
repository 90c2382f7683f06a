"""Metrics in a replica: every replica counts for itself, and the counts are added up.

A number that is no sample of its own, such as the loss of a step, counts once per step: one
device would have one of them, and the replicas have one each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from evener.engine.staged.loops import run as runs
from evener.engine.staged.loops.run import Run, is_number
from evener.engine.staged.loops.scaled import kind_of, mended


def mean_in_replica(
    original: Callable[..., Any], metric: Any, values: Any, sample_weight: Any = None
) -> Any:
    """Do what ``Mean.update_state`` means here."""
    here = runs.current()
    if here is None or here[0].is_alone or not is_number(values):
        return original(metric, values, sample_weight)
    run, replica = here
    weight = tf.cast(run.weight(replica), values.dtype)
    count = run.strategy.num_replicas_in_sync
    if kind_of(values, count) == "part":
        # The mean it is a part of: the metric multiplies by a weight itself.
        values = tf.math.divide_no_nan(mended(values, weight, count, run.whole_rows), weight)
    if sample_weight is None:
        sample_weight = weight
    elif not _counts_samples(sample_weight, run, replica):
        sample_weight = weight * tf.cast(sample_weight, weight.dtype)
    return original(metric, values, sample_weight)


def _counts_samples(weight: Any, run: Run, replica: int) -> bool:
    """Return whether a weight is the number of the replica's samples, or of what they weigh.

    A constant of the person's is not: one device would count it once.
    """
    number = tf.get_static_value(weight) if tf.is_tensor(weight) else weight
    if number is None or run.num_samples is None:
        return number is None
    return number == tf.get_static_value(run.num_samples[replica])
