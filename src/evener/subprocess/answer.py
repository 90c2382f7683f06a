"""Answers of a subprocess: JSON in a file, and the end of its process.

ask      start ``python -m evener.subprocess.child REQUEST``, wait, read the file
reply    write the file and end the process: the program does not continue
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from evener import errors
from evener.devices.spec import SpecError
from evener.errors import EvenerError
from evener.run.eager_step import eager_step_at
from evener.subprocess.answer_file import ask_module, end_with
from evener.subprocess.child_process import ProcessResult
from evener.subprocess.request import StepRequest, TargetError

FIX_EAGER = (
    "Put @tf.function on the function of the step, or compile the model without run_eagerly."
)
_CHILD = "evener.subprocess.child"
_SHOWN_LINES = 15
# TensorFlow writes these lines on import, before it reads TF_CPP_MIN_LOG_LEVEL.
_ON_IMPORT = re.compile(r"WARNING: All log messages before absl|I0000 \d\d:\d\d:\d+\.\d+ ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of a subprocess, and the end of its process.

    Args:
        process: Exit code and output of the process.
        outcome: ``"found"`` if `found` holds the result; ``"eager"``, ``"no batch size"``,
            ``"failed"`` or ``"ended"`` say why there is none; empty if the process wrote nothing.
        found: Fields of the result.
        line: Source line of an eager training step, or an empty string.
        notes: Notes about the program, as text.
    """

    process: ProcessResult
    outcome: str = ""
    found: Mapping[str, Any] = field(default_factory=dict)
    line: str = ""
    notes: tuple[str, ...] = ()

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
    """Return the end of a program by its exit code, for an error."""
    return f"it was killed by signal {-code}" if code < 0 else f"it ended with exit code {code}"


def ask(
    request: StepRequest,
    *,
    environ: Mapping[str, str] | None = None,
    limit_seconds: float,
) -> Answer:
    """Ask a subprocess.

    Args:
        request: The question.
        environ: Environment variables that the subprocess has besides.
        limit_seconds: The time limit, above 0.

    Raises:
        EvenerError: If the answer is an error.
    """
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
