"""A question to a module in a process of its own, and its answer: a file that it writes at its end.

The program that the process runs may print what it likes, and does not continue behind the answer.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from evener.subprocess.child_process import ProcessResult, run_child_process


def ask_module(
    module: str,
    request: Callable[[str], str],
    *,
    environ: Mapping[str, str] | None = None,
    limit_seconds: float,
) -> tuple[ProcessResult, str | None]:
    """Run ``python -m MODULE REQUEST``.

    Args:
        module: Name of the module.
        request: Function from the path of the file for the answer to the request.
        environ: Environment variables that the process has besides.
        limit_seconds: The time limit, above 0.

    Returns:
        The end of the process, and its answer; None if it wrote none.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "answer.json"
        result = run_child_process(
            [sys.executable, "-m", module, request(str(path))],
            environ={**_quiet_environment(), **(environ or {})},
            limit_seconds=limit_seconds,
        )
        return result, path.read_text(encoding="utf-8") if path.exists() else None


def end_with(path: str, answer: str) -> NoReturn:
    """Write the answer, and end the process.

    Args:
        path: Path of the file for the answer.
        answer: Text of the answer.
    """
    Path(path).write_text(answer, encoding="utf-8")
    sys.stdout.flush()
    sys.stderr.flush()
    # Exit handlers of the program do not run, and its threads are not joined.
    os._exit(0)


def _quiet_environment() -> dict[str, str]:
    # Otherwise TensorFlow's log would fill the kept end of the output.
    return {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, "PYTHONUNBUFFERED": "1"}
