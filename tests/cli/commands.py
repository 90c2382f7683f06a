"""Commands of evener as a person calls them: each a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import evener

SOURCE = Path(evener.__file__).parents[1]


def environment(folder: Path, **environ: str | None) -> dict[str, str]:
    """Return an environment without GPUs and with measurements of its own; None unsets."""
    own = {
        "PYTHONPATH": str(SOURCE),
        "CUDA_VISIBLE_DEVICES": "-1",
        "XDG_CACHE_HOME": str(folder / "cache"),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    merged = {**os.environ, **own, **environ}
    return {name: value for name, value in merged.items() if value is not None}


def run(
    *words: str,
    folder: Path,
    program: tuple[str, ...] = ("-m", "evener"),
    timeout: float = 300,
    **environ: str | None,
) -> subprocess.CompletedProcess[str]:
    """Run a command, or another program of Python, in a folder."""
    return subprocess.run(
        [sys.executable, *program, *words],
        cwd=folder,
        env=environment(folder, **environ),
        capture_output=True,
        text=True,
        timeout=timeout,
    )
