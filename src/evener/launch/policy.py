"""Decisions on the end of a worker: a replacement, less workers, or the end of the job.

ends with 0                    it has finished; the job has when all have
ends by a signal               it is replaced
ends with 75                   it lost the others, and is replaced
ends with another code         an error: of the program, if all workers have it at the same
                               time; else of this worker, which is replaced
no restart is left             the job goes on without it, while a worker lives
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from evener.launch.console import Source
from evener.launch.events import ending
from evener.workers.faults import EXIT_CODE_OF_LOST


@dataclass(frozen=True, slots=True, kw_only=True)
class Replace:
    """Start a worker again.

    Attributes:
        index: Number of the worker.
        incarnation: Number of the new incarnation.
        at: Time of the start, on the clock of the policy.
        why: Clause that says what happened to the last incarnation.
        code: Exit code of the last incarnation.
    """

    index: int
    incarnation: int
    at: float
    why: str
    code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrink:
    """Go on without a worker.

    Attributes:
        index: Number of the worker.
        why: Clause that says what happened to it.
    """

    index: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """End the job.

    Attributes:
        code: Exit code of the job.
        failed: Worker whose error ends it; None for another cause.
        why: Sentence for the user; empty if the output of the workers says all.
    """

    code: int
    failed: Source | None = None
    why: str = ""


Decision = Replace | Shrink | Finish | None


class Policy:
    """Decisions on the ends of workers. It knows no process and no clock.

    Args:
        workers: Numbers of the workers.
        num_restarts: Number of replacements in all.
        error_wait_seconds: Time after an error of a worker before it is replaced.
        error_window_seconds: Time within which errors of all workers are one of the program.
    """

    def __init__(
        self,
        workers: tuple[int, ...],
        *,
        num_restarts: int,
        error_wait_seconds: float,
        error_window_seconds: float,
    ) -> None:
        self._incarnations = dict.fromkeys(workers, 0)
        self._running = set(workers)
        self._pending: dict[int, Replace] = {}
        self._num_left = num_restarts
        self._num_restarts = num_restarts
        self._wait_seconds = error_wait_seconds
        self._window_seconds = error_window_seconds
        self._episode: _Episode | None = None
        self._any_finished = self._has_joined = False
        self._joined: set[Source] = {(index, 0) for index in workers}
        self._late: tuple[Source, int] | None = None

    @property
    def pending(self) -> tuple[Replace, ...]:
        """Replacements that were decided and not started yet."""
        return tuple(self._pending.values())

    def num_workers(self) -> int:
        """Return the number of workers that run, or will."""
        return len(self._running) + len(self._pending)

    def started(self, index: int, incarnation: int) -> None:
        """Note that a replacement was started."""
        self._pending.pop(index, None)
        self._incarnations[index] = incarnation
        self._running.add(index)

    @property
    def stragglers(self) -> tuple[int, ...]:
        """Replacements that run and have nothing left to join: another worker has finished."""
        if not self._any_finished or not self._has_joined:
            return ()
        running = sorted(self._running)
        return tuple(k for k in running if (k, self._incarnations[k]) not in self._joined)

    def joined(self, indices: Iterable[int]) -> None:
        """Note that workers compute together: errors of theirs count to the end.

        Args:
            indices: Numbers of the workers.
        """
        self._has_joined = True
        self._joined.update((index, self._incarnations[index]) for index in indices)

    def ended(self, index: int, code: int, now: float, why: str = "") -> Decision:
        """Return the decision on the end of a worker.

        Args:
            index: Number of the worker.
            code: Exit code; the negative number of a signal.
            now: Time in seconds.
            why: Clause that says why the supervisor has killed it; empty if it has not.

        Returns:
            A decision, or None where nothing is to be done.
        """
        self._running.discard(index)
        if code == 0 or self._any_finished:
            return self._finished(index, code)
        clause = why or ending(code)
        if code == EXIT_CODE_OF_LOST:
            clause = why or "lost the other workers"
        elif code > 0:
            program_error = self._error(index, code, now)
            if program_error is not None:
                return program_error
        if self._num_left == 0:
            return self._without(index, code, clause)
        self._num_left -= 1
        wait = self._wait_seconds if code > 0 else 0.0
        replacement = Replace(
            index=index,
            incarnation=self._incarnations[index] + 1,
            at=now + wait,
            why=f"{clause}; it is started again ({self._used()})",
            code=code,
        )
        self._pending[index] = replacement
        return replacement

    def _finished(self, index: int, code: int) -> Decision:
        """Finish when all have. A signal is no fault then: the work of all is done.

        An error is one of what the program does at its end, unless the worker is a replacement
        that came too late to take part.
        """
        self._any_finished = True
        for failed in self._pending.values():
            self._note_error((failed.index, failed.incarnation - 1), failed.code)
        self._pending.clear()
        self._note_error((index, self._incarnations[index]), code)
        if self._running:
            return None
        source, last_code = self._late or (None, 0)
        return Finish(code=last_code, failed=source)

    def _note_error(self, source: Source, code: int) -> None:
        is_error = code > 0 and code != EXIT_CODE_OF_LOST
        if is_error and self._late is None and source in self._joined:
            self._late = (source, code)

    def _error(self, index: int, code: int, now: float) -> Decision:
        episode = self._episode
        if episode is None or now - episode.begin > self._window_seconds:
            source = (index, self._incarnations[index])
            episode = _Episode(begin=now, first=source, code=code, left=set(self._running))
            self._episode = episode
        episode.left.discard(index)
        if episode.left:
            return None
        return Finish(code=episode.code, failed=episode.first)

    def _without(self, index: int, code: int, clause: str) -> Decision:
        if self.num_workers():
            return Shrink(index=index, why=f"{clause}; the job goes on without it ({self._used()})")
        return Finish(
            code=max(code, 1),
            why=f"worker {index} {clause}, and no worker is left ({self._used()})",
        )

    def _used(self) -> str:
        return f"{self._num_restarts - self._num_left} of {self._num_restarts} restarts used"


@dataclass(slots=True, kw_only=True)
class _Episode:
    """Errors that belong together.

    Attributes:
        begin: Time of the first one.
        first: Worker that had it.
        code: Its exit code.
        left: Workers that ran then, and have had no error since.
    """

    begin: float
    first: Source
    code: int
    left: set[int]
