"""``evener audit``: runs a program in a subprocess, up to its first training step."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from evener.auditing.result import Audit
from evener.errors import PlacementError
from evener.launch.answer import ask, ending, last_lines
from evener.launch.audit_request import AuditRequest, TargetError
from evener.launch.child_process import ProcessResult
from evener.launch.script import read_script

_NAMED = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def request_for(target: str, args: tuple[str, ...], **choices: Any) -> AuditRequest:
    """Return the request for the target on the command line.

    Args:
        target: A path, or ``"module:function"``.
        args: The arguments after it.
        **choices: ``devices``, ``assume_gpus``, ``batch_size`` and ``gpu_names`` of `AuditRequest`.

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
    return AuditRequest(target=target, args=args, is_script=is_script, **choices)


def audit_in_subprocess(request: AuditRequest, *, limit_seconds: float) -> tuple[Audit, str]:
    """Run a program up to its first training step.

    Args:
        request: What to audit.
        limit_seconds: The time limit until its first training step.

    Returns:
        The audit, and the end of the program's output.

    Raises:
        PlacementError: PLACE-037 if it ended without a training step, PLACE-038 if it failed
            before, PLACE-039 if the time limit was reached, PLACE-040 if it trains eagerly.
        EvenerError: Any other error that the subprocess raised.
    """
    found, result = ask("evener.launch.first_step", request, limit_seconds=limit_seconds)
    if "audit" in found:
        # The notes are part of the program's output, which is not shown.
        for note in found.get("notes", ()):
            print(note, file=sys.stderr)
        return Audit.from_json(found["audit"]), result.output
    raise _no_audit(request.target, found, result, limit_seconds)


def _no_audit(
    target: str, found: dict[str, Any], result: ProcessResult, limit_seconds: float
) -> PlacementError:
    outcome = found.get("outcome")
    if outcome == "eager":
        return PlacementError(
            "PLACE-040",
            f"{target} trains eagerly{' at ' + found['line'] if found['line'] else ''}.",
            why="An audit reads the graph of a step, and an eager step has none.",
            fix="Put @tf.function on the function of the step, or compile the model without "
            "run_eagerly.",
        )
    if result.exit_code is None:
        return PlacementError(
            "PLACE-039",
            f"{target} reached no training step in {limit_seconds:g} seconds.",
            why=f"It was stopped at the time limit. {last_lines(result.output)}",
            fix="Increase --time-limit, or shorten what the program does before its first step.",
        )
    if outcome == "ended" or (result.exit_code == 0 and outcome is None):
        return PlacementError(
            "PLACE-037",
            f"{target} ended without a training step.",
            why="None of its traced functions computed gradients and wrote variables. "
            f"{last_lines(result.output)}",
            fix="Pass the arguments with which it trains, or name the function of the step as "
            "MODULE:FUNCTION.",
        )
    return PlacementError(
        "PLACE-038",
        f"{target} failed before its first training step.",
        why=f"{ending(result.exit_code)}. {last_lines(result.output)}",
        fix="Make sure that it runs with `python`, then audit it.",
    )
