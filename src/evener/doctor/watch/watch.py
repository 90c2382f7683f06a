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
from pathlib import Path
from typing import IO, Any

import evener
from evener.devices.spec import spec_from
from evener.doctor.facts import Ending, Facts, Outcome, Raised, StepMemory, from_bytes
from evener.doctor.watch import sandbox as sandboxes
from evener.doctor.watch import supervisor
from evener.doctor.watch.child import WatchLimits, WatchRequest, innermost_in_dump
from evener.errors import EvenerError
from evener.planner.prediction import estimate_memory, largest_batch, usable_memory
from evener.run.first_step import Output, counted_memory
from evener.run.script import Script, read

_POLL_SECONDS = 0.1
_PROGRESS_SECONDS = 1.0
# Where evener was imported from, the program's process must find it too.
_BOOT = (
    "import sys; root = sys.argv.pop(1); root in sys.path or sys.path.append(root); "
    "from evener.doctor.watch.child import main; main()"
)


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
    session of its own, and is ended with all processes that it started. Raises RUN-001 to RUN-003
    or RUN-021 if it cannot be read, RUN-025 if the system has no sandbox, and errors of the spec.
    """
    found = read(os.fspath(script), as_module=as_module)
    spec = spec_from(devices, os.environ)
    if sandbox:
        sandboxes.check()
    with tempfile.TemporaryDirectory(prefix="evener-watch-") as folder:
        request = WatchRequest(
            **dataclasses.asdict(limits or WatchLimits()),
            script=found.given,
            as_module=as_module,
            args=list(args),
            devices=None if spec.source == "default" else str(spec),
            gpu_names=gpu_names,
            sandbox=[str(Path.cwd()), folder] if sandbox else [],
            facts=str(Path(folder, "facts")),
            stacks=str(Path(folder, "stacks")),
        )
        facts = _run(request, on_progress)
    cards = [size for size in gpu_memory_bytes if size]
    raised = facts.ending.raised
    ran_out = raised is not None and "ResourceExhausted" in raised.kind
    if not cards or not (facts.steps or ran_out):
        return facts
    return _with_memory(facts, found, args, min(cards), request.time_limit_seconds)


def _with_memory(
    facts: Facts, script: Script, args: Sequence[str], card_bytes: int, time_limit: float
) -> Facts:
    """Return facts with the memory of a step, traced on the CPU in a process of its own."""
    try:
        model, batch_size = counted_memory(script, args, time_limit=time_limit)
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


def _run(request: WatchRequest, on_progress: Callable[[str], None] | None) -> Facts:
    output = Output()
    began, told, timed_out = time.monotonic(), 0.0, False
    with _kept(request, output) as (process, report):
        while not select.select([report], [], [], _POLL_SECONDS)[0]:
            seconds = time.monotonic() - began
            if not timed_out and seconds >= request.time_limit_seconds:
                timed_out = True
                _end(process)
            elif on_progress is not None and seconds - told >= _PROGRESS_SECONDS:
                told = seconds
                on_progress(_progress(request, seconds))
        seconds = time.monotonic() - began
        answer = report.read()
    output.wait(request.grace_seconds)
    # Negative for a signal; None if it is not known.
    status: int | None = json.loads(answer) if answer else None
    known: dict[str, Any] = {"seconds": seconds, "output_tail": output.tail}
    facts = _facts(request)
    if facts is None or facts.ending.outcome is Outcome.TIMED_OUT:
        facts = facts or Facts(ending=Ending(outcome=Outcome.TIMED_OUT, seconds=seconds))
        known |= _unsaid(request, status, timed_out=timed_out)
        still = seconds - facts.ending.seconds + facts.ending.still_seconds
        known |= {"still_seconds": max(0.0, still)}
    elif facts.ending.outcome is Outcome.CRASHED or (
        facts.ending.outcome is Outcome.FINISHED and status
    ):
        known |= {"exit_code": status}
    return dataclasses.replace(facts, ending=dataclasses.replace(facts.ending, **known))


def _unsaid(request: WatchRequest, status: int | None, *, timed_out: bool) -> dict[str, Any]:
    """Return the end of a process that has not said it: it was ended, or broke in native code."""
    file = Path(request.stacks)
    stacks = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
    head, _, dump = stacks.partition("\n")
    stood = innermost_in_dump(dump, int(head.removeprefix("main ") or 0))
    if timed_out:
        return {"where": stood}
    if not status:
        return {"outcome": Outcome.FINISHED, "exit_code": status}
    name, message = f"exit code {status}", "the process ended without a word"
    if status < 0:
        name = signal.Signals(-status).name
        message = f"the process was ended by {name}"
    raised = Raised(kind=name, message=message, where=stood)
    return {"outcome": Outcome.CRASHED, "raised": raised, "where": stood, "exit_code": status}


def _progress(request: WatchRequest, seconds: float) -> str:
    facts = _facts(request)
    steps = None if facts is None else facts.main_steps
    if steps is None:
        return f"{seconds:.0f} s of {request.time_limit_seconds:.0f} s, no step yet"
    return f"{seconds:.0f} s, {steps.num_steps} steps; {request.num_steps} are wanted"


@contextlib.contextmanager
def _kept(
    request: WatchRequest, output: Output
) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """Start the supervisor, which starts the program; whatever happens inside, both end."""
    source, sink = os.pipe()
    with os.fdopen(source, "rb") as report:
        try:
            root = str(Path(evener.__file__).parents[1])
            supervise = [str(supervisor.__file__), str(sink), str(request.grace_seconds)]
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


def _facts(request: WatchRequest) -> Facts | None:
    file = Path(request.facts)
    return from_bytes(Facts, file.read_bytes()) if file.exists() else None
