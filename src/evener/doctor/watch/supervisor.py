"""Supervises a watched program: no process that the program starts outlives it.

It runs as a script and imports nothing of evener. As a child subreaper it adopts the orphans of
the program, so that forks that left their session are found too. It ends all of them when the
program has ended or its own standard input is closed: by the doctor, or by the system if the
doctor is killed.

    doctor --stdin--> supervisor --> program --> its processes
       ^                 |
       +--- report, JSON-+
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

# The program's process answers with its stacks. Programs hardly use this signal.
STACKS_SIGNAL = signal.SIGRTMIN + 5
_SET_CHILD_SUBREAPER = 36
_POLL_SECONDS = 0.02
_STACKS_SECONDS = 0.2
_MOST_SECONDS_OF_KILLING = 10.0
_PROC = Path("/proc")


def parents_of(stats: dict[int, str]) -> dict[int, int]:
    """Return the parent of every process that has not ended.

    >>> parents_of({7: "7 (a ) b) S 3 7 7 0", 8: "8 (sh) Z 7 7 7 0"})
    {7: 3}
    """
    found: dict[int, int] = {}
    for pid, stat in stats.items():
        # The name in brackets may hold anything, brackets too.
        state, parent = stat.rpartition(")")[2].split()[:2]
        if state not in "ZX":
            found[pid] = int(parent)
    return found


def below(root: int, parents: dict[int, int]) -> set[int]:
    """Return all descendants of a process.

    >>> sorted(below(1, {2: 1, 3: 2, 9: 8}))
    [2, 3]
    """
    found = set[int]()
    waiting = [root]
    while waiting:
        current = waiting.pop()
        children = {pid for pid, parent in parents.items() if parent == current} - found
        found |= children
        waiting += children
    return found


def _living() -> set[int]:
    stats: dict[int, str] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            try:
                stats[int(entry.name)] = (entry / "stat").read_text(errors="replace")
            except OSError:
                continue  # It has ended meanwhile.
    return below(os.getpid(), parents_of(stats))


def _send(signal_number: int, pids: set[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal_number)
        except OSError:
            continue  # It has ended meanwhile, or is another user's.


class _Program:
    """The program and all that descends from it."""

    def __init__(self, command: list[str]) -> None:
        self.status: int | None = None
        self.pid = os.posix_spawn(
            command[0],
            command,
            os.environ,
            file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)],
            setsid=True,
            setsigmask=[],
            # Python ignores these, and what it starts would too.
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
        )

    def reap(self) -> None:
        """Reap the processes that have ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid == self.pid:
                self.status = os.waitstatus_to_exitcode(status)

    def settled(self, seconds: float, done: Callable[[], bool]) -> bool:
        """Wait until a condition holds, at most so long; return whether it does."""
        end = time.monotonic() + seconds
        while True:
            self.reap()
            if done():
                return True
            if time.monotonic() > end:
                return False
            time.sleep(_POLL_SECONDS)


def _supervise(command: list[str], grace_seconds: float) -> int | None:
    program = _Program(command)
    while program.status is None and not select.select([0], [], [], _POLL_SECONDS)[0]:
        program.reap()
    if program.status is None:
        _send(STACKS_SIGNAL, {program.pid})
        program.settled(_STACKS_SECONDS, lambda: program.status is not None)
    _send(signal.SIGTERM, _living())
    program.settled(grace_seconds, lambda: not _living())

    def killed() -> bool:
        living = _living()
        _send(signal.SIGKILL, living)
        return not living

    program.settled(_MOST_SECONDS_OF_KILLING, killed)
    program.reap()
    return program.status


def main(argv: list[str]) -> None:
    """Run a command: ``supervisor.py REPORT_FD GRACE_SECONDS COMMAND...``."""
    report, grace_seconds, command = int(argv[1]), float(argv[2]), argv[3:]
    os.set_inheritable(report, False)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "orphans cannot be adopted")
    # Only its standard input ends it: it must not end before the program.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    os.write(report, json.dumps(_supervise(command, grace_seconds)).encode())


if __name__ == "__main__":
    main(sys.argv)
