"""Devices that are processes of their own, so that the memory of each is counted by itself.

      host      the program, batches, variables that live on the host
      cpu:1     a process: what a plan puts on cpu:1, counted by the GPU's allocator (BFC)
      cpu:2     another one

Each takes its memory at once, as TensorFlow does on a GPU without memory growth. Where memory
grows, the allocator asks for regions of 2, 4, 8 MiB and so on, and does not divide a region for
what is more than half of it: a variable of 5 MiB takes 8.

The stand-ins of one process share its allocator. TensorFlow's cluster runs one function over
several processes; evener names devices of its own process only, so the names of the plan's
devices are led to those of the cluster, and that is all that differs from an ordinary program.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import socket
import sys
from collections.abc import Iterator
from typing import Any

from side_by_side.workers import Worker, closing

LIKE_A_GPU = {"TF_CPU_ALLOCATOR_USE_BFC": "true"}
"""What makes a process allocate memory for tensors as on a GPU."""
_MEBIBYTE = 2**20
_REGION_BYTES = 1024 * _MEBIBYTE


class Device:
    """One device, in the process of a worker.

    Args:
        number: Its place among the devices; the plan calls it ``cpu:<number + 1>``.
    """

    def __init__(self, *, number: int) -> None:
        import tensorflow as tf

        # One thread, as a GPU computes one thing after the other.
        config = tf.compat.v1.ConfigProto(
            inter_op_parallelism_threads=1, intra_op_parallelism_threads=1
        )
        self._server = tf.distribute.Server(
            {"device": {number: "localhost:0"}},
            job_name="device",
            task_index=number,
            config=config,
        )
        take_memory()

    def address(self) -> str:
        """Return where the device listens."""
        return self._server.target.removeprefix("grpc://")

    def forget(self) -> None:
        """Begin to look for the peak anew."""
        import tensorflow as tf

        tf.config.experimental.reset_memory_stats("CPU:0")

    def used(self) -> dict[str, int]:
        """Return the bytes that are in use now, and the most there have been."""
        import tensorflow as tf

        return tf.config.experimental.get_memory_info("CPU:0")


def take_memory() -> None:
    """Have the allocator of this process take its memory in one region."""
    import tensorflow as tf

    cap_mebibytes = os.environ.get("TF_CPU_BFC_MEM_LIMIT_IN_MB")
    # Some of it is taken already. What the region has and nobody writes to costs nothing.
    size = _REGION_BYTES if cap_mebibytes is None else int(cap_mebibytes) * _MEBIBYTE * 7 // 8
    # In two axes: sizes are numbers of 32 bits.
    region = tf.raw_ops.Empty(shape=[size // _MEBIBYTE, _MEBIBYTE], dtype=tf.uint8)
    del region


@contextlib.contextmanager
def devices_apart(number: int, cap_bytes: int | None = None) -> Iterator[list[Worker]]:
    """Start devices, each in a process of its own, and end them.

    Args:
        number: Number of devices.
        cap_bytes: Most bytes that each of them may use; None for all there are.
    """
    environment = dict(LIKE_A_GPU)
    if cap_bytes is not None:
        environment["TF_CPU_BFC_MEM_LIMIT_IN_MB"] = str(cap_bytes // _MEBIBYTE)
    workers = [Worker(Device, environment=environment, number=k) for k in range(number)]
    with closing(*workers):
        yield workers


def connect(addresses: list[str]) -> list[str]:
    """Connect this process, as the host, to devices; return what a plan of evener calls them.

    Call it before TensorFlow's runtime starts.
    """
    names = join_cluster(addresses)
    _lead_names_there()
    return names


def join_cluster(addresses: list[str]) -> list[str]:
    """Connect this process, as the host, to devices; return the names of their stand-ins here.

    Call it before TensorFlow's runtime starts.
    """
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    names = [f"cpu:{1 + k}" for k in range(len(addresses))]
    # Stand-ins of the same names, which nothing runs on: plans may name what is here.
    stand_ins = [tf.config.LogicalDeviceConfiguration() for _ in ("cpu:0", *names)]
    tf.config.set_logical_device_configuration(cpu, stand_ins)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    cluster = {"device": dict(enumerate(addresses)), "host": [f"localhost:{port}"]}
    tf.config.experimental_connect_to_cluster(
        tf.train.ClusterSpec(cluster), job_name="host", task_index=0
    )
    return names


def _lead_names_there() -> None:
    from evener.devices import names

    instead: dict[Any, Any] = {
        names.tf_device: _in_cluster,
        names.device_name: _in_plan,
    }
    modules = [module for name, module in sys.modules.items() if name.startswith("evener.")]
    for module in modules:
        for name, value in list(vars(module).items()):
            if inspect.isfunction(value) and value in instead:
                setattr(module, name, instead[value])


def _in_cluster(name: str) -> str:
    number = int(name.removeprefix("cpu:"))
    place = "host/task:0" if number == 0 else f"device/task:{number - 1}"
    return f"/job:{place}/device:CPU:0"


def _in_plan(tf_name: str) -> str:
    import tensorflow as tf

    spec = tf.DeviceSpec.from_string(tf_name)
    return f"cpu:{1 + (spec.task or 0)}" if spec.job == "device" else "cpu:0"
