"""Whether somebody else used the processor during a turn, and waiting until nobody does.

Turns alone do not help against work that comes and goes within seconds. The kernel counts
all busy time; what our own processes did not use, others did.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MOST_FOREIGN = 0.08
"""The part of the machine that others may use before a turn counts as disturbed."""

_TICKS = os.sysconf("SC_CLK_TCK")
_CORES = os.cpu_count() or 1
_STAT = Path("/proc/stat")
# user, nice, system, irq, softirq, steal: all but idle and waiting for disks.
_BUSY = (0, 1, 2, 5, 6, 7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The result of a turn, with the part of the machine that others used meanwhile."""

    result: Any
    foreign: float


@dataclass(slots=True, kw_only=True)
class Quiet:
    """Runs turns while nobody else computes, as far as patience goes.

    Attributes:
        pids: Ids of our own processes.
        most_foreign: Part of the machine that other programs may use, 0 to 1.
        patience_seconds: Longest wait before a turn, and longest time to repeat it.
        num_disturbed: Turns that were disturbed however long we waited.
    """

    pids: tuple[int, ...]
    most_foreign: float = MOST_FOREIGN
    patience_seconds: float = 20.0
    num_disturbed: int = field(default=0, init=False)

    def turn(self, run: Callable[[], Any]) -> Turn:
        """Run one turn when it is quiet; run it again if it was disturbed."""
        until = time.monotonic() + self.patience_seconds
        best: Turn | None = None
        while True:
            self._wait(until)
            watched = self._watch(run)
            if best is None or watched.foreign < best.foreign:
                best = watched
            if best.foreign <= self.most_foreign:
                return best
            if time.monotonic() > until:
                self.num_disturbed += 1
                return best

    def _wait(self, until: float) -> None:
        if not _STAT.exists():
            return
        while time.monotonic() < until:
            if self._watch(lambda: time.sleep(0.2)).foreign <= self.most_foreign:
                return

    def _watch(self, run: Callable[[], Any]) -> Turn:
        if not _STAT.exists():
            return Turn(result=run(), foreign=0.0)
        busy, own, begin = _busy_seconds(), _own_seconds(self.pids), time.monotonic()
        result = run()
        seconds = time.monotonic() - begin
        foreign = (_busy_seconds() - busy) - (_own_seconds(self.pids) - own)
        return Turn(result=result, foreign=max(0.0, foreign / (seconds * _CORES)))


def _busy_seconds() -> float:
    fields = _STAT.read_text().split("\n", 1)[0].split()[1:]
    return sum(int(fields[k]) for k in _BUSY) / _TICKS


def _own_seconds(pids: Iterable[int]) -> float:
    total = 0
    for pid in (*pids, os.getpid()):
        # After the name, which may hold spaces: utime and stime are fields 14 and 15.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / _TICKS
