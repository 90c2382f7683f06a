"""``evener audit``: a program in a process of its own, up to its first training step."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from evener import errors
from evener.devices.spec import SpecError
from evener.errors import EvenerError, PlacementError
from evener.launch.child import Ended, run_apart
from evener.launch.order import Order, TargetError, order_text
from evener.launch.script import read_script
from evener.placement.record import Audit

_NAMED = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_SHOWN_LINES = 15
# What TensorFlow writes when it is imported, before it reads how much it should.
_ON_IMPORT = re.compile(r"WARNING: All log messages before absl|I0000 \d\d:\d\d:\d+\.\d+ ")


def order_for(target: str, args: tuple[str, ...], **choices: Any) -> Order:
    """Return the order for what was named on the command line.

    Args:
        target: A path, or ``"module:function"``.
        args: What follows it.
        **choices: ``devices``, ``meant_for``, ``batch`` and ``gpu_names`` of `Order`.

    Raises:
        RunError: RUN-001 to RUN-003 if a script cannot be read.
        TargetError: PLACE-042 if a function is given arguments.
    """
    is_script = Path(target).exists() or not _NAMED.fullmatch(target)
    if is_script:
        read_script(target)
    elif args:
        raise TargetError(
            "PLACE-042",
            f"{target} takes no arguments here, and {' '.join(args)} was given.",
            why="what follows on the command line is for scripts; a function gets its "
            "arguments from its input_signature, or from a function that returns them.",
            fix="leave them out, or write a function: return train_step, (x, y).",
        )
    return Order(target=target, args=args, is_script=is_script, answer="", **choices)


def audit_apart(order: Order, *, limit_seconds: float) -> tuple[Audit, str]:
    """Run a program up to its first training step.

    Args:
        order: What to audit.
        limit_seconds: How long it may take to come there.

    Returns:
        The audit, and the last of what the program has written.

    Raises:
        PlacementError: PLACE-037 if it ended without training, PLACE-038 if it failed before,
            PLACE-039 if the time ran out, PLACE-040 if it trains eagerly.
        EvenerError: What its process found out.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        text = order_text(replace(order, answer=str(answer)))
        command = [sys.executable, "-m", "evener.launch.first_step", text]
        ended = run_apart(command, environ=_environment(), limit_seconds=limit_seconds)
        found = json.loads(answer.read_text(encoding="utf-8")) if answer.exists() else {}
    if "audit" in found:
        # The program's own output is not shown, and what was said is in it.
        for note in found.get("notes", ()):
            print(note, file=sys.stderr)
        return Audit.from_json(found["audit"]), ended.output
    if "error" in found:
        raise _raised(found["error"])
    raise _no_audit(order.target, found, ended, limit_seconds)


def _environment() -> dict[str, str]:
    # Else TensorFlow's log fills what is kept of the program's output.
    return {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, "PYTHONUNBUFFERED": "1"}


def _raised(written: dict[str, str]) -> EvenerError:
    own = {kind.__name__: kind for kind in (TargetError, SpecError)}
    kind = own.get(written["kind"]) or getattr(errors, written["kind"], EvenerError)
    return kind(written["code"], written["what"], why=written["why"], fix=written["fix"])


def _no_audit(
    target: str, found: dict[str, Any], ended: Ended, limit_seconds: float
) -> PlacementError:
    outcome = found.get("outcome")
    if outcome == "eager":
        return PlacementError(
            "PLACE-040",
            f"{target} trains eagerly{' at ' + found['line'] if found['line'] else ''}.",
            why="an audit reads the graph of a step, and eagerly there is none.",
            fix="put @tf.function on the function of the step, or compile the model without "
            "run_eagerly.",
        )
    if ended.code is None:
        return PlacementError(
            "PLACE-039",
            f"{target} came to no training step in {limit_seconds:g} seconds.",
            why=f"it was stopped then. {_last(ended.output)}",
            fix="give it more time by --time-limit, or less to do before its first step.",
        )
    if outcome == "ended" or (ended.code == 0 and outcome is None):
        return PlacementError(
            "PLACE-037",
            f"{target} ended without a training step.",
            why="no traced function of it computed gradients and wrote variables. "
            f"{_last(ended.output)}",
            fix="give the arguments with which it trains, or name the function of the step as "
            "MODULE:FUNCTION.",
        )
    return PlacementError(
        "PLACE-038",
        f"{target} failed before its first training step.",
        why=f"{_ending(ended.code)}. {_last(ended.output)}",
        fix="make it run as `python` would run it, then audit it.",
    )


def _ending(code: int) -> str:
    return f"it was ended by signal {-code}" if code < 0 else f"it ended with exit code {code}"


def _last(output: str) -> str:
    lines = [line for line in output.rstrip().splitlines() if not _ON_IMPORT.match(line)]
    lines = lines[-_SHOWN_LINES:]
    if not lines:
        return "It wrote nothing."
    return "The last of its output:\n" + "\n".join(f"    {line}" for line in lines)
