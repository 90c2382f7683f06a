"""Shell completion: its script, and its answers, without TensorFlow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import evener

SOURCE = Path(evener.__file__).parents[1]


def run(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    given = {"PYTHONPATH": str(SOURCE), **environ}
    return subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "evener", *words],
        env={**os.environ, **given},
        capture_output=True,
        text=True,
        timeout=60,
    )


def imported(done: subprocess.CompletedProcess[str]) -> set[str]:
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines}


@pytest.mark.parametrize(
    ("shell", "line"),
    [
        ("bash", "complete -o default -F _evener_completion evener"),
        ("zsh", "compdef _evener_completion evener"),
        ("fish", "complete --command evener"),
    ],
)
def test_the_script_of_a_shell_is_printed_without_tensorflow(shell: str, line: str) -> None:
    done = run("--show-completion", shell)
    assert done.returncode == 0
    assert line in done.stdout
    assert not imported(done) & {"tensorflow", "keras", "numpy", "rich"}


def test_an_unknown_shell_is_wrong_usage() -> None:
    done = run("--show-completion", "tcsh")
    assert (done.returncode, done.stdout) == (2, "")
    assert "'tcsh' is not one of 'bash', 'zsh'" in done.stderr


@pytest.mark.parametrize(
    ("line", "expected"),
    [("evener de", ["devices"]), ("evener run --de", ["--devices"])],
)
def test_a_shell_gets_commands_and_options(line: str, expected: list[str]) -> None:
    words = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    done = run(_EVENER_COMPLETE="complete_bash", **words)
    assert done.stdout.split() == expected
    assert not imported(done) & {"tensorflow", "keras", "numpy"}


def test_the_script_is_installed_in_the_home_folder(tmp_path: Path) -> None:
    done = run("--install-completion", "bash", HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    (script,) = tmp_path.rglob("*completion*/evener.sh")
    assert "_evener_completion" in script.read_text(encoding="utf-8")
    assert str(script) in (tmp_path / ".bashrc").read_text(encoding="utf-8")
