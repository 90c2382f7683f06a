"""Jobs of `evener launch`.

Workers on this machine or on Ray, or the worker of a scheduler's task.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import re
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from evener.errors import RunError
from evener.workers.job import DURATIONS, LARGEST_PORT, job_from_environment
from evener.workers.on_ray import RayCluster
from evener.workers.output import Console
from evener.workers.supervisor import (
    OF_OTHER_JOBS,
    Control,
    JobControl,
    LaunchSettings,
    Placement,
    Supervisor,
    WorkerCommand,
    handled_signals,
)
from evener.workers.worker_process import LOOPBACK, ThisMachine

PORT_BASE = 8888
_RAY_ERROR_WAIT_SECONDS = 10.0
_COMMA = re.compile(r",(?![^\[\]]*\])")
_PART = re.compile(r"\[[^\[\]]+\]|[^\[\]]+")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def slurm_tf_config(environ: Mapping[str, str], *, port_base: int = PORT_BASE) -> str | None:
    """Return ``TF_CONFIG`` for a task of Slurm, or None if it is the only one.

    The addresses are those of `tf.distribute.cluster_resolver.SlurmClusterResolver`: a port base,
    plus the number of the task on its host. They differ in one thing: hosts keep the order of
    Slurm's list, in which Slurm numbers the tasks. TensorFlow sorts them by name: ``n10`` comes
    before ``n9``.

    ``port_base`` is the port of the first task of every host. RUN-081 if a variable is missing or
    cannot be read, RUN-082 if the tasks are not numbered host by host.
    """
    rank = _number(environ, "SLURM_PROCID")
    count = _number(environ, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    if count == 1:
        return None
    if not {"SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"} & environ.keys():
        raise RunError(
            "RUN-112",
            f"srun is missing: the job has {count} tasks, and this process is none of them.",
            why="sbatch and salloc run their script once, on the first node; srun runs a command "
            "in every task.",
            fix="Write srun in front of the command: srun evener launch train.py.",
        )
    names = "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"
    hosts = expand_hosts(_text(environ, *names))
    counts = expand_tasks(_text(environ, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"))
    if len(hosts) != len(counts):
        raise _unreadable(f"it lists {len(hosts)} hosts, but the tasks of {len(counts)}")
    if port_base + max(counts, default=0) - 1 > LARGEST_PORT:
        raise _unreadable(
            f"port {port_base} leaves too few ports for {max(counts)} tasks of a host"
        )
    addresses = [
        f"{host}:{port_base + number}"
        for host, num_tasks in zip(hosts, counts, strict=True)
        for number in range(num_tasks)
    ]
    if len(addresses) != count or rank >= count:
        raise _unreadable(
            f"this is task {rank} of {count}, and the lists of hosts and tasks have "
            f"{len(addresses)} tasks"
        )
    host = addresses[rank].rpartition(":")[0]
    own = environ.get("SLURMD_NODENAME", host)
    if own != host:
        raise RunError(
            "RUN-082",
            f"Slurm runs task {rank} on {own}; numbered host by host, it would be on {host}.",
            why="every worker derives the addresses of all others from their numbers.",
            fix="Pass --distribution=block to srun or sbatch.",
        )
    task = {"type": "worker", "index": rank}
    return json.dumps({"cluster": {"worker": addresses}, "task": task})


def expand_hosts(text: str) -> list[str]:
    """Return the hosts of a list of Slurm, with ranges in brackets; RUN-081 if it cannot be read.

    >>> expand_hosts("n[08-10,12],m5")
    ['n08', 'n09', 'n10', 'n12', 'm5']
    """
    unreadable = _unreadable(f"{text!r} is no list of hosts such as n[01-04],m5")
    hosts: list[str] = []
    for name in _COMMA.split(text):
        parts = _PART.findall(name)
        if not name or "".join(parts) != name:
            raise unreadable
        choices: list[list[str]] = []
        for part in parts:
            if not part.startswith("["):
                choices.append([part])
                continue
            choices.append([])
            for numbers in part[1:-1].split(","):
                match = _RANGE.fullmatch(numbers)
                if match is None:
                    raise unreadable
                first, last = match[1], match[2] or match[1]
                choices[-1] += [str(k).zfill(len(first)) for k in range(int(first), int(last) + 1)]
        hosts += map("".join, itertools.product(*choices))
    return hosts


def expand_tasks(text: str) -> list[int]:
    """Return the number of tasks of every host; RUN-081 if the text cannot be read.

    >>> expand_tasks("3(x2),1")
    [3, 3, 1]
    """
    counts: list[int] = []
    for part in text.split(","):
        match = _TASKS.fullmatch(part)
        if match is None:
            raise _unreadable(f"{text!r} is no list of tasks per host such as 2(x3),1")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _text(environ: Mapping[str, str], *names: str) -> str:
    for name in names:
        if environ.get(name):
            return environ[name]
    raise _unreadable(f"{' and '.join(names)} {'are' if names[1:] else 'is'} not set")


def _number(environ: Mapping[str, str], *names: str) -> int:
    text = _text(environ, *names)
    if not (text.isascii() and text.isdecimal()):
        raise _unreadable(f"{text!r} is no number for {' or '.join(names)}")
    return int(text)


def _unreadable(why: str) -> RunError:
    return RunError(
        "RUN-081",
        "The workers cannot be derived from the environment of Slurm.",
        why=f"{why}.",
        fix="Start all tasks by `srun evener launch SCRIPT`, or set TF_CONFIG.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerTask:
    index: int
    environ: Mapping[str, str] = field(repr=False)


def task_of(environ: Mapping[str, str], *, port_base: int = PORT_BASE) -> SchedulerTask:
    """Return the worker that a scheduler asks this process to run; RUN-080 without one."""
    own = {name: text for name, text in environ.items() if name != "EVENER_JOB"}
    if not own.get("TF_CONFIG", "").strip():
        if "SLURM_PROCID" not in own:
            raise RunError(
                "RUN-080",
                "The number of workers is missing: --workers N.",
                why="Neither TF_CONFIG nor Slurm's variables are set, which say it elsewhere.",
                fix="On one machine: evener launch --workers 2 SCRIPT; under Slurm: srun evener "
                "launch SCRIPT; elsewhere set TF_CONFIG for every worker.",
            )
        config = slurm_tf_config(own, port_base=port_base)
        if config is not None:
            own["TF_CONFIG"] = config
    job = job_from_environment(own)
    return SchedulerTask(index=0 if job is None else job.index, environ=own)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCommand:
    target: tuple[str, ...]  # Script, or ``-m`` and module, and its arguments.
    options: tuple[str, ...] = ()  # Options of every worker.
    # No device spec, that of every worker, or a spec for each worker.
    devices: tuple[str, ...] = ()
    report_file: Path | None = None  # File for the report of worker 0.

    def words(self, index: int) -> tuple[str, ...]:
        devices = self.devices[index] if len(self.devices) > 1 else next(iter(self.devices), None)
        options = list(self.options)
        if devices is not None:
            options += ["--devices", devices]
        if self.report_file is not None and index == 0:
            options += ["--report-file", str(self.report_file)]
        return (sys.executable, "-m", "evener", "run", *options, *self.target)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    num_restarts: int = 3  # Number of replacements in all.
    # Silence after which a worker counts as frozen; None for the default.
    heartbeat_seconds: float | None = None
    start_seconds: float = 300.0  # Time that workers wait for each other at the start.
    grace_seconds: float = 60.0  # Time that workers have to end after a signal.


def job_settings(
    command: RunCommand, num_workers: int, *, environ: Mapping[str, str], logs: Path, limits: Limits
) -> LaunchSettings:
    own = {name: text for name, text in environ.items() if name not in OF_OTHER_JOBS}
    return _settings(
        tuple(WorkerCommand(index=k, words=command.words(k)) for k in range(num_workers)),
        environ=own,
        logs=logs,
        limits=limits,
    )


def task_settings(
    command: RunCommand, task: SchedulerTask, *, logs: Path, limits: Limits
) -> LaunchSettings:
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
    return _run(settings, JobControl(settings, LOOPBACK), ThisMachine())


def run_task(settings: LaunchSettings) -> int:
    return _run(settings, Control(), ThisMachine())


def run_on_ray(settings: LaunchSettings, cluster: RayCluster) -> int:
    """Run a job on a Ray cluster, which this process then leaves, and return its exit code."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    signals = signal.SIGINT, signal.SIGTERM
    with handled_signals(signals, end), contextlib.ExitStack() as stack:
        stack.callback(cluster.stop)
        cluster.reserve(lambda text: print(f"evener: {text}", file=sys.stderr, flush=True))
        control = JobControl(settings, cluster.host)
        # From here on, the supervisor leaves the cluster.
        stack.pop_all()
    # Ray starts the workers seconds apart, so their errors are seconds apart too.
    settings = dataclasses.replace(settings, error_wait_seconds=_RAY_ERROR_WAIT_SECONDS)
    return _run(settings, control, cluster, "on Ray, ")


def _settings(
    workers: tuple[WorkerCommand, ...], *, environ: Mapping[str, str], logs: Path, limits: Limits
) -> LaunchSettings:
    return LaunchSettings(
        workers=workers,
        # Lines appear when they are printed, and are not lost with a process that is killed.
        environ={**environ, "PYTHONUNBUFFERED": "1"},
        logs=logs,
        num_restarts=limits.num_restarts,
        heartbeat_seconds=limits.heartbeat_seconds or DURATIONS["heartbeat_seconds"],
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
