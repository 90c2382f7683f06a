"""First training step of a program, which runs in a process of its own: its audit, costs, a plan.

::

    parent                          child
    ask ──────────────────────────► new session and process group, `python -m MODULE REQUEST`
    read the end of its output ◄─── standard output and error
    wait, at most the limit         reply: writes its answer to a file beside the request, and ends
    kill the process group          including processes that the child has started

The program that the process runs may print what it likes, and does not continue behind the answer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

from rich.text import Text

from evener import errors
from evener.auditing import Audit
from evener.base.libraries import check_installed
from evener.base.records import from_json, to_json, to_plain
from evener.devices.spec import SpecError, spec_from
from evener.errors import EvenerError, EvenerWarning, PlacementError, RunError
from evener.plan.profile import CostProfile, LayerTimes, ModelCosts
from evener.plan.profile_files import ReusedLayers, warn_of_estimates
from evener.planner.clusters import ClusterDescription
from evener.planner.datasheets import Assumptions, reached_speeds
from evener.planner.planning import Planned, plan_profile
from evener.run.regions import eager_step_at
from evener.run.script import Script, read


class Output:
    """Reads a pipe to its end in a thread, in bounded memory, so that the writer never blocks."""

    def __init__(self, kept_bytes: int = 16 * 1024) -> None:
        self._kept_bytes = kept_bytes
        self._tail = b""
        self.num_bytes = 0
        self._source, self.sink = os.pipe()
        self._thread = threading.Thread(target=self._drain, name="evener-output", daemon=True)

    def start(self) -> None:
        os.close(self.sink)
        self._thread.start()

    def wait(self, seconds: float) -> None:
        """Wait until the last writer has closed the pipe."""
        self._thread.join(seconds)

    @property
    def tail(self) -> str:
        """The end of the output, without colours; bytes that are not UTF-8 are replaced."""
        text = self._tail.decode("utf-8", errors="replace")
        return Text.from_ansi(text.replace("\r\n", "\n")).plain

    def _drain(self) -> None:
        while block := os.read(self._source, 64 * 1024):
            self.num_bytes += len(block)
            self._tail = (self._tail + block)[-self._kept_bytes :]
        os.close(self._source)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessResult:
    exit_code: int | None  # Negative for a signal; None if the time limit was reached.
    output: str  # The end of its output, at most 16 KiB.


def run_child_process(
    command: Sequence[str], *, environ: Mapping[str, str], limit_seconds: float
) -> ProcessResult:
    """Run a command and all its child processes until it exits or the time limit is reached."""
    output = Output()
    try:
        process = subprocess.Popen(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=output.sink,
            stderr=output.sink,
            start_new_session=True,
        )
    finally:
        output.start()
    exit_code: int | None = None
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            exit_code = process.wait(timeout=limit_seconds)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    # The group is dead; only a process that left it can hold the pipe open.
    output.wait(5.0)
    return ProcessResult(exit_code=exit_code, output=output.tail)


def ask_module(
    module: str, request: str, *, environ: Mapping[str, str] | None = None, limit_seconds: float
) -> tuple[ProcessResult, str | None]:
    """Run ``python -m MODULE REQUEST``; return its end, and its answer if it wrote one."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "request.json"
        path.write_text(request, encoding="utf-8")
        # Otherwise TensorFlow's log would fill the kept end of the output.
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, "PYTHONUNBUFFERED": "1"}
        result = run_child_process(
            [sys.executable, "-m", module, str(path)],
            environ={**quiet, **(environ or {})},
            limit_seconds=limit_seconds,
        )
        answer = answer_file(path)
        return result, answer.read_text(encoding="utf-8") if answer.exists() else None


def answer_file(request: Path) -> Path:
    return request.with_name("answer.json")


def end_with(request: Path, answer: str) -> NoReturn:
    answer_file(request).write_text(answer, encoding="utf-8")
    sys.stdout.flush()
    sys.stderr.flush()
    # Exit handlers of the program do not run, and its threads are not joined.
    os._exit(0)


FIX_EAGER = (
    "Put @tf.function on the function of the step, or compile the model without run_eagerly."
)
# TensorFlow writes these lines on import, before it reads TF_CPP_MIN_LOG_LEVEL.
_ON_IMPORT = re.compile(r"WARNING: All log messages before absl|I0000 \d\d:\d\d:\d+\.\d+ ")


class TargetError(PlacementError):
    """The target of an audit is invalid: wrong usage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRequest:
    """A program to run up to its first training step, and the question about that step."""

    # ``"audit"`` for its placement, ``"costs"`` for seconds and bytes of its layers, ``"memory"``
    # for the bytes alone, ``"datasheets"`` for the bytes, and seconds that follow from speeds.
    question: Literal["audit", "costs", "memory", "datasheets"]
    target: str  # Path of a script, name of a module, or ``"module:function"``.
    script: Script | None = None  # The script or module; None for a function, in an audit.
    args: tuple[str, ...] = ()  # Command line arguments of the program.
    # Device spec. With None the program of an audit configures TensorFlow itself; costs are
    # measured on ``EVENER_DEVICES``, else on all devices.
    devices: str | None = None
    gpu_names: bool = True  # Whether CPU devices appear as GPUs, where there is no GPU.
    # Size for None in an input signature, in an audit; for costs the most samples to measure, by
    # default the batch of the script.
    batch_size: int | None = None
    assume_gpus: bool = False  # Whether to assume GPUs, as in `evener.audit`.
    remeasure: bool = False  # Whether layers are measured that were measured before.
    # Speed of each type of device that is not here, as the fields of a
    # `evener.profiler.device_speed.DeviceSpeed`, for ``"datasheets"``.
    speeds: dict[str, Any] = field(default_factory=dict[str, Any], hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    profile: CostProfile
    batch_size: int | None  # Samples of the script's batch; None if its shapes do not say it.
    not_measured: tuple[str, ...] = ()  # Layers that could not be measured, each with the reason.
    taken: tuple[ReusedLayers, ...] = ()  # Layers measured in earlier runs, by kind of device.
    warnings: tuple[str, ...] = ()  # Warnings of evener while it measured.
    # `evener.planner.datasheets.Assumptions` of costs that were computed; None for measured ones.
    described: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedStep:
    """Costs of a step that was traced alone."""

    model: ModelCosts
    batch_size: int | None
    # Times of the layers by type of device, from speeds: passes fused, and each for itself.
    times: dict[str, tuple[LayerTimes, ...]] = field(default_factory=dict)
    unfused: dict[str, tuple[LayerTimes, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredError:
    kind: str  # Name of its class.
    code: str
    what: str
    why: str
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    # ``"found"`` with one of the following; ``"eager"``, ``"no batch size"``, ``"failed"`` or
    # ``"ended"`` say why there is none; empty if the process wrote nothing.
    outcome: str = ""
    audit: str = ""  # An audit, as it is kept.
    measured: StepCosts | None = None
    traced: CountedStep | None = None
    line: str = ""  # Source line of an eager training step.
    notes: tuple[str, ...] = ()  # Notes about the program.
    error: AnsweredError | None = None
    process: ProcessResult | None = None  # None where the process writes it.

    def why_no_step(self, limit_seconds: float) -> str:
        assert self.process is not None
        code = self.process.exit_code
        if self.outcome == "eager":
            line = f" at {self.line}" if self.line else ""
            step = eager_step_at(self.line)
            because = f" ({step.obstacle})" if step is not None and step.obstacle else ""
            return (
                f"It trains eagerly{line}, and the step cannot become a function{because}, so "
                "there is no graph to measure. It was stopped there."
            )
        ended = f"it was stopped after {limit_seconds:g} seconds" if code is None else ending(code)
        if code == 0:
            ended = (
                "it ended without computing gradients and writing variables in a traced function"
            )
        return f"As `evener run` would run it, {ended}. {self.last_lines()}"

    def last_lines(self) -> str:
        assert self.process is not None
        lines = self.process.output.rstrip().splitlines()
        lines = [line for line in lines if not _ON_IMPORT.match(line)][-15:]
        if not lines:
            return "It printed nothing."
        return "The end of its output:\n" + "\n".join(f"    {line}" for line in lines)


def ending(code: int) -> str:
    return f"it was killed by signal {-code}" if code < 0 else f"it ended with exit code {code}"


def ask(
    request: StepRequest, *, environ: Mapping[str, str] | None = None, limit_seconds: float
) -> Answer:
    """Ask a subprocess, and print its notes; raise the error that is its answer."""
    process, text = ask_module(
        "evener.run.child", to_json(request), environ=environ, limit_seconds=limit_seconds
    )
    answer = Answer() if text is None else from_json(text, Answer)
    error = answer.error
    if error is not None:
        usage_errors = {kind.__name__: kind for kind in (TargetError, SpecError)}
        kind = usage_errors.get(error.kind) or getattr(errors, error.kind, EvenerError)
        raise kind(error.code, error.what, why=error.why, fix=error.fix)
    if answer.outcome == "found":
        # The notes are part of the program's output, which is not shown.
        for note in answer.notes:
            print(note, file=sys.stderr)
    return dataclasses.replace(answer, process=process)


def reply(request: Path, answer: Answer) -> NoReturn:
    # A profile has infinite bandwidths, which Python's JSON has too.
    end_with(request, json.dumps(to_plain(answer)))


_NAMED = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def read_target(target: str, *, as_module: bool) -> Script | None:
    """Return the script or module that a target names; None if it is ``"module:function"``."""
    is_script = as_module or Path(target).exists() or not _NAMED.fullmatch(target)
    return read(target, as_module=as_module) if is_script else None


def audit_request(
    target: str, args: tuple[str, ...], *, script: Script | None, **choices: Any
) -> StepRequest:
    if script is None and args:
        raise TargetError(
            "PLACE-042",
            f"{target} takes no command line arguments, but {' '.join(args)} follows it.",
            why="Command line arguments are for scripts. The arguments of a function come from its "
            "input_signature, or from a function that returns them.",
            fix="Remove them, or name a function that ends with: return train_step, (x, y).",
        )
    return StepRequest(question="audit", target=target, script=script, args=args, **choices)


def audit_in_subprocess(request: StepRequest, *, limit_seconds: float) -> Audit:
    answer = ask(request, limit_seconds=limit_seconds)
    if answer.outcome != "found":
        raise _no_audit(request.target, answer, limit_seconds)
    return Audit.from_json(answer.audit)


def _no_audit(target: str, answer: Answer, limit_seconds: float) -> PlacementError:
    assert answer.process is not None
    exit_code = answer.process.exit_code
    if answer.outcome == "eager":
        step = eager_step_at(answer.line)
        under_run = "" if step is None else f" {step}."
        return PlacementError(
            "PLACE-040",
            f"{target} trains eagerly{' at ' + answer.line if answer.line else ''}.",
            why=f"An audit reads the graph of a step, and an eager step has none.{under_run}",
            fix=FIX_EAGER if step is None else f"To audit it, {step.change}.",
        )
    if exit_code is None:
        return PlacementError(
            "PLACE-039",
            f"{target} reached no training step in {limit_seconds:g} seconds.",
            why=f"It was stopped at the time limit. {answer.last_lines()}",
            fix="Increase --time-limit, or shorten what the program does before its first step.",
        )
    if answer.outcome == "ended" or (exit_code == 0 and not answer.outcome):
        return PlacementError(
            "PLACE-037",
            f"{target} ended without a training step.",
            why="None of its traced functions computed gradients and wrote variables. "
            f"{answer.last_lines()}",
            fix="Pass the arguments with which it trains, or name the function of the step as "
            "MODULE:FUNCTION.",
        )
    ended = ending(exit_code)
    return PlacementError(
        "PLACE-038",
        f"{target} failed before its first training step.",
        why=f"{ended[0].upper()}{ended[1:]}. {answer.last_lines()}",
        fix="Make sure that it runs with `python`, then audit it.",
    )


# No device is needed to count bytes, and none is taken from a program that trains.
_COUNTING = "cpu:1"
# Where TensorFlow finds no GPU, the CPU appears as one to the script.
_COUNTING_ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "-1"}


def measured_profile(request: StepRequest, *, time_limit: float) -> StepCosts:
    # Before the subprocess imports TensorFlow, which takes seconds.
    spec = spec_from(request.devices, os.environ)
    check_installed()
    devices = None if spec.source == "default" else str(spec)
    answer = ask(dataclasses.replace(request, devices=devices), limit_seconds=time_limit)
    found = answer.measured
    if found is None:
        raise _no_costs(request.target, answer, time_limit)
    for text in found.warnings:
        warnings.warn(EvenerWarning(text), stacklevel=2)
    warn_of_estimates(found.not_measured)
    return found


def counted_memory(
    script: Script, args: Sequence[str], *, time_limit: float
) -> tuple[ModelCosts, int | None]:
    check_installed()
    request = StepRequest(
        question="memory", target=script.given, script=script, args=tuple(args), devices=_COUNTING
    )
    answer = ask(request, environ=_COUNTING_ENVIRONMENT, limit_seconds=time_limit)
    if answer.traced is None:
        what = f"The memory of {script.given} cannot be estimated: it reached no training step."
        why = answer.why_no_step(time_limit)
        raise RunError("RUN-040", what, why=why, fix=_fix(answer))
    return answer.traced.model, answer.traced.batch_size


def described_profile(
    request: StepRequest, described: ClusterDescription, *, time_limit: float
) -> StepCosts:
    check_installed()
    speeds = reached_speeds(described)
    request = dataclasses.replace(request, devices=_COUNTING, speeds=speeds)
    answer = ask(request, environ=_COUNTING_ENVIRONMENT, limit_seconds=time_limit)
    found = answer.traced
    if found is None:
        raise _no_costs(request.target, answer, time_limit)
    fused, unfused = (
        CostProfile(model=found.model, cluster=described.cluster, times=times)
        for times in (found.times, found.unfused)
    )
    assumed = Assumptions(described=described, unfused=unfused)
    return StepCosts(profile=fused, batch_size=found.batch_size, described=assumed)


def _unknown_batch_size(script: str, *, why: str, fix: str) -> RunError:
    what = f"{script} trains on batches whose size is not known before it runs."
    return RunError("RUN-031", what, why=why, fix=fix)


def _no_costs(script: str, answer: Answer, limit_seconds: float) -> RunError:
    if answer.outcome == "no batch size":
        why = "Layers are measured at numbers of samples up to that of a batch."
        return _unknown_batch_size(script, why=why, fix="Add --batch-size N.")
    what, why = f"{script} reached no training step.", answer.why_no_step(limit_seconds)
    return RunError("RUN-030", what, why=why, fix=_fix(answer))


def _fix(answer: Answer) -> str:
    if answer.outcome != "eager":
        return "Make it run with evener run first; --time-limit gives it more time."
    step = eager_step_at(answer.line)
    return FIX_EAGER if step is None else f"{step.change[0].upper()}{step.change[1:]}."


def plan_script(
    script: Script, args: Sequence[str], *, devices: str | None, gpu_names: bool, time_limit: float
) -> Planned:
    request = StepRequest(
        question="costs",
        target=script.given,
        script=script,
        args=tuple(args),
        devices=devices,
        gpu_names=gpu_names,
    )
    costs = measured_profile(request, time_limit=time_limit)
    if costs.batch_size is None:
        raise _unknown_batch_size(
            script.given,
            why="A plan is made for one batch size.",
            fix="Make the plan first: evener plan --batch-size N --out plan.json "
            f"{script.words}; then evener run --plan plan.json {script.words}.",
        )
    return plan_profile(costs.profile, costs.batch_size)
