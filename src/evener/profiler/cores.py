"""The cores that a device on the CPU has for itself.

Stand-ins lend their threads to each other: one that computes alone takes the cores of all, and
would be measured faster than it is in a step in which all of them compute.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from evener.devices import UsedDevice

_THREADS = Path("/proc/self/task")


def cores_of_each(devices: Sequence[UsedDevice]) -> list[int]:
    """Return as many of the cores of this thread as each of several devices on the CPU has.

    Args:
        devices: All that compute; GPUs do not count.

    Returns:
        Numbers of cores; none where the system does not tell them.
    """
    every = sorted(affinity())
    num_devices = sum(device.kind == "cpu" for device in devices)
    return every[: max(1, len(every) // max(1, num_devices))]


@contextlib.contextmanager
def held_to(cores: Collection[int]) -> Iterator[None]:
    """Hold all threads of this process to some cores; afterwards each has its own again.

    Args:
        cores: Their numbers; nothing is held if there are none.
    """
    before = {thread: affinity(thread) for thread in _threads()} if cores else {}
    for thread in before:
        _hold(thread, cores)
    try:
        yield
    finally:
        # A thread that has begun meanwhile has the cores of the one that began it.
        for thread in _threads() if before else ():
            _hold(thread, before.get(thread, before[os.getpid()]))


def affinity(thread: int = 0) -> set[int]:
    """Return the cores on which a thread may run, by default this one; none if it has ended."""
    with contextlib.suppress(AttributeError, ProcessLookupError):
        return os.sched_getaffinity(thread)
    return set()


def _threads() -> list[int]:
    return [int(one.name) for one in _THREADS.iterdir()] if _THREADS.exists() else []


def _hold(thread: int, cores: Collection[int]) -> None:
    # A thread may have ended meanwhile.
    with contextlib.suppress(ProcessLookupError):
        os.sched_setaffinity(thread, cores)
