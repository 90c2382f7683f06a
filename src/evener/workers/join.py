"""Start of a worker: its server, and the collectives of all workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from evener.engine.pipeline.layout import WorkerGroup

_started: list[Any] = []
"""Strategies whose servers run as long as they exist."""


def join_workers(
    addresses: Sequence[str], index: int, *, timeout_seconds: float = 300.0
) -> WorkerGroup:
    """Start the server of this worker, and wait for the others.

    Devices have to be configured before, and nothing may have run on them.

    Args:
        addresses: ``host:port`` of every worker, in their order.
        index: Number of this worker, from 0.
        timeout_seconds: Seconds that a collective waits for the other workers.
    """
    distribute = tf.distribute
    resolver = distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": list(addresses)}), task_type="worker", task_id=index
    )
    options = distribute.experimental.CommunicationOptions(
        implementation=distribute.experimental.CommunicationImplementation.RING
    )
    # It starts TensorFlow's server and collectives. The program needs no more of it.
    _started.append(distribute.MultiWorkerMirroredStrategy(resolver, options))
    return WorkerGroup(index=index, count=len(addresses), timeout_seconds=timeout_seconds)
