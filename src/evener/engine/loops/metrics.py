"""Metrics in a replica: every replica counts for itself, and the counts are added up.

A number that is no sample of its own, such as the loss of a step, counts once per step: one
device would have one of them, and the replicas have one each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from evener.engine.loops import run as runs
from evener.engine.loops.scaled import kind_of, mended


def mean_in_replica(
    original: Callable[..., Any], metric: Any, values: Any, sample_weight: Any = None
) -> Any:
    """Do what ``Mean.update_state`` means here."""
    here = runs.current()
    if here is None or here[0].is_alone or sample_weight is not None or not _is_number(values):
        return original(metric, values, sample_weight)
    run, replica = here
    weight = tf.cast(run.weight(replica), values.dtype)
    count = run.strategy.num_replicas_in_sync
    if kind_of(values, count) == "part":
        # Keras multiplies by the weight again.
        values = tf.math.divide_no_nan(mended(values, weight, count), weight)
    values = tf.where(weight > 0, values, tf.zeros_like(values))
    return original(metric, values, weight)


def _is_number(values: Any) -> bool:
    return isinstance(values, tf.Tensor) and values.shape.rank == 0 and values.dtype.is_floating
