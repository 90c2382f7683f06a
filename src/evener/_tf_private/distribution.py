"""Values of several replicas, as strategies of TensorFlow hold them."""

from __future__ import annotations

from typing import Any

from tensorflow.python.distribute import values


def local_values(value: Any) -> tuple[Any, ...]:
    """Return the values of all replicas of a distributed value, in the order of replicas."""
    if isinstance(value, values.DistributedValues):
        return tuple(value.values)
    return (value,)


def is_per_replica(value: Any) -> bool:
    """Return whether a value is a distributed one, with a value for each replica."""
    return isinstance(value, values.DistributedValues)
