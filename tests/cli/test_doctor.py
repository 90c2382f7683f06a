"""``evener doctor --no-run``: quick, and nothing is executed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.forked import Done, Run

MISTAKE = """
import sys
import tensorflow as tf
open("it_ran", "w")
made = tf.ones(3)

with tf.device("gpu0"):
    print(made)
"""


@pytest.fixture
def doctor(command: Run, tmp_path: Path) -> Run:
    """Run ``evener doctor`` in a folder of its own, with ``train.py`` of a text in it."""

    def doctor(*args: str, source: str = MISTAKE) -> Done:
        (tmp_path / "train.py").write_text(source, encoding="utf-8")
        return command("doctor", "--no-run", *args)

    return doctor


def test_a_mistake_is_told_and_nothing_is_run(doctor: Run, tmp_path: Path) -> None:
    done = doctor("train.py")
    assert (done.returncode, done.stderr) == (1, "")
    assert "ERROR  train.py:7  [DOC-107]" in done.stdout
    for part in ('| with tf.device("gpu0"):', "Why: ", "Fix: ", "Read only"):
        assert part in done.stdout
    assert "evener doctor --explain " in done.stdout
    of_fork = {"modules.json", "command stdout", "command stderr"}
    assert {path.name for path in tmp_path.iterdir()} == {"train.py", *of_fork}
    assert not {"tensorflow", "keras", "numpy"} & done.imported
    told = json.loads(doctor("--json", "train.py").stdout)
    assert told["fine"] is False and told["run"] is None
    finding = next(finding for finding in told["findings"] if finding["code"] == "DOC-107")
    assert finding["file"] == str(tmp_path / "train.py") and finding["line"] == 7
    assert finding["severity"] == "error"
    assert all(finding[part] for part in ("what", "why", "fix", "evidence"))


def test_a_good_program_is_fine(doctor: Run) -> None:
    done = doctor("train.py", source="print('hello')")
    assert (done.returncode, done.stderr) == (0, "")
    assert "nothing found" in done.stdout
    done = doctor("train.py", source="import torch.nn as nn\n")
    assert done.returncode == 0
    assert "imports torch, and neither TensorFlow nor Keras" in done.stderr


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
    doctor: Run, tmp_path: Path, name: str, content: bytes | None, code: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    done = doctor(name)
    assert done.returncode == (2 if code == "DOC-002" else 1)
    assert f"[{code}]" in done.stdout and "Traceback" not in done.stderr


def test_more_on_a_code_and_the_list_of_rules(doctor: Run) -> None:
    done = doctor("--explain", "run-010")
    assert done.returncode == 0
    assert done.stdout.startswith("# RUN-010: ")
    assert "## Right" in done.stdout
    rules = json.loads(doctor("--rules", "--json").stdout)
    assert {"code", "family", "severity", "title"} == set(rules[0])
    text = doctor("--rules").stdout
    assert all(rule["code"] in text for rule in rules)


def test_options_choose_the_rules_and_the_machine(doctor: Run, tmp_path: Path) -> None:
    assert json.loads(doctor("--json", "--gpus", "3", "train.py").stdout)["num_gpus"] == 3
    only = json.loads(doctor("--json", "--select", "DOC-107,DOC-4", "train.py").stdout)
    assert {finding["code"] for finding in only["findings"]} == {"DOC-107"}
    done = doctor("--ignore", "RUN,DOC,ENG", "train.py")
    assert (done.returncode, "nothing found" in done.stdout) == (0, True)
    (tmp_path / "pyproject.toml").write_text("[tool.evener.doctor]\ngpu = 2\n", encoding="utf-8")
    done = doctor("train.py")
    assert done.returncode == 2
    assert "pyproject.toml" in done.stderr and "Did you mean 'gpus'" in done.stderr
