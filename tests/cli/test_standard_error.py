"""Standard error of commands: the spinner, warnings and errors, and TensorFlow's log."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import select
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import evener
from cli.commands import environment, run
from evener import cli
from evener.cli.conventions import LOG_LEVEL, quiet_tensorflow, status
from evener.errors import EvenerError, warn


class Terminal:
    """Standard error as a terminal that a test reads."""

    def __init__(self) -> None:
        self._reader, writer = pty.openpty()
        self.stderr = os.fdopen(writer, "w", encoding="utf-8")

    def read(self, until: str = "", seconds: float = 30.0) -> str:
        """Return what was written, up to a text; without one, what is there now."""
        text = ""
        while until not in text or not until:
            if not select.select([self._reader], [], [], seconds if until else 0.0)[0]:
                break
            text += os.read(self._reader, 65536).decode(errors="replace")
        return text

    def close(self) -> None:
        self.stderr.close()
        os.close(self._reader)


@contextlib.contextmanager
def terminal_as_stderr() -> Iterator[Terminal]:
    """Make standard error a terminal; not in a fixture: pytest replaces it for the test itself."""
    made, before = Terminal(), sys.stderr
    sys.stderr = made.stderr
    try:
        yield made
    finally:
        sys.stderr = before
        made.close()


@pytest.fixture(autouse=True)
def _kind_of_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")


def test_a_terminal_shows_what_the_command_waits_for(capsys: pytest.CaptureFixture[str]) -> None:
    with terminal_as_stderr() as terminal:
        with status("Looking for devices", delay_seconds=0.0):
            assert "Looking for devices" in terminal.read("Looking for devices")
            print("a result")
        # The line is erased, and the cursor shown again.
        end = terminal.read("\x1b[?25h")
        end += terminal.read()
        assert "\x1b[?25h" in end and end.endswith("\x1b[2K")
        with status("Starting TensorFlow", delay_seconds=0.0), quiet_tensorflow({}):
            assert "Starting TensorFlow" in terminal.read("Starting TensorFlow")
        assert "\x1b[?25h" in terminal.read("\x1b[?25h")
        terminal.read()
        with status("What is quick", delay_seconds=600.0):
            pass
        assert terminal.read() == ""
    assert capsys.readouterr().out == "a result\n"


def test_an_error_ends_it() -> None:
    with terminal_as_stderr() as terminal:
        with pytest.raises(KeyError), status("Looking for devices", delay_seconds=0.0):
            assert "Looking" in terminal.read("Looking")
            raise KeyError
        assert "\x1b[?25h" in terminal.read("\x1b[?25h"), "the cursor is shown again"


def test_a_pipe_or_a_file_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    with status("Looking for devices", delay_seconds=0.0):
        pass
    assert out.getvalue() == ""


@pytest.mark.long
def test_a_command_shows_it_on_a_terminal_and_keeps_its_output(tmp_path: Path) -> None:
    reader, writer = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "evener", "devices", "--devices", "cpu:2", "--json"],
        env=environment(tmp_path, TF_CPP_MIN_LOG_LEVEL=None, TERM="xterm"),
        stdout=subprocess.PIPE,
        stderr=writer,
        text=True,
        timeout=120,
    )
    os.close(writer)
    shown = os.read(reader, 1 << 20).decode() if select.select([reader], [], [], 0)[0] else ""
    os.close(reader)
    assert done.returncode == 0
    assert done.stdout.startswith("{") and "\x1b" not in done.stdout
    # On a quick machine TensorFlow may be there within the second.
    assert "Looking for devices" in shown or shown == ""
    assert "oneDNN" not in shown


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("evener.inventory('gpu0')", "DEV-002"),
        ("evener.use_devices('gpu:0,cpu:1')", "DEV-007"),
        ("evener.Plan.data_parallel([])", "PLAN-004"),
        ("evener.Plan.from_json('{')", "PLAN-021"),
    ],
)
def test_errors_from_python_come_before_tensorflow_and_its_log(
    call: str, code: str, tmp_path: Path
) -> None:
    code_of_call = f"import evener; {call}"
    done = run(code_of_call, program=("-c",), folder=tmp_path, TF_CPP_MIN_LOG_LEVEL=None)
    assert done.returncode == 1
    assert f"[{code}]" in done.stderr
    assert "I0000" not in done.stderr and "oneDNN" not in done.stderr


KNOWN = EvenerError("DEV-999", "what", why="why", fix="fix")


@pytest.mark.parametrize(
    ("given", "level", "error", "shown"),
    [
        (None, "3", None, ""),
        ("2", "2", None, ""),
        ("0", "0", None, "I0000 of absl\n"),
        (None, "3", ImportError(), "I0000 of absl\n"),
        # An error of evener says enough.
        (None, "3", KNOWN, ""),
    ],
)
def test_the_log_of_the_import_is_kept_back(
    given: str | None,
    level: str,
    error: Exception | None,
    shown: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    environ = {} if given is None else {LOG_LEVEL: given}
    raised = contextlib.nullcontext() if error is None else pytest.raises(type(error))
    with raised, quiet_tensorflow(environ):
        os.write(2, b"I0000 of absl\n")
        if error is not None:
            raise error
    os.write(2, b"after")
    assert environ[LOG_LEVEL] == level
    assert capfd.readouterr().err == f"{shown}after"


# Where a function of Keras is replaced by one of evener.
OURS = str(Path(evener.__file__).parent / "run" / "mistakes.py")


@pytest.mark.parametrize(
    ("file", "named"),
    [(OURS, __file__), ("/site-packages/keras/layer.py", "/site-packages/keras/layer.py")],
)
def test_a_replacement_of_evener_is_not_named(
    file: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    monkeypatch.setattr(cli, "_show_any_warning", lambda *given: shown.append(given[2]))
    names = {"warn": lambda: warnings.warn("Do not.", UserWarning, stacklevel=2)}
    exec(compile("def call():\n    warn()", file, "exec"), names)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = cli._show_warning
        names["call"]()
    assert shown == [named]


def test_a_warning_of_evener_is_a_line_behind_the_import(capfd: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = cli._show_warning
        with quiet_tensorflow({}):
            os.write(2, b"I0000 of absl\n")
            warn("RUN-014", "It trains alone.", why="So.", fix="Another.")
    line = "Warning: [RUN-014] It trains alone. Why: So. Fix: Another.\n"
    assert capfd.readouterr().err == line


def test_failure_ends_with_1_and_warnings_take_one_line(tmp_path: Path) -> None:
    code = """
import sys
import evener.cli
from evener.errors import EngineError, warn

def fail() -> None:
    warn("DEV-999", "Something.", why="of that.", fix="nothing.")
    raise EngineError("ENG-999", "Broken.", why="it is.", fix="mend it.")

evener.cli.app.command()(fail)
sys.argv = ["evener", "fail"]
evener.cli.main()
"""
    done = run(code, program=("-c",), folder=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines() == [
        "Warning: [DEV-999] Something. Why: of that. Fix: nothing.",
        "[ENG-999] Broken.",
        "Why: it is.",
        "Fix: mend it.",
    ]
