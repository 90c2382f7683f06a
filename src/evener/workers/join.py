"""Start of a worker: its server, the collectives of all workers, and what each of them has."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from evener.engine.pipeline.layout import WorkerGroup


def join_workers(addresses: Sequence[str], index: int, *, timeout_seconds: float) -> WorkerGroup:
    """Start the server of this worker, and wait for the others.

    Devices have to be configured before.

    Args:
        addresses: ``host:port`` of every worker, in their order.
        index: Number of this worker, from 0.
        timeout_seconds: Seconds that a collective waits for the others.
    """
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": list(addresses)}), task_type="worker", task_id=index
    )
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.RING
    )
    # Made once: it starts the server and TensorFlow's collectives. What follows needs no strategy.
    _kept.append(tf.distribute.MultiWorkerMirroredStrategy(resolver, options))
    return WorkerGroup(index=index, count=len(addresses), timeout_seconds=timeout_seconds)


_kept: list[Any] = []
