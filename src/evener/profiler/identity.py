"""Identity of a device of this machine: everything that decides its speed."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping

import tensorflow as tf

from evener._tf_private.random_numbers import is_deterministic
from evener.devices.host import read_host
from evener.devices.nvml import Nvml
from evener.profile.cache import DeviceIdentity, MeasurementCache
from evener.profiler.cores import affinity
from evener.profiler.known import KnownTimes, LayersTaken
from evener.profiler.profile import hardware_of

_ENVIRONMENT = ("NVIDIA_TF32_OVERRIDE", "TF_ENABLE_ONEDNN_OPTS", "TF_XLA_FLAGS", "XLA_FLAGS")
"""Environment variables that select kernels."""


class KnownDevices:
    """Earlier measurements on the devices of this machine; an argument of `profile_step`.

    Args:
        cache: Cache of the measurements.
    """

    def __init__(self, cache: MeasurementCache) -> None:
        self._cache = cache
        self._num_cores = len(affinity())
        self._known: list[KnownTimes] = []

    def __call__(self, device: str) -> KnownTimes:
        """Return the earlier measurements of a device in use, such as ``"gpu:0"``."""
        now = len(affinity())
        held_to = now if now < self._num_cores else 0
        self._known.append(KnownTimes(self._cache, identity_of(device, held_to=held_to)))
        return self._known[-1]

    @property
    def taken(self) -> tuple[LayersTaken, ...]:
        """Number of layers reused from earlier runs, for each kind of device."""
        return tuple(times.taken for times in self._known)


def identity_of(
    device: str, environ: Mapping[str, str] = os.environ, *, held_to: int = 0
) -> DeviceIdentity:
    """Return the identity of a device in use, as it is now.

    Args:
        device: Name of the device, such as ``"gpu:0"``.
        environ: Environment variables of the process.
        held_to: Number of cores to which the measurement is pinned; 0 for all of this process.
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
    """Return the number of threads of one operation; a setting of 0 means all cores."""
    text = environ.get("TF_NUM_INTRAOP_THREADS", "")
    return configured or (int(text) if text.isdecimal() else 0) or num_cores


def _settings(environ: Mapping[str, str], *, held_to: int) -> str:
    """Return the settings that select other kernels or pin them to cores."""
    found = {name: environ[name] for name in _ENVIRONMENT if environ.get(name)}
    found["cores"] = str(held_to or "")
    found["jit"] = str(tf.config.optimizer.get_jit() or "")
    found["deterministic"] = "yes" if is_deterministic() else ""
    found["tf32"] = "" if tf.config.experimental.tensor_float_32_execution_enabled() else "no"
    return ", ".join(f"{name}={value}" for name, value in sorted(found.items()) if value)
