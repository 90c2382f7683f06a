"""Settings of a launched job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

OF_OTHER_JOBS = ("TF_CONFIG", "EVENER_JOB", "EVENER_JOB_SECRET", "EVENER_COORDINATOR")
"""Variables of the environment that describe the job of the workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCommand:
    """The command of a worker."""

    index: int  # Number of the worker, from 0.
    words: Sequence[str]  # Program and arguments.
    is_shown: bool = True  # True if its output may appear on the console.


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSettings:
    """Settings of a launched job."""

    workers: tuple[WorkerCommand, ...]  # Commands of the workers of this machine.
    # Environment of the workers, without the variables of the job.
    environ: Mapping[str, str] = field(repr=False)
    logs: Path  # Existing folder for the log files.
    num_restarts: int = 3  # Number of replacements in the whole job, 0 or more.
    heartbeat_seconds: float = 10.0  # Silence after which a worker counts as frozen.
    start_seconds: float = 300.0  # Time that workers wait for each other at the start.
    grace_seconds: float = 60.0  # Time that workers have to end after a signal.
    # Time after an error of a worker before it is replaced: if the others fail too, the program is
    # wrong, and nothing is replaced.
    error_wait_seconds: float = 2.0
    # Time within which errors of all workers are one error of the program.
    error_window_seconds: float = 30.0
