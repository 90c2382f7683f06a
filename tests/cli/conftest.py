"""Programs in forks of a Python that has imported TensorFlow; see `forks`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import evener
from cli.forked import Done, Run

TESTS = Path(__file__).parents[1]
SOURCE = Path(evener.__file__).parents[1]


@pytest.fixture(scope="session")
def forks() -> Iterator[subprocess.Popen[str]]:
    own = {
        "PYTHONPATH": f"{SOURCE}{os.pathsep}{TESTS}",
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    with subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("forks.py"))],
        env={**os.environ, **own},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        yield process
        process.communicate()


@pytest.fixture
def run_forked(forks: subprocess.Popen[str], tmp_path: Path) -> Run:
    def run(kind: str, *args: str) -> Done:
        files = {name: tmp_path / f"{kind} {name}" for name in ("stdout", "stderr")}
        asked = {"kind": kind, "args": args, "folder": str(tmp_path)}
        print(json.dumps({**asked, **files}, default=str), file=forks.stdin, flush=True)
        code = int(forks.stdout.readline())
        return Done(code, *(file.read_text(encoding="utf-8") for file in files.values()))

    return run
