"""CPU cores of a stand-in device.

Stand-ins share the threads of the process: a stand-in that computes alone uses all cores, and would
be measured faster than in a step in which all of them compute.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from evener.devices import UsedDevice

_THREADS = Path("/proc/self/task")


def cores_of_each(devices: Sequence[UsedDevice]) -> list[int]:
    """Return as many cores of this thread as each CPU device has for itself.

    Args:
        devices: All devices that compute; GPUs are ignored.

    Returns:
        Core numbers; empty if the system does not report them.
    """
    every = sorted(affinity())
    num_devices = sum(device.kind == "cpu" for device in devices)
    return every[: max(1, len(every) // max(1, num_devices))]


@contextlib.contextmanager
def held_to(cores: Collection[int]) -> Iterator[None]:
    """Pin all threads of this process to some cores, and restore their affinity afterwards.

    Args:
        cores: Core numbers; if empty, nothing is pinned.
    """
    before = {thread: affinity(thread) for thread in _threads()} if cores else {}
    for thread in before:
        _hold(thread, cores)
    try:
        yield
    finally:
        # A thread started meanwhile gets the cores of the main thread.
        for thread in _threads() if before else ():
            _hold(thread, before.get(thread, before[os.getpid()]))


def affinity(thread: int = 0) -> set[int]:
    """Return the cores of a thread, by default the current one; empty if it has ended."""
    with contextlib.suppress(AttributeError, ProcessLookupError):
        return os.sched_getaffinity(thread)
    return set()


def _threads() -> list[int]:
    return [int(path.name) for path in _THREADS.iterdir()] if _THREADS.exists() else []


def _hold(thread: int, cores: Collection[int]) -> None:
    # A thread may have ended meanwhile.
    with contextlib.suppress(ProcessLookupError):
        os.sched_setaffinity(thread, cores)
