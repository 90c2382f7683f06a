"""What decides how fast a device of this machine computes a layer."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping

import tensorflow as tf

from evener import _tf_private
from evener.devices.host import read_host
from evener.devices.nvml import Nvml
from evener.profile.cache import DeviceIdentity, MeasurementCache
from evener.profiler.cores import affinity
from evener.profiler.known import KnownTimes, LayersTaken
from evener.profiler.profile import hardware_of

_ENVIRONMENT = ("NVIDIA_TF32_OVERRIDE", "TF_ENABLE_ONEDNN_OPTS", "TF_XLA_FLAGS", "XLA_FLAGS")
"""Environment variables by which kernels are chosen."""


class KnownDevices:
    """What was measured before on the devices of this machine; an argument of `profile_step`.

    Args:
        cache: Where measurements are kept.
    """

    def __init__(self, cache: MeasurementCache) -> None:
        self._cache = cache
        self._num_cores = len(affinity())
        self._known: list[KnownTimes] = []

    def __call__(self, device: str) -> KnownTimes:
        """Return what is known of a device in use, such as ``"gpu:0"``."""
        now = len(affinity())
        held_to = now if now < self._num_cores else 0
        self._known.append(KnownTimes(self._cache, identity_of(device, held_to=held_to)))
        return self._known[-1]

    @property
    def taken(self) -> tuple[LayersTaken, ...]:
        """For each kind of device how many layers did not have to be measured."""
        return tuple(one.taken for one in self._known)


def identity_of(
    device: str, environ: Mapping[str, str] = os.environ, *, held_to: int = 0
) -> DeviceIdentity:
    """Return the identity of a device in use, as it is now.

    Args:
        device: Its name, such as ``"gpu:0"``.
        environ: Of the process.
        held_to: On how many cores it is measured; 0 for all of this process.
    """
    host = read_host()
    is_gpu = device.startswith("gpu")
    threads = int(tf.config.threading.get_intra_op_parallelism_threads())
    return DeviceIdentity(
        hardware=hardware_of(device) if is_gpu else host.name,
        machine=platform.node(),
        driver=(Nvml().read_machine().driver_version or "") if is_gpu else "",
        tensorflow=tf.__version__,
        num_threads=0 if is_gpu else num_threads(threads, host.num_cores, environ),
        settings=_settings(environ, held_to=held_to),
    )


def num_threads(configured: int, num_cores: int, environ: Mapping[str, str]) -> int:
    """Return how many threads compute one operation: 0 means that TensorFlow takes all cores."""
    text = environ.get("TF_NUM_INTRAOP_THREADS", "")
    return configured or (int(text) if text.isdecimal() else 0) or num_cores


def _settings(environ: Mapping[str, str], *, held_to: int) -> str:
    """Return what chooses other kernels for the same operations, and holds them to some cores."""
    found = {name: environ[name] for name in _ENVIRONMENT if environ.get(name)}
    found["cores"] = str(held_to or "")
    found["jit"] = str(tf.config.optimizer.get_jit() or "")
    found["deterministic"] = "yes" if _tf_private.is_deterministic() else ""
    found["tf32"] = "" if tf.config.experimental.tensor_float_32_execution_enabled() else "no"
    return ", ".join(f"{name}={value}" for name, value in sorted(found.items()) if value)
