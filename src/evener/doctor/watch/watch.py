"""Running a program for a few steps in a process of its own, and leaving nothing behind."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import evener
from evener.devices.spec import spec_from
from evener.doctor.watch import supervisor
from evener.doctor.watch.gather import Run, observation_of, read_events
from evener.doctor.watch.observation import Observation
from evener.doctor.watch.probes.run import WatchRequest
from evener.run.child_process import Output
from evener.run.script import read

_POLL_SECONDS = 0.1
# Where evener was imported from, the program's process must find it too.
_BOOT = (
    "import sys; root = sys.argv.pop(1); root in sys.path or sys.path.append(root); "
    "from evener.doctor.watch.probes.run import main; main()"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchLimits:
    """Limits of a watched run.

    Args:
        time_limit_seconds: Time limit of the run, above 0.
        num_steps: Number of steps to watch, without those that trace; from 1.
        min_seconds: Least total duration of these steps; more are watched until it is reached.
        grace_seconds: Time to end after SIGTERM, before SIGKILL.
    """

    time_limit_seconds: float = 120.0
    num_steps: int = 20
    min_seconds: float = 1.0
    grace_seconds: float = 2.0


def watch(
    script: str | os.PathLike[str],
    args: Sequence[str] = (),
    *,
    as_module: bool = False,
    devices: str | None = None,
    gpu_names: bool = False,
    limits: WatchLimits | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Observation:
    """Run a script for a few training steps, and return the observation.

    It runs as ``python SCRIPT ARGS`` would in the current folder, without standard input, in a
    session of its own. The end of its output is kept. It is ended when enough steps were seen or at
    the time limit, with all processes that it started.

    Args:
        script: The path of a Python file, or the name of a module.
        args: Arguments of the script.
        as_module: Whether it is a module, which runs as ``python -m MODULE ARGS`` would.
        devices: Device spec to configure before the script starts, such as ``"cpu:2"``;
            None for that of the environment, else the script's own.
        gpu_names: Whether to present CPU devices as GPUs on a machine without GPUs.
        limits: Limits of time and steps; None for the default ones.
        clock: Function that returns monotonic seconds.

    Raises:
        RunError: RUN-001 to RUN-003 or RUN-021 if the script cannot be read.
        DeviceError: DEV-001 to DEV-007 if the device spec cannot be read.

    Example:
        >>> import pathlib, tempfile
        >>> script = pathlib.Path(tempfile.mkdtemp(), "train.py")
        >>> _ = script.write_text("print('no step')")
        >>> watch(script).outcome.value
        'finished'
    """
    limits = limits or WatchLimits()
    found = read(os.fspath(script), as_module=as_module)
    spec = spec_from(devices, os.environ)
    with tempfile.TemporaryDirectory(prefix="evener-watch-") as folder:
        request = WatchRequest(
            script=found.given,
            as_module=as_module,
            args=list(args),
            devices=None if spec.source == "default" else str(spec),
            gpu_names=gpu_names,
            events=str(Path(folder, "events")),
            stacks=str(Path(folder, "stacks")),
            num_steps=limits.num_steps,
            min_seconds=limits.min_seconds,
        )
        run = _run(request, limits, clock)
        run = dataclasses.replace(run, stacks=_text(request.stacks))
        return observation_of(read_events(_text(request.events)), run)


def _run(request: WatchRequest, limits: WatchLimits, clock: Callable[[], float]) -> Run:
    output = Output()
    began, timed_out = clock(), False
    with _kept(request, output, limits.grace_seconds) as (process, report):
        while not select.select([report], [], [], _POLL_SECONDS)[0]:
            if not timed_out and clock() - began >= limits.time_limit_seconds:
                timed_out = True
                _end(process)
        seconds = clock() - began
        answer = report.read()
    output.wait(limits.grace_seconds)
    result = json.loads(answer) if answer else {"status": None}
    return Run(
        seconds=seconds,
        timed_out=timed_out,
        status=result["status"],
        output_tail=output.tail,
    )


@contextlib.contextmanager
def _kept(
    request: WatchRequest, output: Output, grace_seconds: float
) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """Start the supervisor, which starts the program; whatever happens inside, both end."""
    source, sink = os.pipe()
    with os.fdopen(source, "rb") as report:
        try:
            process = subprocess.Popen(
                _command(request, sink, grace_seconds),
                stdin=subprocess.PIPE,
                stdout=output.sink,
                stderr=output.sink,
                pass_fds=[sink],
                start_new_session=True,
                # Nothing is written into the program's folder but what it writes itself.
                env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            )
        finally:
            os.close(sink)
            output.start()
        try:
            yield process, report
        finally:
            _end(process)
            process.wait()


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()


def _command(request: WatchRequest, report: int, grace_seconds: float) -> list[str]:
    root = str(Path(evener.__file__).parents[1])
    keep = [sys.executable, "-I", "-S", str(supervisor.__file__), str(report), str(grace_seconds)]
    boot = [sys.executable, "-u", "-c", _BOOT, root, json.dumps(dataclasses.asdict(request))]
    return keep + boot


def _text(path: str) -> str:
    file = Path(path)
    return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
