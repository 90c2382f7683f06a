"""Running an example as a person runs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def start(name: str, *arguments: str) -> subprocess.Popen[str]:
    """Start an example, such as ``"digits.py"``, or a script beside them by its full path."""
    return subprocess.Popen(
        [sys.executable, str(ROOT / "examples" / name), *arguments],
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A background job ignores Ctrl-C, and so would every process that it starts.
        preexec_fn=_hear_interrupts,
    )


def run(name: str, *arguments: str) -> tuple[int, str, str]:
    """Run an example to its end; return the exit code, the output, the errors."""
    process = start(name, *arguments)
    out, err = process.communicate(timeout=250)
    return process.returncode, out, err


def _environment() -> dict[str, str]:
    # Without a GPU on any machine, and as if nobody had set anything.
    own = {
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT / 'examples'}",
        "CUDA_VISIBLE_DEVICES": "-1",
        "COLUMNS": "100",
    }
    unset = ("EVENER_DEVICES", "TF_CPP_MIN_LOG_LEVEL", "TF_CPU_BFC_MEM_LIMIT_IN_MB")
    return {name: value for name, value in os.environ.items() if name not in unset} | own


def _hear_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
