"""``evener doctor --fix``: a diff that applies; ``--write``; wrong usage."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import evener

SOURCE = Path(evener.__file__).parents[1]
Doctor = Callable[..., subprocess.CompletedProcess[bytes]]
BEFORE = b"# coding: latin-1\r\nimport keras  # \xe9\r\nprint(keras.optimizers.SGD(lr=0.1))"
AFTER = BEFORE.replace(b"lr=", b"learning_rate=")


@pytest.fixture
def doctor(tmp_path: Path) -> Doctor:
    """Run ``evener doctor`` in a folder with a program in ``my code/train.py``."""
    (tmp_path / "my code").mkdir()
    (tmp_path / "my code" / "train.py").write_bytes(BEFORE)

    def doctor(*args: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-m", "evener", "doctor", "--gpus", "1", *args],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
            capture_output=True,
            timeout=60,
        )

    return doctor


def test_the_diff_applies_and_nothing_is_written(doctor: Doctor, tmp_path: Path) -> None:
    script = tmp_path / "my code" / "train.py"
    done = doctor("--fix", "my code/train.py")
    assert done.returncode == 1 and script.read_bytes() == BEFORE
    assert done.stdout.startswith(b"--- my code/train.py\t\n+++ my code/train.py\t\n@@ ")
    assert b"[DOC-004]" in done.stderr and b"1 fix in 1 file. Nothing was written" in done.stderr
    subprocess.run(["git", "apply", "-p0"], cwd=tmp_path, input=done.stdout, check=True)
    assert script.read_bytes() == AFTER


def test_what_is_written_is_the_diff_and_the_second_time_nothing(
    doctor: Doctor, tmp_path: Path
) -> None:
    script = tmp_path / "my code" / "train.py"
    done = doctor("--fix", "--write", "my code/train.py")
    assert done.returncode == 0 and script.read_bytes() == AFTER
    assert b"Fixed [DOC-004]" in done.stderr and b"written" in done.stderr
    again = doctor("--fix", "--write", "my code/train.py")
    assert (again.returncode, again.stdout) == (0, b"")
    assert b"There is no fix that is certain." in again.stderr
    assert script.read_bytes() == AFTER
    assert [path.name for path in script.parent.iterdir()] == ["train.py"]


def test_codes_that_are_not_selected_are_not_fixed(doctor: Doctor) -> None:
    assert doctor("--fix", "--ignore", "DOC-004", "my code/train.py").stdout == b""


def test_a_read_only_file_is_refused(doctor: Doctor, tmp_path: Path) -> None:
    script = tmp_path / "my code" / "train.py"
    script.chmod(0o444)
    done = doctor("--fix", "--write", "my code/train.py")
    assert done.returncode == 2 and b"[RUN-016]" in done.stderr
    assert (done.stdout, script.read_bytes()) == (b"", BEFORE)


def test_the_doctor_tells_of_fixes(doctor: Doctor) -> None:
    assert b"1 fix is certain: evener doctor --fix" in doctor("my code/train.py").stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--write",), b"--fix"),
        (("--fix", "--json"), b"--json exclude"),
        (("--fix", "--run"), b"--run exclude"),
        (("--fix", "--select", "DOC-999"), b"RUN-011"),
    ],
)
def test_wrong_usage(
    options: tuple[str, ...], words: bytes, doctor: Doctor, tmp_path: Path
) -> None:
    done = doctor(*options, "my code/train.py")
    assert done.returncode == 2 and words in done.stderr
    assert (tmp_path / "my code" / "train.py").read_bytes() == BEFORE


def test_a_script_that_is_not_there_is_a_finding(doctor: Doctor) -> None:
    done = doctor("--fix", "gone.py")
    assert done.returncode == 1 and b"[DOC-002]" in done.stderr and not done.stdout
