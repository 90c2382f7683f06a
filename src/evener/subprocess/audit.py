"""``evener audit``: runs a program in a subprocess, up to its first training step."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from evener.auditing.result import Audit
from evener.errors import PlacementError
from evener.run.script import read_script
from evener.subprocess.answer import Answer, ask, ending
from evener.subprocess.request import StepRequest, TargetError

_NAMED = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def request_for(target: str, args: tuple[str, ...], **choices: Any) -> StepRequest:
    """Return the request for the target on the command line.

    Args:
        target: Path of a script, or ``"module:function"``.
        args: Arguments after it.
        **choices: Values for ``devices``, ``assume_gpus``, ``batch_size`` and ``gpu_names`` of
            `StepRequest`.

    Raises:
        RunError: RUN-001 to RUN-003 if a script cannot be read.
        TargetError: PLACE-042 if arguments follow a function.
    """
    is_script = Path(target).exists() or not _NAMED.fullmatch(target)
    if is_script:
        read_script(target)
    elif args:
        raise TargetError(
            "PLACE-042",
            f"{target} takes no command line arguments, but {' '.join(args)} follows it.",
            why="Command line arguments are for scripts. The arguments of a function come from its "
            "input_signature, or from a function that returns them.",
            fix="Remove them, or name a function that ends with: return train_step, (x, y).",
        )
    kind = "script" if is_script else "function"
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
        return PlacementError(
            "PLACE-040",
            f"{target} trains eagerly{' at ' + answer.line if answer.line else ''}.",
            why="An audit reads the graph of a step, and an eager step has none.",
            fix="Put @tf.function on the function of the step, or compile the model without "
            "run_eagerly.",
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
