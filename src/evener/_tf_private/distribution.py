"""Values of several replicas, as strategies of TensorFlow hold them."""

from __future__ import annotations

from typing import Any

from tensorflow.python.distribute import values

from evener._tf_private.patches import Patch

RUNS = Patch(
    "runs of a watched program",
    "tensorflow.python.distribute.distribute_lib:StrategyBase.run",
    why="A step under a strategy is one call of ``run``. Strategies of TensorFlow 1 share only "
    "this base class, which has no public name.",
    if_it_changes="The doctor does not know the number of replicas of custom loops.",
)


def local_values(value: Any) -> tuple[Any, ...]:
    """Return the values of all replicas of a distributed value, in the order of replicas."""
    if isinstance(value, values.DistributedValues):
        return tuple(value.values)
    return (value,)


def is_per_replica(value: Any) -> bool:
    """Return whether a value is a distributed one, with a value for each replica."""
    return isinstance(value, values.DistributedValues)
