"""Programs that watch their memory: their authors ask why it runs out."""

from __future__ import annotations

from evener.analysis import Program

_CALLS = (
    "psutil.*",
    "tracemalloc.*",
    "resource.getrusage",
    "memory_profiler.*",
    "objgraph.*",
    "gc.collect",
    "gc.get_objects",
    "tf.config.get_memory_info",
    "tf.config.get_memory_usage",
    "keras.backend.clear_session",
    "keras.utils.clear_session",
    "*.nvmlDeviceGetMemoryInfo",
)


def watches_memory(program: Program) -> bool:
    """Return whether a program measures its memory, or tries to give it back."""
    return any(True for _ in program.calls(*_CALLS))
