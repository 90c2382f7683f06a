"""Shell completion: its script, and its answers, without TensorFlow."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.forked import Run


@pytest.mark.parametrize(
    ("shell", "line"),
    [
        ("bash", "complete -o default -F _evener_completion evener"),
        ("zsh", "compdef _evener_completion evener"),
        ("fish", "complete --command evener"),
    ],
)
def test_the_script_of_a_shell_is_printed_without_tensorflow(
    shell: str, line: str, command: Run
) -> None:
    done = command("--show-completion", shell)
    assert done.returncode == 0
    assert line in done.stdout
    assert not done.imported & {"tensorflow", "keras", "numpy", "rich"}


def test_an_unknown_shell_is_wrong_usage(command: Run) -> None:
    done = command("--show-completion", "tcsh")
    assert (done.returncode, done.stdout) == (2, "")
    assert "'tcsh' is not one of 'bash', 'zsh'" in done.stderr


@pytest.mark.parametrize(
    ("line", "expected"), [("evener de", ["devices"]), ("evener run --de", ["--devices"])]
)
def test_a_shell_gets_commands_and_options(line: str, expected: list[str], command: Run) -> None:
    words = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    done = command(_EVENER_COMPLETE="complete_bash", **words)
    assert done.stdout.split() == expected
    assert not done.imported & {"tensorflow", "keras", "numpy"}


def test_the_script_is_installed_in_the_home_folder(tmp_path: Path, command: Run) -> None:
    done = command("--install-completion", "bash", HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    (script,) = tmp_path.rglob("*completion*/evener.sh")
    assert "_evener_completion" in script.read_text(encoding="utf-8")
    assert str(script) in (tmp_path / ".bashrc").read_text(encoding="utf-8")
