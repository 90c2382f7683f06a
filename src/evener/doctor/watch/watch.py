"""Running a program for a few steps in a process of its own, and leaving nothing behind.

doctor --starts--> supervisor --starts--> program with the watcher
^                   |                        |
|<---- exit code ---+                        |
+<---- facts: a file, written whole each time+
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import evener
from evener.base.user_code import is_own
from evener.devices.spec import spec_from
from evener.doctor.facts import Ending, Facts, Outcome, Raised, StepMemory, from_bytes
from evener.doctor.watch import sandbox as sandboxes
from evener.doctor.watch import supervisor
from evener.doctor.watch.child import WatchRequest
from evener.doctor.watch.stacks import innermost_in_dump
from evener.errors import EvenerError
from evener.planner.prediction import estimate_memory, largest_batch, usable_memory
from evener.run.child_process import Output
from evener.run.first_step import counted_memory
from evener.run.script import Script, read

_POLL_SECONDS = 0.1
_PROGRESS_SECONDS = 1.0
# Where evener was imported from, the program's process must find it too.
_BOOT = (
    "import sys; root = sys.argv.pop(1); root in sys.path or sys.path.append(root); "
    "from evener.doctor.watch.child import main; main()"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchLimits:
    """Limits of a watched run."""

    time_limit_seconds: float = 120.0  # Time limit of the run, above 0
    num_steps: int = 20  # Number of steps to watch, without those that trace; from 1
    min_seconds: float = 1.0  # Least total duration of these steps
    num_loops: int = 1  # Number of loops that train to watch, one after the other
    extra_seconds: float = 30.0  # Seconds to wait for further loops after the first
    grace_seconds: float = 2.0  # Time to end after SIGTERM, before SIGKILL


def watch(
    script: str | os.PathLike[str],
    args: Sequence[str] = (),
    *,
    as_module: bool = False,
    devices: str | None = None,
    gpu_names: bool = False,
    sandbox: bool = False,
    gpu_memory_bytes: Sequence[int | None] = (),
    limits: WatchLimits | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> Facts:
    """Run a script for a few training steps, and return the facts.

    It runs as ``python SCRIPT ARGS`` would in the current folder, without standard input, in a
    session of its own. The end of its output is kept. It is ended when enough steps were seen or at
    the time limit, with all processes that it started.

    Raises:
        RunError: RUN-001 to RUN-003 or RUN-021 if the script cannot be read; RUN-025 if the system
            has no sandbox.
        DeviceError: DEV-001 to DEV-007 if the device spec cannot be read.

    Example:
        >>> import pathlib, tempfile
        >>> script = pathlib.Path(tempfile.mkdtemp(), "train.py")
        >>> _ = script.write_text("print('no step')")
        >>> watch(script).ending.outcome.value
        'finished'
    """
    limits = limits or WatchLimits()
    found = read(os.fspath(script), as_module=as_module)
    spec = spec_from(devices, os.environ)
    if sandbox:
        sandboxes.check()
    with tempfile.TemporaryDirectory(prefix="evener-watch-") as folder:
        request = WatchRequest(
            script=found.given,
            as_module=as_module,
            args=list(args),
            devices=None if spec.source == "default" else str(spec),
            gpu_names=gpu_names,
            sandbox=[str(Path.cwd()), folder] if sandbox else [],
            facts=str(Path(folder, "facts")),
            stacks=str(Path(folder, "stacks")),
            num_steps=limits.num_steps,
            min_seconds=limits.min_seconds,
            num_loops=limits.num_loops,
            extra_seconds=limits.extra_seconds,
        )
        run = _run(request, limits, on_progress)
        facts = _completed(_facts(request.facts), run, _text(request.stacks))
    cards = [size for size in gpu_memory_bytes if size]
    raised = facts.ending.raised
    ran_out = raised is not None and "ResourceExhausted" in raised.kind
    if not cards or not (facts.steps or ran_out):
        return facts
    return _with_memory(facts, found, args, min(cards), limits)


def _with_memory(
    facts: Facts, script: Script, args: Sequence[str], card_bytes: int, limits: WatchLimits
) -> Facts:
    """Return facts with the memory of a step, traced on the CPU in a process of its own."""
    try:
        model, batch_size = counted_memory(script, args, time_limit=limits.time_limit_seconds)
    except EvenerError as error:
        return dataclasses.replace(facts, memory_unknown=str(error).splitlines()[0])
    if batch_size is None:
        unknown = "the size of its batches is not known before it runs"
        return dataclasses.replace(facts, memory_unknown=unknown)
    steps = facts.main_steps
    # Under tf.distribute each device has all weights, and its part of the batch.
    num_used = min(1 if steps is None else steps.num_replicas, batch_size)
    samples = math.ceil(batch_size / num_used)
    needed = estimate_memory(model, samples)
    usable = usable_memory(card_bytes)
    memory = StepMemory(
        batch_size=batch_size,
        samples=samples,
        weights=needed.weights + needed.other_variables,
        optimizer_state=needed.optimizer_state,
        gradients=needed.gradients,
        activations=needed.activations + needed.samples,
        workspace=needed.workspace,
        total=needed.total,
        usable=usable,
        largest_batch=largest_batch(model, usable) * num_used,
    )
    return dataclasses.replace(facts, memory=memory)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    seconds: float
    timed_out: bool
    status: int | None  # Negative for a signal; None if it is not known
    output_tail: str = ""


def _run(
    request: WatchRequest, limits: WatchLimits, on_progress: Callable[[str], None] | None
) -> _Run:
    output = Output()
    began, told, timed_out = time.monotonic(), 0.0, False
    with _kept(request, output, limits.grace_seconds) as (process, report):
        while not select.select([report], [], [], _POLL_SECONDS)[0]:
            seconds = time.monotonic() - began
            if not timed_out and seconds >= limits.time_limit_seconds:
                timed_out = True
                _end(process)
            elif on_progress is not None and seconds - told >= _PROGRESS_SECONDS:
                told = seconds
                on_progress(_progress(_facts(request.facts), seconds, limits))
        seconds = time.monotonic() - began
        answer = report.read()
    output.wait(limits.grace_seconds)
    return _Run(
        seconds=seconds,
        timed_out=timed_out,
        status=json.loads(answer)["status"] if answer else None,
        output_tail=output.tail,
    )


def _progress(facts: Facts | None, seconds: float, limits: WatchLimits) -> str:
    steps = None if facts is None else facts.main_steps
    if steps is None:
        return f"{seconds:.0f} s of {limits.time_limit_seconds:.0f} s, no step yet"
    return f"{seconds:.0f} s, {steps.num_steps} steps; {limits.num_steps} are wanted"


def _completed(facts: Facts | None, run: _Run, stacks: str) -> Facts:
    """Return facts with the end of the run as its parent knows it."""
    head, _, dump = stacks.partition("\n")
    stood = innermost_in_dump(dump, int(head.removeprefix("main ") or 0), is_own)
    known: dict[str, Any] = {"seconds": run.seconds, "output_tail": run.output_tail}
    ended = facts is not None and facts.ending.outcome is not Outcome.TIMED_OUT
    facts = facts or Facts(ending=Ending(outcome=Outcome.TIMED_OUT, seconds=run.seconds))
    ending = facts.ending
    if not ended:
        # The process has not said how it ends: it was ended, or broke in native code.
        if run.timed_out:
            known |= {"where": stood}
        elif run.status:
            name, message = f"exit code {run.status}", "the process ended without a word"
            if run.status < 0:
                name = signal.Signals(-run.status).name
                message = f"the process was ended by {name}"
            raised = Raised(
                kind=name,
                message=message,
                where=stood,
                num_steps=sum(steps.num_steps for steps in facts.steps),
            )
            known |= {"outcome": Outcome.CRASHED, "raised": raised, "where": stood}
            known |= {"exit_code": run.status}
        else:
            known |= {"outcome": Outcome.FINISHED, "exit_code": run.status}
        still = run.seconds - ending.seconds + ending.still_seconds
        known |= {"still_seconds": max(0.0, still)}
    elif ending.outcome is Outcome.CRASHED:
        known |= {"exit_code": run.status}
    elif ending.outcome is Outcome.FINISHED and run.status:
        known |= {"exit_code": run.status}
    return dataclasses.replace(facts, ending=dataclasses.replace(ending, **known))


@contextlib.contextmanager
def _kept(
    request: WatchRequest, output: Output, grace_seconds: float
) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """Start the supervisor, which starts the program; whatever happens inside, both end."""
    source, sink = os.pipe()
    with os.fdopen(source, "rb") as report:
        try:
            root = str(Path(evener.__file__).parents[1])
            supervise = [str(supervisor.__file__), str(sink), str(grace_seconds)]
            boot = ["-u", "-c", _BOOT, root, json.dumps(dataclasses.asdict(request))]
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", *supervise, sys.executable, *boot],
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


def _facts(path: str) -> Facts | None:
    file = Path(path)
    return from_bytes(Facts, file.read_bytes()) if file.exists() else None


def _text(path: str) -> str:
    file = Path(path)
    return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
