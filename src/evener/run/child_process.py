"""A module in a process of its own: with a time limit, its output, and its answer in a file.

::

    parent                          child
    start ────────────────────────► new session and process group, `python -m MODULE REQUEST`
    read the end of its output ◄─── standard output and error
    wait, at most the limit         writes its answer to a file beside the request, and ends
    kill the process group          including processes that the child has started

The program that the process runs may print what it likes, and does not continue behind the answer.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from rich.text import Text

KEPT_BYTES = 16 * 1024
_READ_BYTES = 64 * 1024
_SECONDS_TO_READ = 5.0


class Output:
    """Reads a pipe to its end in a thread, in bounded memory, so that the writer never blocks."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._tail = b""
        self.num_bytes = 0
        self._source, self.sink = os.pipe()
        self._thread = threading.Thread(target=self._drain, name="evener-output", daemon=True)

    def start(self) -> None:
        os.close(self.sink)
        self._thread.start()

    def wait(self, seconds: float) -> None:
        """Wait until the last writer has closed the pipe."""
        self._thread.join(seconds)

    @property
    def tail(self) -> str:
        """The end of the output, without colours; bytes that are not UTF-8 are replaced."""
        text = self._tail.decode("utf-8", errors="replace")
        return Text.from_ansi(text.replace("\r\n", "\n")).plain

    def _drain(self) -> None:
        while block := os.read(self._source, _READ_BYTES):
            self.num_bytes += len(block)
            self._tail = (self._tail + block)[-self._kept_bytes :]
        os.close(self._source)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessResult:
    exit_code: int | None  # Negative for a signal; None if the time limit was reached.
    output: str  # The end of its output, at most 16 KiB.


def run_child_process(
    command: Sequence[str], *, environ: Mapping[str, str], limit_seconds: float
) -> ProcessResult:
    """Run a command and all its child processes until it exits or the time limit is reached."""
    output = Output()
    try:
        process = subprocess.Popen(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=output.sink,
            stderr=output.sink,
            start_new_session=True,
        )
    finally:
        output.start()
    exit_code: int | None = None
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            exit_code = process.wait(timeout=limit_seconds)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    # The group is dead; only a process that left it can hold the pipe open.
    output.wait(_SECONDS_TO_READ)
    return ProcessResult(exit_code=exit_code, output=output.tail)


def ask_module(
    module: str, request: str, *, environ: Mapping[str, str] | None = None, limit_seconds: float
) -> tuple[ProcessResult, str | None]:
    """Run ``python -m MODULE REQUEST``; return its end, and its answer if it wrote one."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "request.json"
        path.write_text(request, encoding="utf-8")
        # Otherwise TensorFlow's log would fill the kept end of the output.
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, "PYTHONUNBUFFERED": "1"}
        result = run_child_process(
            [sys.executable, "-m", module, str(path)],
            environ={**quiet, **(environ or {})},
            limit_seconds=limit_seconds,
        )
        answer = answer_file(path)
        return result, answer.read_text(encoding="utf-8") if answer.exists() else None


def answer_file(request: Path) -> Path:
    return request.with_name("answer.json")


def end_with(request: Path, answer: str) -> NoReturn:
    answer_file(request).write_text(answer, encoding="utf-8")
    sys.stdout.flush()
    sys.stderr.flush()
    # Exit handlers of the program do not run, and its threads are not joined.
    os._exit(0)
