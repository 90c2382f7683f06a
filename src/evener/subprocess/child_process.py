"""Runs a command in a child process with a time limit, and kills its process group at the end.

parent                          child
start ────────────────────────► new session and process group
read the end of its output ◄─── standard output and error
wait, at most the limit
kill the process group          including processes that the child has started
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evener.subprocess.output import Output

_SECONDS_TO_READ = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessResult:
    """The result of a child process.

    Args:
        exit_code: Negative for a signal; None if the time limit was reached.
        output: The end of its output, at most 16 KiB.
    """

    exit_code: int | None
    output: str


def run_child_process(
    command: Sequence[str], *, environ: Mapping[str, str], limit_seconds: float
) -> ProcessResult:
    """Run a command and all its child processes until it exits or the time limit is reached.

    Args:
        command: The program and its arguments.
        environ: Its environment variables.
        limit_seconds: The time limit, above 0.
    """
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
        exit_code = process.wait(timeout=limit_seconds)
    except subprocess.TimeoutExpired:
        exit_code = None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    # The group is dead; only a process that left it can hold the pipe open.
    output.wait(_SECONDS_TO_READ)
    return ProcessResult(exit_code=exit_code, output=output.tail)
