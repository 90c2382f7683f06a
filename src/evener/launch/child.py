"""A process of its own, bounded in time, whose output is kept apart and which leaves nothing.

here                          there
start ──────────────────────► a session (a process group) of its own
read the last of its output ◄── standard output and error
wait, at most the limit
kill the whole group          also what the program has started and left behind
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evener.launch.output import Output

_SECONDS_TO_READ = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a process ended.

    Args:
        code: Its exit code; negative for a signal; None if the time ran out.
        output: The last of what it wrote, at most 16 KiB.
    """

    code: int | None
    output: str


def run_apart(command: Sequence[str], *, environ: Mapping[str, str], limit_seconds: float) -> Ended:
    """Run a command to its end or to the limit, with everything that it starts.

    Args:
        command: The program and its arguments.
        environ: Its environment.
        limit_seconds: How long it may run.
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
    code: int | None = None
    try:
        code = process.wait(timeout=limit_seconds)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    # The group is gone; only a process that left it could hold the pipe open.
    output.wait(_SECONDS_TO_READ)
    return Ended(code=code, output=output.tail)
