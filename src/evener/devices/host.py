"""The host: its processor, its cores, its memory."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

_CPU_INFO = Path("/proc/cpuinfo")
_MEMORY_INFO = Path("/proc/meminfo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The host of the GPUs; None where a value is unknown.

    Args:
        name: Name of the processor.
        num_cores: Number of cores this process may run on.
        memory_total_bytes: Its memory.
        memory_free_bytes: The memory available without swapping.
    """

    name: str
    num_cores: int
    memory_total_bytes: int | None = None
    memory_free_bytes: int | None = None


def read_host(cpu_info: Path = _CPU_INFO, memory_info: Path = _MEMORY_INFO) -> Host:
    """Read the host as it is now.

    Args:
        cpu_info: The file in which Linux describes the processor.
        memory_info: The file in which Linux describes the memory.
    """
    memory = _fields(memory_info)
    name = _fields(cpu_info).get("model name") or platform.processor() or platform.machine()
    return Host(
        name=name,
        num_cores=_num_cores(),
        memory_total_bytes=_kibibytes(memory.get("MemTotal")),
        memory_free_bytes=_kibibytes(memory.get("MemAvailable")),
    )


def _num_cores() -> int:
    # Containers and taskset restrict the process, not the machine. Not all systems have this.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _fields(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines)
    return {key.strip(): value.strip() for key, colon, value in pairs if colon}


def _kibibytes(text: str | None) -> int | None:
    words = (text or "").split()
    return int(words[0]) * 1024 if words and words[0].isdigit() else None
