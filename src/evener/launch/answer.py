"""What a subprocess answers: JSON in a file, and the end of its process.

parent                              child, ``python -m MODULE REQUEST``
request, with the path of a file -> runs a program up to its first training step
reads the file                   <- writes the file, and ends: the program does not continue
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from evener import errors
from evener.devices.spec import SpecError
from evener.errors import EvenerError
from evener.launch.audit_request import TargetError
from evener.launch.child_process import ProcessResult, run_child_process
from evener.launch.request import SubprocessRequest

_SHOWN_LINES = 15
# TensorFlow writes these lines on import, before it reads TF_CPP_MIN_LOG_LEVEL.
_ON_IMPORT = re.compile(r"WARNING: All log messages before absl|I0000 \d\d:\d\d:\d+\.\d+ ")


R = TypeVar("R", bound=SubprocessRequest)


def ask(
    module: str,
    request: SubprocessRequest,
    *,
    environ: Mapping[str, str] | None = None,
    limit_seconds: float,
) -> tuple[dict[str, Any], ProcessResult]:
    """Run a module in a subprocess; return its answer, empty if there is none, and its end.

    Args:
        module: Its name.
        request: What to do.
        environ: Environment variables that the subprocess has besides.
        limit_seconds: The time limit, above 0.

    Raises:
        EvenerError: If the answer is an error.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        text = dataclasses.replace(request, answer=str(answer)).to_json()
        result = run_child_process(
            [sys.executable, "-m", module, text],
            environ={**_quiet_environment(), **(environ or {})},
            limit_seconds=limit_seconds,
        )
        return _read_answer(answer), result


def carry_out(request: R, run: Callable[[R], object]) -> NoReturn:
    """Run what a request asks for, in the subprocess; what is raised is its answer.

    Args:
        request: The request.
        run: Writes the answer, unless the program ends before.
    """
    try:
        run(request)
    except EvenerError as error:
        traceback.print_exc()
        write_answer(request.answer, {"error": error_fields(error)})
    write_answer(request.answer, {})


def write_answer(path: str, found: Mapping[str, Any]) -> NoReturn:
    """Write the answer to a file, and end the process."""
    Path(path).write_text(json.dumps(found), encoding="utf-8")
    sys.stdout.flush()
    sys.stderr.flush()
    # Exit handlers of the program do not run, and its threads are not joined.
    os._exit(0)


def _read_answer(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if "error" in found:
        raise _error_from(found["error"])
    return found


def error_fields(error: EvenerError) -> dict[str, str]:
    """Return an error as text, as an answer holds it under ``"error"``."""
    return {
        "kind": type(error).__name__,
        **{name: getattr(error, name) for name in ("code", "what", "why", "fix")},
    }


def _error_from(written: Mapping[str, str]) -> EvenerError:
    usage_errors = {kind.__name__: kind for kind in (TargetError, SpecError)}
    kind = usage_errors.get(written["kind"]) or getattr(errors, written["kind"], EvenerError)
    return kind(written["code"], written["what"], why=written["why"], fix=written["fix"])


def _quiet_environment() -> dict[str, str]:
    # Otherwise TensorFlow's log would fill the kept end of the output.
    return {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, "PYTHONUNBUFFERED": "1"}


def ending(code: int) -> str:
    """Return how a program ended, for an error."""
    return f"It was killed by signal {-code}" if code < 0 else f"It ended with exit code {code}"


def why_no_step(result: ProcessResult, limit_seconds: float) -> str:
    """Return how a script ended that came to no training step, for an error."""
    if result.exit_code is None:
        ended = f"it was stopped after {limit_seconds:g} seconds"
    elif result.exit_code:
        how = ending(result.exit_code)
        ended = how[0].lower() + how[1:]
    else:
        ended = "it ended without computing gradients and writing variables in a traced function"
    return f"As `evener run` would run it, {ended}. {last_lines(result.output)}"


def last_lines(output: str) -> str:
    """Return the end of the output of a program, for an error."""
    lines = [line for line in output.rstrip().splitlines() if not _ON_IMPORT.match(line)]
    lines = lines[-_SHOWN_LINES:]
    if not lines:
        return "It printed nothing."
    return "The end of its output:\n" + "\n".join(f"    {line}" for line in lines)
