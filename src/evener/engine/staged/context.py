"""The context in which the engine's own part of a step is traced.

Keras scales losses and merges gradients by the strategy it finds around it. In the engine
all of that is done already, so Keras must find one replica that holds the whole batch,
whether or not ``fit`` was called inside ``strategy.scope()``.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import tensorflow as tf


class WholeBatchContext(tf.distribute.ReplicaContext):
    """A replica context with nobody else in it: sums over replicas are what they were.

    TensorFlow's default context would tie all gradients together in one operation, so that
    no update could begin before the last gradient is there.
    """

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        """Return the value as it is."""
        del reduce_op, options
        return value

    def all_gather(self, value: Any, axis: int, options: Any = None) -> Any:
        """Return the value as it is."""
        del axis, options
        return value


class _WholeBatch(tf.distribute.Strategy):
    """The strategy of `WholeBatchContext`: one replica, variables wherever they are."""

    def __init__(self) -> None:
        super().__init__(_WholeBatchExtended(self))


class _WholeBatchExtended(tf.compat.v1.distribute.StrategyExtended):
    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        super().__init__(strategy)
        # Else the replica's function would be traced anew on every device.
        self._retrace_functions_for_each_device = False

    def update(
        self, var: Any, fn: Any, args: Any = (), kwargs: Any = None, group: bool = True
    ) -> Any:
        with tf.device(var.device):
            result = fn(var, *args, **(kwargs or {}))
        return result if group else tf.nest.map_structure(lambda value: (value,), result)

    def _call_for_each_replica(self, fn: Any, args: Any, kwargs: Any) -> Any:
        with WholeBatchContext(self._container_strategy(), replica_id_in_sync_group=0):
            return fn(*args, **kwargs)

    def value_container(self, value: Any) -> Any:
        return value

    def _local_results(self, value: Any) -> tuple[Any, ...]:
        return (value,)

    def _get_local_replica_id(self, replica_id_in_sync_group: int) -> int:
        return replica_id_in_sync_group

    def _in_multi_worker_mode(self) -> bool:
        return False

    @property
    def _num_replicas_in_sync(self) -> int:
        return 1


@contextlib.contextmanager
def whole_batch() -> Iterator[None]:
    """Let Keras find one replica with the whole batch inside."""
    with WholeBatchContext(_whole_batch_strategy(), replica_id_in_sync_group=0):
        yield


@functools.cache
def _whole_batch_strategy() -> _WholeBatch:
    return _WholeBatch()
