"""Wrong usage ends with 2, says what is wrong, and need not wait for TensorFlow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import evener

SOURCE = Path(evener.__file__).parents[1]
PLAN = evener.Plan.data_parallel(["cpu:0", "cpu:1"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {
        "train.py": "print('ran')",
        "broken.json": "{",
        "other.json": '{"version": 1}',
        "plan.json": PLAN.to_json(),
        "package/__init__.py": "raise SystemExit('imported too early')",
        "package/inner.py": "x = 1",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "image.json").write_bytes(b"\x89PNG\xff")
    return tmp_path


def run(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    given = {"PYTHONPATH": str(SOURCE), "CUDA_VISIBLE_DEVICES": "-1"}
    return subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "evener", *words],
        cwd=folder,
        env={**os.environ, **given},
        capture_output=True,
        text=True,
        timeout=60,
    )


def imported(done: subprocess.CompletedProcess[str]) -> set[str]:
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("run", "Missing argument 'SCRIPT'"),
        ("run --nodevices train.py", "No such option: --nodevices"),
        ("run gone.py", "[RUN-001]"),
        ("run -m gone", "[RUN-021] The module gone cannot be run."),
        ("run -m package", "package is a package without a __main__ module"),
        ("run -m package.gone", "there is no such module"),
        ("run -m train.py", "a file is run without -m"),
        ("run -m .train", "there is no such module"),
        ("run -m sys", "it has no Python source file"),
        ("run --devices gpu0 train.py", "[DEV-002]"),
        ("run --devices cuda:0 train.py", "Did you mean 'gpu:0'?"),
        ("run --shares 1,x train.py", "neither 'even' nor a list of numbers"),
        ("run --shares 0,0 train.py", "[PLAN-009] --shares 0,0: The shares add up to 0"),
        ("run --shares nan,1 train.py", "[PLAN-008]"),
        ("run --devices cpu:2 --shares 1,2,3 train.py", "[PLAN-010]"),
        ("run --plan gone.json train.py", "File 'gone.json' does not exist"),
        ("run --plan broken.json train.py", "[PLAN-021] broken.json: The text of the plan is not"),
        ("run --plan other.json train.py", "[PLAN-024] other.json: the plan is missing the key"),
        ("run --plan image.json train.py", "image.json is not a text file in UTF-8"),
        ("run --plan plan.json --shares 1,2 train.py", "leave out --plan or --shares"),
        ("run --plan plan.json --devices cpu:2 train.py", "leave out --plan or --devices"),
        ("launch train.py", "[RUN-080] It is not said how many workers to start."),
        ("launch --workers 2", "Missing argument 'SCRIPT'"),
        ("launch --workers 0 train.py", "Invalid value for '--workers': 0 is not in the range"),
        ("launch --workers x train.py", "Invalid value for '--workers': 'x' is not a valid int"),
        ("launch --workers 2 gone.py", "[RUN-001]"),
        ("launch --workers 2 -m gone", "[RUN-021]"),
        ("launch --workers 2 --devices gpu0 train.py", "[DEV-002]"),
        (
            "launch --workers 3 --devices cpu:1 --devices cpu:2 train.py",
            "given 2 times for 3 workers; give it once, or 3 times",
        ),
        ("launch --workers 2 --logs train.py train.py", "train.py cannot be written to"),
        ("launch --workers 2 --logs /proc/gone train.py", "/proc/gone cannot be written to"),
        ("launch --workers 2 --heartbeat 0 train.py", "Invalid value for '--heartbeat'"),
        ("launch --workers 2 --restarts -1 train.py", "Invalid value for '--restarts'"),
        ("launch --restarts 2 train.py", "the scheduler of the job replaces"),
        ("launch train.py --workers 2", "[RUN-022] --workers stands after train.py"),
        ("launch --workers 2 --plan auto train.py", "make the plan first"),
        ("launch --ray train.py", "[RUN-084] --ray was given without --workers."),
        ("launch --ray --workers 2 --port 9 train.py", "[RUN-084] --port was given with --ray."),
        ("launch --workers 2 --ray-resources CPU=1 train.py", "[RUN-084] --ray-resources was"),
        ("launch --ray ray://n1:10001 --workers 2 train.py", "[RUN-084] --ray is ray://n1:10001"),
        ("launch --ray local --workers 2 train.py", "[RUN-054] --ray holds an address"),
        (
            "launch --ray --workers 2 --ray-resources gpu=1 train.py",
            "[RUN-089] --ray-resources gpu=1: no resources of a worker.",
        ),
        ("launch --workers 2 train.py --ray", "[RUN-022] --ray stands after train.py"),
        ("audit gone.py", "[RUN-001]"),
        ("audit --devices gpu0 train.py", "[DEV-002]"),
        ("devices --devices cpu:00", "[DEV-003]"),
    ],
)
def test_it_ends_with_2_before_tensorflow_is_imported(words: str, says: str, folder: Path) -> None:
    done = run(*words.split(), folder=folder)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not imported(done) & {"tensorflow", "keras", "numpy"}


@pytest.mark.parametrize("words", [[], ["run"], ["launch"], ["devices"], ["doctor"], ["audit"]])
def test_h_is_help(words: list[str], folder: Path) -> None:
    short, long = (run(*words, option, folder=folder) for option in ("-h", "--help"))
    assert (short.returncode, short.stdout) == (0, long.stdout)
    assert short.stdout.startswith("Usage: evener")
    assert "-h, --help" in short.stdout
