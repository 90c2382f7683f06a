"""``evener audit``: runs a program in a subprocess, up to its first training step."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from evener.auditing.result import Audit
from evener.errors import PlacementError
from evener.run.eager_step import eager_step_at
from evener.run.script import Script, read
from evener.subprocess.answer import FIX_EAGER, Answer, ask, ending
from evener.subprocess.request import StepRequest, TargetError

_NAMED = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def script_of(target: str, *, as_module: bool) -> Script | None:
    """Return the script or module that a target names; None if it is ``"module:function"``.

    Raises:
        RunError: RUN-001 to RUN-003 or RUN-021 if it cannot be read.
    """
    is_script = as_module or Path(target).exists() or not _NAMED.fullmatch(target)
    return read(target, as_module=as_module) if is_script else None


def request_for(
    target: str, args: tuple[str, ...], *, script: Script | None, **choices: Any
) -> StepRequest:
    """Return the request for the target on the command line.

    Args:
        target: Path of a script, name of a module, or ``"module:function"``.
        args: Arguments after it.
        script: Script of `script_of`.
        **choices: Values for ``devices``, ``assume_gpus``, ``batch_size`` and ``gpu_names`` of
            `StepRequest`.

    Raises:
        TargetError: PLACE-042 if arguments follow a function.
    """
    if script is None and args:
        raise TargetError(
            "PLACE-042",
            f"{target} takes no command line arguments, but {' '.join(args)} follows it.",
            why="Command line arguments are for scripts. The arguments of a function come from its "
            "input_signature, or from a function that returns them.",
            fix="Remove them, or name a function that ends with: return train_step, (x, y).",
        )
    kind = "function" if script is None else "script" if script.module is None else "module"
    return StepRequest(question="audit", target=target, kind=kind, args=args, **choices)


def audit_in_subprocess(request: StepRequest, *, limit_seconds: float) -> Audit:
    """Run a program up to its first training step, and return the audit of the step.

    Args:
        request: Request of `request_for`.
        limit_seconds: The time limit until its first training step.

    Raises:
        PlacementError: PLACE-037 if it ended without a training step, PLACE-038 if it failed
            before, PLACE-039 if the time limit was reached, PLACE-040 if it trains eagerly.
        EvenerError: Any other error that the subprocess raised.
    """
    answer = ask(request, limit_seconds=limit_seconds)
    if answer.outcome != "found":
        raise _no_audit(request.target, answer, limit_seconds)
    # The notes are part of the program's output, which is not shown.
    for note in answer.notes:
        print(note, file=sys.stderr)
    return Audit.from_json(answer.found["audit"])


def _no_audit(target: str, answer: Answer, limit_seconds: float) -> PlacementError:
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
