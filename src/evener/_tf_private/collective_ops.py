"""TensorFlow's collectives between workers: a server in each, an executor for each view."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf
from tensorflow.core.protobuf import tensorflow_server_pb2
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context as eager_context

_JOB = "localhost"
"""Name of TensorFlow's job of all workers: devices of this process keep the names without a job."""


class CollectiveServer:
    """TensorFlow's server of this worker, which its runtime starts with, and its collectives.

    Why: `tf.distribute` alone starts the server, with replicas of its own; and an executor of
    collectives that was aborted stays so, while enabling collectives once more begins a new one.
    If it changes: `evener launch --exchange tensorflow` fails at its start, or behind a death.
    """

    def __init__(self, index: int, address: str, communication: str) -> None:
        self.communication = communication  # "ring" or "nccl".
        self.address = address  # ``host:port``, for the others; it listens on all interfaces.
        self._index = index
        self._addresses: Mapping[int, str] = {index: address}
        # The runtime asks this object for its description when it starts, behind all settings of
        # devices.
        eager_context.context().enable_collective_ops(self)

    @property
    def device(self) -> str:
        """Device of this worker at which collectives take and leave tensors."""
        return "/gpu:0" if self.communication == "nccl" else "/cpu:0"

    def SerializeToString(self) -> bytes:
        """Return the description of the server, as the runtime that starts calls it."""
        context = eager_context.context()
        port = int(self.address.rpartition(":")[2])
        server = tensorflow_server_pb2.ServerDef(
            job_name=_JOB, task_index=self._index, protocol="grpc", port=port
        )
        tasks = server.cluster.job.add(name=_JOB).tasks
        for index, address in self._addresses.items():
            tasks[index] = address
        config = server.default_session_config
        config.CopyFrom(context.config)
        leader = min(self._addresses)
        config.experimental.collective_group_leader = f"/job:{_JOB}/replica:0/task:{leader}"
        config.experimental.collective_nccl = self.communication == "nccl"
        del config.device_filters[:]
        config.device_filters.append(f"/job:{_JOB}/task:{self._index}")
        # Its devices are listed as those of a process without a server.
        context._collective_ops_server_def = None
        return server.SerializeToString()

    def begin(self, addresses: Mapping[int, str]) -> None:
        """Begin a new executor of collectives, among the workers at these addresses."""
        self._addresses = dict(addresses)
        context = eager_context.context()
        if has_started():
            pywrap_tfe.TFE_EnableCollectiveOps(context._handle, self.SerializeToString())

    def abort(self) -> None:
        """Let collectives that run and all later ones fail, until the next `begin`."""
        if has_started():
            eager_context.context().abort_collective_ops(tf.errors.UNAVAILABLE, "the view is over")


def has_started() -> bool:
    """Return whether the runtime of this process has started: its devices are fixed."""
    return eager_context.context()._initialized


def is_aborted(error: tf.errors.OpError) -> bool:
    """Return whether an operation failed since its collectives were ended, here or elsewhere."""
    kinds = (tf.errors.UnavailableError, tf.errors.CancelledError, tf.errors.AbortedError)
    return isinstance(error, kinds) and "Collective ops is aborted" in str(error)


def is_late(error: tf.errors.OpError) -> bool:
    """Return whether a collective has waited for other workers as long as it may."""
    return isinstance(error, tf.errors.DeadlineExceededError) and "collective" in str(error).lower()
