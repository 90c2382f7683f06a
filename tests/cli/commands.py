"""Commands of evener as a person calls them: each a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import evener

SOURCE = Path(evener.__file__).parents[1]


def run(
    *words: str, folder: Path, program: tuple[str, ...] = ("-m", "evener"), **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, without GPUs and with measurements of its own."""
    own = {
        "PYTHONPATH": str(SOURCE),
        "CUDA_VISIBLE_DEVICES": "-1",
        "XDG_CACHE_HOME": str(folder / "cache"),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        **environ,
    }
    return subprocess.run(
        [sys.executable, *program, *words],
        cwd=folder,
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        timeout=240,
    )
