"""Questions about the first training step of a program, and answers, between two processes."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NoReturn

from evener import errors
from evener.devices.spec import SpecError
from evener.errors import EvenerError, PlacementError
from evener.run.child_process import ProcessResult, ask_module, end_with
from evener.run.eager_steps import eager_step_at

# Questions to a subprocess: JSON on its command line.


class TargetError(PlacementError):
    """The target of an audit is invalid: wrong usage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRequest:
    """A program to run up to its first training step, and the question about that step."""

    # ``"audit"`` for its placement, ``"costs"`` for seconds and bytes of its layers, ``"memory"``
    # for the bytes alone, ``"datasheets"`` for the bytes, and seconds that follow from speeds
    question: Literal["audit", "costs", "memory", "datasheets"]
    target: str  # Path of a script, name of a module, or ``"module:function"``
    # Kind of the target; only an audit takes a function
    kind: Literal["script", "module", "function"] = "script"
    args: tuple[str, ...] = ()  # Command line arguments of the program
    # Device spec. With None the program of an audit configures TensorFlow itself; costs are
    # measured on ``EVENER_DEVICES``, else on all devices
    devices: str | None = None
    gpu_names: bool = True  # Whether CPU devices appear as GPUs, where there is no GPU
    # Size for None in an input signature, in an audit; for costs the most samples to measure, by
    # default the batch of the script
    batch_size: int | None = None
    assume_gpus: bool = False  # Whether to assume GPUs, as in `evener.audit`
    remeasure: bool = False  # Whether layers are measured that were measured before
    # Speed of each type of device that is not here, as the fields of a
    # `evener.profiler.device_speed.DeviceSpeed`, for ``"datasheets"``
    speeds: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)
    answer: str = ""  # Path of the file for the answer, which `evener.run.questions.ask` chooses

    def to_json(self) -> str:
        """Return the request as the subprocess reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> StepRequest:
        fields = json.loads(text)
        return cls(**{**fields, "args": tuple(fields["args"])})


# Answers of a subprocess: JSON in a file, and the end of its process.
#
# ask      start ``python -m evener.run.child REQUEST``, wait, read the file
# reply    write the file and end the process: the program does not continue

FIX_EAGER = (
    "Put @tf.function on the function of the step, or compile the model without run_eagerly."
)
_CHILD = "evener.run.child"
_SHOWN_LINES = 15
# TensorFlow writes these lines on import, before it reads TF_CPP_MIN_LOG_LEVEL.
_ON_IMPORT = re.compile(r"WARNING: All log messages before absl|I0000 \d\d:\d\d:\d+\.\d+ ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of a subprocess, and the end of its process."""

    process: ProcessResult  # Exit code and output of the process
    # ``"found"`` if `found` holds the result; ``"eager"``, ``"no batch size"``, ``"failed"`` or
    # ``"ended"`` say why there is none; empty if the process wrote nothing
    outcome: str = ""
    found: Mapping[str, Any] = field(default_factory=dict)  # Fields of the result
    line: str = ""  # Source line of an eager training step, or an empty string
    notes: tuple[str, ...] = ()  # Notes about the program, as text

    def why_no_step(self, limit_seconds: float) -> str:
        """Return the end of a script that came to no training step, for an error."""
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
        """Return the end of the output of the program, for an error."""
        lines = self.process.output.rstrip().splitlines()
        lines = [line for line in lines if not _ON_IMPORT.match(line)][-_SHOWN_LINES:]
        if not lines:
            return "It printed nothing."
        return "The end of its output:\n" + "\n".join(f"    {line}" for line in lines)


def ending(code: int) -> str:
    return f"it was killed by signal {-code}" if code < 0 else f"it ended with exit code {code}"


def ask(
    request: StepRequest,
    *,
    environ: Mapping[str, str] | None = None,
    limit_seconds: float,
) -> Answer:
    result, answer = ask_module(
        _CHILD,
        lambda path: dataclasses.replace(request, answer=path).to_json(),
        environ=environ,
        limit_seconds=limit_seconds,
    )
    fields = {} if answer is None else json.loads(answer)
    if "error" in fields:
        raise _error_from(fields["error"])
    return Answer(process=result, **{**fields, "notes": tuple(fields.get("notes", ()))})


def reply(
    request: StepRequest,
    outcome: str,
    *,
    found: Mapping[str, Any] | None = None,
    line: str = "",
    notes: tuple[str, ...] = (),
) -> NoReturn:
    """Answer a request, and end the process. The arguments are those of `Answer`."""
    fields = {"outcome": outcome, "found": found or {}, "line": line, "notes": notes}
    end_with(request.answer, json.dumps(fields))


def reply_error(request: StepRequest, error: EvenerError) -> NoReturn:
    """Answer a request with an error, which `ask` raises, and end the process."""
    fields = {name: getattr(error, name) for name in ("code", "what", "why", "fix")}
    end_with(request.answer, json.dumps({"error": {"kind": type(error).__name__, **fields}}))


def _error_from(written: Mapping[str, str]) -> EvenerError:
    usage_errors = {kind.__name__: kind for kind in (TargetError, SpecError)}
    kind = usage_errors.get(written["kind"]) or getattr(errors, written["kind"], EvenerError)
    return kind(written["code"], written["what"], why=written["why"], fix=written["fix"])
