"""Programs in forks of a Python that has imported TensorFlow, or none of it; see `forks`."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
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


@contextlib.contextmanager
def server(*modules: str) -> Iterator[subprocess.Popen[str]]:
    own = {
        "PYTHONPATH": f"{SOURCE}{os.pathsep}{TESTS}",
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    with subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("forks.py")), *modules],
        env={**os.environ, **own},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        yield process
        process.communicate()


@pytest.fixture(scope="session")
def forks() -> Iterator[subprocess.Popen[str]]:
    # Keras too, which TensorFlow imports when it is first needed.
    with server("keras", "tensorflow") as process:
        yield process


@pytest.fixture(scope="session")
def forks_without_tensorflow() -> Iterator[subprocess.Popen[str]]:
    with server("evener.cli") as process:
        yield process


def run_in(
    process: subprocess.Popen[str], folder: Path, kind: str, *args: str, **environ: str
) -> Done:
    files = {name: folder / f"{kind} {name}" for name in ("stdout", "stderr")}
    asked = {"kind": kind, "args": args, "folder": str(folder), "environ": environ}
    print(json.dumps({**asked, **files}, default=str), file=process.stdin, flush=True)
    code = int(process.stdout.readline())
    return Done(code, *(file.read_text(encoding="utf-8") for file in files.values()))


@pytest.fixture
def run_forked(forks: subprocess.Popen[str], tmp_path: Path) -> Run:
    return functools.partial(run_in, forks, tmp_path)


@pytest.fixture
def command(forks_without_tensorflow: subprocess.Popen[str], tmp_path: Path) -> Run:
    """Return what runs a command that needs no TensorFlow: ``command(*words, **environ)``."""

    def command(*words: str, **environ: str) -> Done:
        done = run_in(forks_without_tensorflow, tmp_path, "command", *words, **environ)
        modules = json.loads((tmp_path / "modules.json").read_text(encoding="utf-8"))
        return dataclasses.replace(done, imported=frozenset(modules))

    return command
