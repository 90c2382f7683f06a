"""``evener doctor --no-run``: quick, and nothing is executed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import evener

SOURCE = Path(evener.__file__).parents[1]
Doctor = Callable[..., subprocess.CompletedProcess[str]]
MISTAKE = """
import sys
import tensorflow as tf
open("it_ran", "w")
made = tf.ones(3)

with tf.Session():
    print(made)
"""


@pytest.fixture
def doctor(tmp_path: Path) -> Doctor:
    """Run ``evener doctor`` in a folder of its own, with ``train.py`` of a text in it."""

    def doctor(
        *args: str, source: str = MISTAKE, python: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        (tmp_path / "train.py").write_text(source, encoding="utf-8")
        return subprocess.run(
            [sys.executable, *python, "-m", "evener", "doctor", "--no-run", *args],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
            capture_output=True,
            text=True,
            timeout=60,
        )

    return doctor


def test_a_mistake_is_told_and_nothing_is_run(doctor: Doctor, tmp_path: Path) -> None:
    done = doctor("train.py", python=("-X", "importtime"))
    assert done.returncode == 1
    assert "ERROR  train.py:7  [DOC-004]" in done.stdout
    for part in ("| with tf.Session():", "Why: ", "Fix: ", "Read only"):
        assert part in done.stdout
    assert "evener doctor --explain " in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
    lines = (line.rpartition("|")[2].strip() for line in done.stderr.splitlines())
    imported = {name.partition(".")[0] for name in lines}
    assert "evener" in imported and not {"tensorflow", "keras", "numpy"} & imported


def test_json_is_all(doctor: Doctor, tmp_path: Path) -> None:
    done = doctor("--json", "train.py")
    told = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (1, "")
    assert told["fine"] is False and told["run"] is None
    finding = next(finding for finding in told["findings"] if finding["code"] == "DOC-004")
    assert finding["file"] == str(tmp_path / "train.py") and finding["line"] == 7
    assert finding["severity"] == "error"
    assert all(finding[part] for part in ("what", "why", "fix", "evidence"))


def test_a_good_program_is_fine(doctor: Doctor) -> None:
    done = doctor("train.py", source="print('hello')")
    assert (done.returncode, done.stderr) == (0, "")
    assert "nothing found" in done.stdout


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("missing.py", None, "DOC-002"),
        (".", None, "DOC-002"),
        ("broken.py", b"def f(:", "DOC-001"),
        ("binary.py", bytes(range(256)), "DOC-001"),
        ("null.py", b"x = 1\0", "DOC-001"),
    ],
)
def test_what_is_no_program_is_a_finding(
    doctor: Doctor, tmp_path: Path, name: str, content: bytes | None, code: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    done = doctor(name)
    assert done.returncode == (2 if code == "DOC-002" else 1)
    assert f"[{code}]" in done.stdout and "Traceback" not in done.stderr


def test_a_program_for_another_library_is_told(doctor: Doctor) -> None:
    done = doctor("train.py", source="import torch.nn as nn\n")
    assert done.returncode == 0
    assert "imports torch, and neither TensorFlow nor Keras" in done.stderr


def test_what_evener_cannot_train_is_refused(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "lesson.ipynb").write_text('{"cells": []}', encoding="utf-8")
    done = doctor("lesson.ipynb")
    assert (done.returncode, done.stdout) == (2, "") and "is a notebook" in done.stderr


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ((), "give the program to check"),
        (("train.py", "--", "--epochs"), "not run with --no-run"),
        (("train.py", "--epochs"), "not run with --no-run"),
        (("--explain", "RUN-07"), "Did you mean"),
        (("--nonsense",), "--nonsense"),
        (("--steps", "1", "--run", "train.py"), "--steps"),
        (("--gpus", "-1", "train.py"), "--gpus"),
        (("--gpu-memory", "much", "--run", "train.py"), "is not a size"),
        (("--gpu-memory", "0", "--run", "train.py"), "above 0"),
        (("--select", "DOC-201,RUN-10", "train.py"), "Did you mean 'RUN-010'"),
        (("--ignore", "DOC-999", "train.py"), "RUN-011"),
    ],
)
def test_wrong_usage_ends_with_2(doctor: Doctor, args: tuple[str, ...], told: str) -> None:
    done = doctor(*args)
    assert done.returncode == 2
    assert told in done.stderr


def test_more_on_a_code(doctor: Doctor) -> None:
    done = doctor("--explain", "run-010")
    assert done.returncode == 0
    assert done.stdout.startswith("# RUN-010: ")
    assert "## Right" in done.stdout


def test_the_list_of_rules(doctor: Doctor) -> None:
    rules = json.loads(doctor("--rules", "--json").stdout)
    assert {"code", "family", "severity", "title"} == set(rules[0])
    text = doctor("--rules").stdout
    assert all(rule["code"] in text for rule in rules)


def test_options_choose_the_rules_and_the_machine(doctor: Doctor, tmp_path: Path) -> None:
    assert json.loads(doctor("--json", "--gpus", "3", "train.py").stdout)["num_gpus"] == 3
    only = json.loads(doctor("--json", "--select", "DOC-004,DOC-4", "train.py").stdout)
    assert {finding["code"] for finding in only["findings"]} == {"DOC-004"}
    done = doctor("--ignore", "RUN,DOC,ENG", "train.py")
    assert (done.returncode, "nothing found" in done.stdout) == (0, True)
    (tmp_path / "pyproject.toml").write_text("[tool.evener.doctor]\ngpu = 2\n", encoding="utf-8")
    done = doctor("train.py")
    assert done.returncode == 2
    assert "pyproject.toml" in done.stderr and "Did you mean 'gpus'" in done.stderr
