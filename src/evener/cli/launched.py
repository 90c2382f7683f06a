"""The jobs that ``evener launch`` runs, with their log folders."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import typer

from evener.workers import launch
from evener.workers.job import duration
from evener.workers.launch import (
    PORT_BASE,
    Limits,
    RunCommand,
    job_settings,
    task_of,
    task_settings,
)
from evener.workers.on_ray import RayCluster, Resources
from evener.workers.supervisor import LaunchSettings


def run_task(command: RunCommand, logs: Path | None, limits: Limits, port: int | None) -> int:
    """Run the worker of a scheduler's task, and return its exit code."""
    task = task_of(os.environ, port_base=port or PORT_BASE)
    return launch.run_task(task_settings(command, task, logs=_log_folder(logs), limits=limits))


def run_here(command: RunCommand, num_workers: int, logs: Path | None, limits: Limits) -> int:
    """Run a job on this machine, and return its exit code."""
    return launch.run_local(_settings(command, num_workers, logs, limits))


def run_on_ray(
    command: RunCommand,
    needs: Sequence[Resources],
    logs: Path | None,
    limits: Limits,
    address: str,
) -> int:
    """Run a job on a Ray cluster, and return its exit code."""
    settings = _settings(command, len(needs), logs, limits)
    cluster = RayCluster(address, needs, place_seconds=settings.start_seconds)
    return launch.run_on_ray(settings, cluster)


def _settings(
    command: RunCommand, num_workers: int, logs: Path | None, limits: Limits
) -> LaunchSettings:
    seconds = duration(os.environ, "start_seconds")
    limits = dataclasses.replace(limits, start_seconds=seconds)
    folder = _log_folder(logs)
    return job_settings(command, num_workers, environ=os.environ, logs=folder, limits=limits)


def _log_folder(logs: Path | None) -> Path:
    """Return the folder for log files, which exists and can be written to."""
    if logs is None:
        return Path(tempfile.mkdtemp(prefix="evener-launch-"))
    try:
        logs.mkdir(parents=True, exist_ok=True)
        # Permissions do not tell: a file system may be read-only.
        with tempfile.TemporaryFile(dir=logs):
            pass
    except OSError as error:
        raise typer.BadParameter(
            f"{logs} cannot be written to: {error.strerror}", param_hint="'--logs'"
        ) from None
    return logs
