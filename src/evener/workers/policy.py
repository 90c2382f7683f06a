"""Decisions on the end of a worker: a replacement, less workers, or the end of the job.

The program has come to its end when its workers agree: all members of the view have left it::

    they agree, and a worker ends
      with 0, 75 or by a signal    its work is done; the job ends when all processes have ended
      with another code            the same; the first such code is that of the job, unless the
                                   worker is a replacement that took no part
    they do not agree yet, and a worker ends
      by a signal                  it is replaced
      with 75                      it lost the others, and is replaced
      with 0 or another code       an end of the program, if all workers end like this at the same
                                   time: the job ends with the first error, or 0 if there is none;
                                   else of this worker alone, which is replaced after a wait
      when no restart is left      the job goes on without it, while another one runs or will;
                                   else the job fails
"""

from __future__ import annotations

import math
import signal
from collections.abc import Iterable
from dataclasses import dataclass

from evener.workers.faults import EXIT_CODE_OF_LOST
from evener.workers.output import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEnded:
    """The process of a worker has ended, and its output is complete."""

    index: int
    incarnation: int
    code: int  # Negative for a signal, as in `subprocess`.
    why: str = ""  # Clause, such as ``"was lost with its node"``; empty if the code says all.


def ending(code: int) -> str:
    """Return the words for the end of a process; the code is negative for a signal.

    >>> ending(-9), ending(1)
    ('was ended by SIGKILL', 'ended with code 1')
    """
    if code >= 0:
        return f"ended with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was ended by {name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replace:
    index: int
    incarnation: int  # Number of the new incarnation.
    at: float  # Time of the start, on the clock of the policy.
    clause: str  # Clause that says what happened to the last incarnation.
    why: str  # The same, and that it is started again.
    code: int  # Exit code of the last incarnation.


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrink:
    """Go on without a worker; ``why`` is a clause that says what happened to it."""

    index: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    code: int
    failed: Source | None = None  # Worker whose error ends it; None for another cause.
    why: str = ""  # Sentence for the user; empty if the output of the workers says all.


Decision = Replace | Shrink | Finish | None


class Policy:
    """Decisions on the ends of workers. It knows no process and no clock.

    A worker is replaced ``error_wait_seconds`` after its error; errors of all workers within
    ``error_window_seconds`` are one of the program. Replacements that have nothing to join any more
    have ``grace_seconds`` to end.
    """

    def __init__(
        self,
        workers: tuple[int, ...],
        *,
        num_restarts: int,
        error_wait_seconds: float,
        error_window_seconds: float,
        grace_seconds: float = 60.0,
    ) -> None:
        self._incarnations = dict.fromkeys(workers, 0)
        self._running = set(workers)
        self._pending: dict[int, Replace] = {}
        self._num_left = self._num_restarts = num_restarts
        self._wait_seconds = error_wait_seconds
        self._window_seconds = error_window_seconds
        self._grace_seconds = grace_seconds
        self._episode: _Episode | None = None
        self._is_over = self._has_lost_others = False
        # Workers that were given up: the time at which they are killed, and a clause that says why.
        self._losses: dict[int, tuple[float, str]] = {}
        self._joined: set[Source] = {(index, 0) for index in workers}
        self._late: tuple[Source, int] | None = None
        # Of workers that are not started again, because the others have come to the end before.
        self._untold: list[str] = []

    @property
    def pending(self) -> tuple[Replace, ...]:
        return tuple(self._pending.values())

    def started(self, index: int, incarnation: int) -> None:
        self._pending.pop(index, None)
        self._incarnations[index] = incarnation
        self._running.add(index)

    def joined(self, indices: Iterable[int]) -> list[Source]:
        """Note that workers compute together, and return the replacements that have joined now."""
        new = {(index, self._incarnations[index]) for index in indices} - self._joined
        self._joined |= new
        return sorted(new)

    def agreed(self) -> None:
        self._is_over = True

    def lost(self, index: int, incarnation: int, why: str, at: float) -> None:
        """Kill a worker that the coordinator gave up at a time, if it has not ended before."""
        if index in self._running and incarnation == self._incarnations[index]:
            self._losses[index] = at, f"was lost: {why}"

    def due(self, now: float) -> dict[int, str]:
        """Return the workers to kill now, each with a clause that says why."""
        due = [index for index, (at, _) in self._losses.items() if at <= now]
        return {index: self._losses.pop(index)[1] for index in due}

    def stop(self) -> None:
        """Start no replacement any more: the job was asked to end."""
        self._pending.clear()

    def next_time(self) -> float:
        """Return the time at which a worker is to be started or killed; infinite for none."""
        starts = (replacement.at for replacement in self.pending)
        return min((*starts, *(at for at, _ in self._losses.values())), default=math.inf)

    def ended(self, index: int, code: int, now: float, why: str = "") -> Decision:
        """Return the decision on the end of a worker, or None where nothing is to be done."""
        self._running.discard(index)
        self._losses.pop(index, None)
        if self._is_over:
            return self._finished(index, code, now)
        clause = why or ending(code)
        if code == EXIT_CODE_OF_LOST:
            clause = why or "lost the other workers"
        elif code >= 0:
            end_of_program = self._end_of_program(index, code, now)
            if end_of_program is not None:
                return end_of_program
            if code == 0:
                clause += " before the others came to the end of the program"
        if self._num_left == 0:
            self._has_lost_others |= code == EXIT_CODE_OF_LOST
            if self._running or self._pending:
                return Shrink(
                    index=index, why=f"{clause}; the job goes on without it ({self._used()})"
                )
            return Finish(
                code=code if code > 0 else EXIT_CODE_OF_LOST if self._has_lost_others else 1,
                why=f"worker {index} {clause}, and no worker is left ({self._used()})",
            )
        self._num_left -= 1
        wait = self._wait_seconds if code >= 0 else 0.0
        replacement = Replace(
            index=index,
            incarnation=self._incarnations[index] + 1,
            at=now + wait,
            clause=clause,
            why=f"{clause}; it is started again ({self._used()})",
            code=code,
        )
        self._pending[index] = replacement
        return replacement

    def _finished(self, index: int, code: int, now: float) -> Decision:
        """Finish when all have. A signal is no fault then: the work of all is done."""
        for failed in self._pending.values():
            self._note_error((failed.index, failed.incarnation - 1), failed.code)
            self._untold.append(f"worker {failed.index} {failed.clause}")
        self._pending.clear()
        self._note_error((index, self._incarnations[index]), code)
        for late in self._running:
            # It ends by itself when it comes to its first step, unless it hangs before.
            if (late, self._incarnations[late]) not in self._joined and late not in self._losses:
                why = f"it did not end within {self._grace_seconds:g} seconds of the others"
                self.lost(late, self._incarnations[late], why, now + self._grace_seconds)
        if self._running:
            return None
        source, last_code = self._late or (None, 0)
        return Finish(code=last_code, failed=source, why="\n".join(self._untold))

    def _note_error(self, source: Source, code: int) -> None:
        is_error = code > 0 and code != EXIT_CODE_OF_LOST
        if is_error and self._late is None and source in self._joined:
            self._late = (source, code)

    def _end_of_program(self, index: int, code: int, now: float) -> Finish | None:
        """Return the end of the job if all workers have ended by themselves at the same time."""
        episode = self._episode
        if episode is None or now - episode.begin > self._window_seconds:
            others = self._running | self._pending.keys()
            episode = self._episode = _Episode(begin=now, left=others)
        if code and not episode.code:
            episode.code, episode.failed = code, (index, self._incarnations[index])
        episode.left.discard(index)
        if episode.left:
            return None
        return Finish(code=episode.code, failed=episode.failed)

    def _used(self) -> str:
        return f"{self._num_restarts - self._num_left} of {self._num_restarts} restarts used"


@dataclass(slots=True, kw_only=True)
class _Episode:
    """Ends of workers by themselves that belong together."""

    begin: float  # Time of the first one.
    left: set[int]  # Workers that ran then, and have not ended like this since.
    code: int = 0  # Exit code of the first error; 0 if there was none.
    failed: Source | None = None  # Worker that had it.
