"""Questions about the first training step of a program, and answers, between two processes.

::

    ask      start ``python -m evener.run.child REQUEST``, wait, read the answer
    reply    write the answer and end the process: the program does not continue
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NoReturn

from evener import errors
from evener.base.records import from_json, to_json, to_plain
from evener.devices.spec import SpecError
from evener.errors import EvenerError, PlacementError
from evener.plan.profile import CostProfile, LayerTimes, ModelCosts
from evener.plan.profile_files import ReusedLayers
from evener.run.child_process import ProcessResult, ask_module, end_with
from evener.run.eager_steps import eager_step_at
from evener.run.script import Script

FIX_EAGER = (
    "Put @tf.function on the function of the step, or compile the model without run_eagerly."
)
_CHILD = "evener.run.child"
_SHOWN_LINES = 15
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
        if code is None:
            ended = f"it was stopped after {limit_seconds:g} seconds"
        elif code:
            ended = ending(code)
        else:
            ended = (
                "it ended without computing gradients and writing variables in a traced function"
            )
        return f"As `evener run` would run it, {ended}. {self.last_lines()}"

    def last_lines(self) -> str:
        assert self.process is not None
        lines = self.process.output.rstrip().splitlines()
        lines = [line for line in lines if not _ON_IMPORT.match(line)][-_SHOWN_LINES:]
        if not lines:
            return "It printed nothing."
        return "The end of its output:\n" + "\n".join(f"    {line}" for line in lines)


def ending(code: int) -> str:
    return f"it was killed by signal {-code}" if code < 0 else f"it ended with exit code {code}"


def ask(
    request: StepRequest, *, environ: Mapping[str, str] | None = None, limit_seconds: float
) -> Answer:
    """Ask a subprocess; raise the error that is its answer."""
    process, text = ask_module(
        _CHILD, to_json(request), environ=environ, limit_seconds=limit_seconds
    )
    answer = Answer() if text is None else from_json(text, Answer)
    error = answer.error
    if error is not None:
        usage_errors = {kind.__name__: kind for kind in (TargetError, SpecError)}
        kind = usage_errors.get(error.kind) or getattr(errors, error.kind, EvenerError)
        raise kind(error.code, error.what, why=error.why, fix=error.fix)
    return replace(answer, process=process)


def reply(request: Path, answer: Answer) -> NoReturn:
    # A profile has infinite bandwidths, which Python's JSON has too.
    end_with(request, json.dumps(to_plain(answer)))


def reply_error(request: Path, error: EvenerError) -> NoReturn:
    fields = {name: getattr(error, name) for name in ("code", "what", "why", "fix")}
    reply(request, Answer(error=AnsweredError(kind=type(error).__name__, **fields)))
