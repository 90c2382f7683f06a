"""Jobs of `evener launch`.

Several workers on this machine or on a Ray cluster, or the worker of a scheduler's task.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import sys
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path

from evener.launch.console import Console
from evener.launch.control import Control, JobControl, NoControl
from evener.launch.on_ray.cluster import RayCluster
from evener.launch.placement import Placement
from evener.launch.process import LOOPBACK, ThisMachine
from evener.launch.settings import OF_OTHER_JOBS, LaunchSettings, WorkerCommand
from evener.launch.supervisor import Supervisor
from evener.launch.tasks import Task

HEARTBEAT_SECONDS = 10.0
_RAY_ERROR_WAIT_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCommand:
    """A command ``evener run`` for every worker."""

    target: tuple[str, ...]  # Script, or ``-m`` and module, and its arguments.
    options: tuple[str, ...] = ()  # Options of every worker.
    # No device spec, that of every worker, or a spec for each worker.
    devices: tuple[str, ...] = ()
    report_file: Path | None = None  # File for the report of worker 0.

    def words(self, index: int) -> tuple[str, ...]:
        """Return the program and the arguments of a worker."""
        devices = self.devices[index] if len(self.devices) > 1 else next(iter(self.devices), None)
        options = list(self.options)
        if devices is not None:
            options += ["--devices", devices]
        if self.report_file is not None and index == 0:
            options += ["--report-file", str(self.report_file)]
        return (sys.executable, "-m", "evener", "run", *options, *self.target)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a job."""

    num_restarts: int = 3  # Number of replacements in all.
    # Silence after which a worker counts as frozen; None for the default.
    heartbeat_seconds: float | None = None
    start_seconds: float = 300.0  # Time that workers wait for each other at the start.
    grace_seconds: float = 60.0  # Time that workers have to end after a signal.


def job_settings(
    command: RunCommand, num_workers: int, *, environ: Mapping[str, str], logs: Path, limits: Limits
) -> LaunchSettings:
    """Return the settings of a job whose workers are started from here."""
    own = {name: text for name, text in environ.items() if name not in OF_OTHER_JOBS}
    return _settings(
        tuple(WorkerCommand(index=k, words=command.words(k)) for k in range(num_workers)),
        environ=own,
        logs=logs,
        limits=limits,
    )


def task_settings(command: RunCommand, task: Task, *, logs: Path, limits: Limits) -> LaunchSettings:
    """Return the settings for the worker of a scheduler's task, which nobody replaces here."""
    # A program prints once, as on one device.
    worker = WorkerCommand(
        index=task.index, words=command.words(task.index), is_shown=task.index == 0
    )
    # Its output is kept and shown here.
    environ = {**task.environ, "EVENER_LAUNCHED": "1"}
    if limits.heartbeat_seconds is not None:
        environ["EVENER_HEARTBEAT_SECONDS"] = str(limits.heartbeat_seconds)
    limits = dataclasses.replace(limits, num_restarts=0)
    return _settings((worker,), environ=environ, logs=logs, limits=limits)


def run_local(settings: LaunchSettings) -> int:
    """Run a job on this machine, and return its exit code."""
    return _run(settings, JobControl(settings, LOOPBACK), ThisMachine())


def run_task(settings: LaunchSettings) -> int:
    """Run the worker of a scheduler's task, and return its exit code."""
    return _run(settings, NoControl(), ThisMachine())


def run_on_ray(settings: LaunchSettings, cluster: RayCluster) -> int:
    """Run a job on a Ray cluster, which this process then leaves, and return its exit code."""
    with _ended_by_signals(), contextlib.ExitStack() as stack:
        stack.callback(cluster.stop)
        cluster.reserve(lambda text: print(f"evener: {text}", file=sys.stderr, flush=True))
        control = JobControl(settings, cluster.host)
        # From here on, the supervisor leaves the cluster.
        stack.pop_all()
    # Ray starts the workers seconds apart, so their errors are seconds apart too.
    settings = dataclasses.replace(settings, error_wait_seconds=_RAY_ERROR_WAIT_SECONDS)
    return _run(settings, control, cluster, "on Ray, ")


@contextlib.contextmanager
def _ended_by_signals() -> Generator[None]:
    """Have signals raise `SystemExit`, with the exit code of a job that they end."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _settings(
    workers: tuple[WorkerCommand, ...], *, environ: Mapping[str, str], logs: Path, limits: Limits
) -> LaunchSettings:
    return LaunchSettings(
        workers=workers,
        # Lines appear when they are printed, and are not lost with a process that is killed.
        environ={**environ, "PYTHONUNBUFFERED": "1"},
        logs=logs,
        num_restarts=limits.num_restarts,
        heartbeat_seconds=limits.heartbeat_seconds or HEARTBEAT_SECONDS,
        start_seconds=limits.start_seconds,
        grace_seconds=limits.grace_seconds,
    )


def _run(settings: LaunchSettings, control: Control, placement: Placement, where: str = "") -> int:
    console = Console(sys.stdout.buffer, sys.stderr.buffer)
    num_workers = len(settings.workers)
    workers = f"{num_workers} workers" if num_workers > 1 else f"worker {settings.workers[0].index}"
    own = os.getpid()
    console.message(f"{workers}, {where}supervised by process {own}; logs in {settings.logs}")
    return Supervisor(settings, control, console, placement=placement).run()
