"""The spinner of commands that wait, and what stays off the terminal."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import evener
from evener.cli.conventions import quiet_tensorflow, status

SOURCE = Path(evener.__file__).parents[1]


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


def test_a_terminal_shows_what_the_command_waits_for() -> None:
    with terminal_as_stderr() as terminal:
        with status("Looking for devices", delay_seconds=0.0):
            assert "Looking for devices" in terminal.read("Looking for devices")
        # The line is erased, and the cursor shown again.
        end = terminal.read("\x1b[?25h")
        end += terminal.read()
    assert "\x1b[?25h" in end and end.endswith("\x1b[2K")


def test_what_is_quick_shows_nothing() -> None:
    with terminal_as_stderr() as terminal:
        with status("Looking for devices", delay_seconds=600.0):
            pass
        assert terminal.read() == ""


def test_an_error_ends_it() -> None:
    with terminal_as_stderr() as terminal:
        with pytest.raises(KeyError), status("Looking for devices", delay_seconds=0.0):
            assert "Looking" in terminal.read("Looking")
            raise KeyError
        assert "\x1b[?25h" in terminal.read("\x1b[?25h"), "the cursor is shown again"


def test_it_is_shown_while_tensorflow_is_kept_quiet() -> None:
    with terminal_as_stderr() as terminal:
        with status("Starting TensorFlow", delay_seconds=0.0), quiet_tensorflow({}):
            assert "Starting TensorFlow" in terminal.read("Starting TensorFlow")


def test_standard_output_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with terminal_as_stderr() as terminal, status("Looking for devices", delay_seconds=0.0):
        assert "Looking" in terminal.read("Looking")
        print("a result")
    assert capsys.readouterr().out == "a result\n"


def test_a_pipe_or_a_file_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    with status("Looking for devices", delay_seconds=0.0):
        pass
    assert out.getvalue() == ""


@pytest.mark.long
def test_a_command_shows_it_on_a_terminal_and_keeps_its_output(tmp_path: Path) -> None:
    reader, writer = pty.openpty()
    environ = {"PYTHONPATH": str(SOURCE), "CUDA_VISIBLE_DEVICES": "-1", "TERM": "xterm"}
    environ = {**os.environ, **environ}
    environ.pop("TF_CPP_MIN_LOG_LEVEL", None)
    done = subprocess.run(
        [sys.executable, "-m", "evener", "devices", "--devices", "cpu:2", "--json"],
        env=environ,
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
def test_errors_from_python_come_before_tensorflow_and_its_log(call: str, code: str) -> None:
    environ = {name: v for name, v in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    done = subprocess.run(
        [sys.executable, "-c", f"import evener; {call}"],
        env={**environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert f"[{code}]" in done.stderr
    assert "I0000" not in done.stderr and "oneDNN" not in done.stderr
