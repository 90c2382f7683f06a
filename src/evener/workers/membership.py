"""State of a job: who is a member, of which view, and what it waits for.

::

              all are there               a member is lost, stops, or a worker joins
    GATHERING ------------> RUNNING -------------------------------------> STOPPING
        ^                    ^  |                                            |   |
        |                    |  | all have left         all have stopped     |   |
        |                    |  v                   or left, some stopped    |   |
        |                    | ENDED <------------------ all have left       |   |
        |                    +-----------------------------------------------+   |
        +------------------------------ no member of the view is left -----------+

It has no thread, no clock and no socket: every call says what happened and when, and answers
are put into the lines of members. So every order of events can be tested.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from evener.errors import RunError
from evener.workers import faults, messages


class JobPhase(enum.Enum):
    """Phase of a job; the drawing of this module has the steps between them."""

    GATHERING = "no view: waits for all workers"
    RUNNING = "the members of the view compute"
    STOPPING = "the view is over: its members come to the end of their step"
    ENDED = "all members have left"


class MemberLine(Protocol):
    """Way to a member. Neither method waits."""

    def send(self, message: Mapping[str, Any]) -> None: ...

    def end(self) -> None:
        """Close the connection when all messages are sent."""


@dataclass(slots=True, kw_only=True)
class _Open:
    deadline: float
    seconds: float
    lines: dict[int, MemberLine] = field(default_factory=dict)
    values: dict[int, Any] = field(default_factory=dict)


class Exchanges:
    """Exchanges of a view: every member gives a value under a key, and gets those of all.

    ``finished`` has the values of all exchanges of the job so far, by key; new ones are added to
    it.
    """

    def __init__(self, view: int, members: Collection[int], finished: dict[str, list[Any]]) -> None:
        self._finished, self._view = finished, view
        self._members = sorted(members)
        self._open: dict[str, _Open] = {}
        self._failed: dict[str, RunError] = {}

    @property
    def deadline(self) -> float | None:
        """Time at which the first exchange fails, or None."""
        return min((waiting.deadline for waiting in self._open.values()), default=None)

    def give(self, index: int, line: MemberLine, message: messages.Exchange, now: float) -> None:
        """Take the value of a member; with the last one, send all values to all members.

        A key that has failed fails again at once: the members must not disagree about it.
        """
        key, seconds = message.key, message.timeout_seconds
        if key in self._failed:
            self._fail({index: line}, key, self._failed[key])
            return
        deadline = now + seconds
        waiting = self._open.setdefault(key, _Open(deadline=deadline, seconds=seconds))
        if index in waiting.values:
            self._fail({index: line}, key, faults.exchanged_twice(index, key))
            return
        waiting.lines[index], waiting.values[index] = line, message.value
        if deadline < waiting.deadline:
            waiting.deadline, waiting.seconds = deadline, seconds
        if len(waiting.values) == len(self._members):
            del self._open[key]
            values = [waiting.values[member] for member in self._members]
            self._finished[key] = values
            self._send(waiting.lines, {"kind": "values", "key": key, "values": values})

    def tick(self, now: float) -> None:
        for key in [key for key, waiting in self._open.items() if now >= waiting.deadline]:
            waiting = self._open[key]
            absent = set(self._members) - waiting.values.keys()
            elsewhere = [
                f" Worker {index} waits in the exchange {other!r}."
                for other, theirs in self._open.items()
                for index in sorted(theirs.values)
                if other != key and index in absent
            ]
            instead = "".join(elsewhere[:3])
            error = RunError(
                "RUN-069",
                f"{faults.workers(absent)} is missing in the exchange {key!r}: it has not come "
                f"within {waiting.seconds:g} seconds.",
                why=f"all workers must exchange {key!r} before any of them goes on.{instead}",
                fix="check that the program takes the same path on all workers, and see its output "
                "there.",
            )
            del self._open[key]
            self._failed[key] = error
            self._fail(waiting.lines, key, error)

    def end(self, why: str) -> None:
        error = faults.view_over(self._view, why)
        for key, waiting in self._open.items():
            self._fail(waiting.lines, key, error)
        self._open.clear()

    def _fail(self, lines: Mapping[int, MemberLine], key: str, error: RunError) -> None:
        message = {"kind": "exchange_failed", "key": key, "error": faults.to_json(error)}
        self._send(lines, message)

    def _send(self, lines: Mapping[int, MemberLine], message: Mapping[str, Any]) -> None:
        for line in lines.values():
            line.send({**message, "view": self._view})


@dataclass(slots=True, kw_only=True)
class _Newcomer:
    """A replacement on its way: its process was started, and has not said hello yet."""

    incarnation: int  # Number of its restarts.
    line: MemberLine | None  # Its connection; None before it has appeared.
    heard_at: float  # Time of its last message; before it has appeared, of its start.
    patience_seconds: float  # Silence after which it is lost.


@dataclass(slots=True, kw_only=True, eq=False)
class _Seat:
    line: MemberLine
    hello: messages.Hello
    heard_at: float  # Time of its last message.
    in_view: bool = False  # True for a member of the view; others wait for the next one.
    done: int | None = None  # Calls that it has finished, once it has stopped or left.
    is_at_end: bool = False  # True once its program has ended.
    left: bool = False  # True once it has finished, as far as it knows.
    # Summary of its variables, once it has finished.
    state: faults.Summary = field(default_factory=dict)

    @property
    def index(self) -> int:
        return self.hello.index


class Membership:
    def __init__(
        self,
        count: int,
        *,
        heartbeat_seconds: float,
        start_seconds: float,
        patience_seconds: float,
        emit: Callable[[messages.Event], None],
    ) -> None:
        self._count = count
        # Workers that nobody starts again.
        self._gone: set[int] = set()
        self._heartbeat_seconds, self._start_seconds = heartbeat_seconds, start_seconds
        self._patience_seconds, self._emit = patience_seconds, emit
        self._seats: dict[MemberLine, _Seat] = {}
        self.phase = JobPhase.GATHERING
        self._number = 0
        self._exchanged: dict[str, list[Any]] = {}
        self._exchanges = Exchanges(0, (), self._exchanged)
        self._view: messages.View | None = None
        self._why_over = ""
        self._deadline: float | None = None
        # The newest incarnation of each worker that was in a view.
        self._incarnations: dict[int, int] = {}
        self._newcomers: dict[int, _Newcomer] = {}

    @property
    def has_newcomers(self) -> bool:
        return any(newcomer.line is not None for newcomer in self._newcomers.values())

    def past(self) -> dict[str, Any]:
        """Return the message that tells a replacement where the job stands."""
        is_there = self.phase in (JobPhase.RUNNING, JobPhase.STOPPING) and self._view is not None
        return {
            "kind": "past",
            "view": self._view.to_json() if is_there and self._view is not None else None,
            "exchanged": self._exchanged,
            "is_over": self.phase is JobPhase.ENDED,
        }

    def receive(self, line: MemberLine, message: messages.Message, now: float) -> None:
        seat = self._seats.get(line)
        if seat is None:
            # Others come from a line that was given up meanwhile.
            if isinstance(message, messages.Hello):
                self._greet(line, message, now)
            elif isinstance(message, messages.Appear):
                self._newcomers[message.index] = _Newcomer(
                    incarnation=message.incarnation,
                    line=line,
                    heard_at=now,
                    patience_seconds=self._heartbeat_seconds,
                )
            else:
                for newcomer in self._newcomers.values():
                    if newcomer.line is line:
                        newcomer.heard_at = now
            return
        seat.heard_at = now
        match message:
            case messages.Beat():
                line.send({"kind": "beat"})
            case messages.Exchange():
                self._exchange(seat, message, now)
            case messages.Stop() | messages.Leave() if (
                seat.in_view and message.view == self._number
            ):
                self._stop(seat, message, now)
            case _:
                self._lose(seat, now, "it sent a message that does not fit the state of the job")

    def expect(self, index: int, incarnation: int, now: float) -> None:
        """Expect a replacement, whose process starts now, or lose it if it appears too late."""
        self._newcomers[index] = _Newcomer(
            incarnation=incarnation,
            line=None,
            heard_at=now,
            patience_seconds=self._start_seconds,
        )

    def go_without(self, index: int, now: float) -> None:
        """Do not wait for a worker before a view is formed: nobody starts it again."""
        self._gone.add(index)
        if self.phase is JobPhase.GATHERING:
            self._gather(now)

    def disconnected(self, line: MemberLine, now: float, why: str) -> None:
        """Act on the end of a connection; the reason is a clause: ``"its connection closed"``."""
        seat = self._seats.get(line)
        if seat is not None:
            self._lose(seat, now, why)
            return
        for index, newcomer in tuple(self._newcomers.items()):
            if newcomer.line is line:
                self._lose_newcomer(index, why)

    def tick(self, now: float) -> None:
        silent = "it was silent for {:g} seconds"
        for seat in list(self._seats.values()):
            # Losing a member may end the job for all.
            if seat.line in self._seats and now - seat.heard_at >= self._heartbeat_seconds:
                self._lose(seat, now, silent.format(self._heartbeat_seconds))
        self._exchanges.tick(now)
        for index, newcomer in tuple(self._newcomers.items()):
            if now >= newcomer.heard_at + newcomer.patience_seconds:
                since = "" if newcomer.line else " after its start"
                self._lose_newcomer(index, silent.format(newcomer.patience_seconds) + since)
        if self._deadline is None or now < self._deadline:
            return
        if self.phase is JobPhase.GATHERING:
            absent = self.absent()
            error = RunError(
                "RUN-067",
                f"{faults.workers(absent)} is missing: it has not joined within "
                f"{self._start_seconds:g} seconds.",
                why="the job begins when all workers are there.",
                fix="look for an error in its output; check that it reaches the coordinator; set "
                "EVENER_START_SECONDS if it starts slowly.",
            )
        else:
            absent = {seat.index for seat in self._members() if seat.done is None}
            error = RunError(
                "RUN-073",
                f"{faults.workers(absent)} is missing in the next view: it has not come within "
                f"{self._patience_seconds:g} seconds.",
                why=f"view {self._number} is over, and all of its workers must stop at the end of "
                "a step.",
                fix="look for a step that does not end in its output.",
            )
        self._fail(error, absent)

    def excuse_silence(self, now: float) -> None:
        """Count all members as heard now, because this process itself was stopped."""
        for each in (*self._seats.values(), *self._newcomers.values()):
            each.heard_at = now

    def next_deadline(self) -> float | None:
        """Return the time at which `tick` has something to do, or None."""
        deadlines = [seat.heard_at + self._heartbeat_seconds for seat in self._seats.values()]
        deadlines += [each.heard_at + each.patience_seconds for each in self._newcomers.values()]
        deadlines += [self._deadline, self._exchanges.deadline]
        return min((time for time in deadlines if time is not None), default=None)

    def _members(self) -> list[_Seat]:
        return [seat for seat in self._seats.values() if seat.in_view]

    def _greet(self, line: MemberLine, hello: messages.Hello, now: float) -> None:
        older = next((s for s in self._seats.values() if s.index == hello.index), None)
        error = self._refusal(hello, older)
        if error is not None:
            _refuse(line, error)
            return
        seat = self._seats[line] = _Seat(line=line, hello=hello, heard_at=now)
        self._newcomers.pop(hello.index, None)
        if older is not None:
            self._lose(older, now, f"its incarnation {hello.incarnation} takes its place")
        if seat.in_view:
            # The older incarnation was the last that the next view waited for.
            return
        if self.phase is JobPhase.GATHERING:
            self._gather(now)
        elif self.phase is JobPhase.RUNNING and not self._any_left():
            # After the first has finished, nobody stops for a worker that would have no work.
            self._end_view(now, f"worker {hello.index} joins")

    def _refusal(self, hello: messages.Hello, older: _Seat | None) -> RunError | None:
        index, newest = hello.index, self._incarnations.get(hello.index, -1)
        if hello.count != self._count:
            return RunError(
                "RUN-065",
                f"Worker {index} expects {hello.count} workers; the job has {self._count}.",
                why="the number of workers must be the same for all of them.",
                fix="start all workers with the same list of workers, or the same --workers.",
            )
        if not 0 <= index < self._count:
            return RunError(
                "RUN-066",
                f"The job has no worker {index}.",
                why=f"it has {self._count} workers, with the numbers 0 to {self._count - 1}.",
                fix="give each worker its own number below the number of workers.",
            )
        if self.phase is JobPhase.ENDED:
            return faults.job_over(index)
        if older is not None and hello.incarnation <= older.hello.incarnation:
            return RunError(
                "RUN-064",
                f"Worker {index} is there already.",
                why=f"another process has joined as worker {index}, incarnation "
                f"{older.hello.incarnation}, from {older.hello.address}.",
                fix="give each worker its own number; start a replacement with a higher "
                "incarnation.",
            )
        if hello.incarnation <= newest:
            why = f"its incarnation {newest} was lost, and this is incarnation {hello.incarnation}"
            return faults.expelled(index, why)
        members = [seat.hello for seat in self._members() if seat is not older]
        return faults.difference(members[0], hello) if members else None

    def absent(self) -> set[int]:
        return {*range(self._count)} - {seat.index for seat in self._seats.values()} - self._gone

    def _gather(self, now: float) -> None:
        if not self._seats:
            self._deadline = None
            return
        if self._deadline is None:
            self._deadline = now + self._start_seconds
        if self.absent():
            return
        hellos = sorted((seat.hello for seat in self._seats.values()), key=lambda h: h.index)
        errors = (faults.difference(hellos[0], hello) for hello in hellos[1:])
        error = next((error for error in errors if error is not None), None)
        if error is None:
            self._form()
        else:
            self._fail(error)

    def _exchange(self, seat: _Seat, message: messages.Exchange, now: float) -> None:
        view, key = message.view, message.key
        if self.phase is JobPhase.RUNNING and seat.in_view and view == self._number:
            self._exchanges.give(seat.index, seat.line, message, now)
            self._advance(now)
            return
        error = faults.to_json(faults.view_over(view, self._why_over))
        seat.line.send({"kind": "exchange_failed", "view": view, "key": key, "error": error})

    def _stop(self, seat: _Seat, message: messages.Stop | messages.Leave, now: float) -> None:
        seat.done, seat.left = message.done, isinstance(message, messages.Leave)
        seat.is_at_end = isinstance(message, messages.Leave) or message.is_at_end
        seat.state = message.state if isinstance(message, messages.Leave) else {}
        if self.phase is JobPhase.RUNNING and not seat.left:
            self._end_view(now, f"worker {seat.index} has stopped")
        else:
            self._advance(now)

    def _lose(self, seat: _Seat, now: float, why: str) -> None:
        del self._seats[seat.line]
        self._report_loss(seat.index, seat.hello.incarnation, why, has_left=seat.left)
        _refuse(seat.line, faults.expelled(seat.index, why))
        if self.phase is JobPhase.GATHERING:
            self._gather(now)
        elif seat.in_view:
            self._end_view(now, f"worker {seat.index} is lost: {why}")

    def _lose_newcomer(self, index: int, why: str) -> None:
        newcomer = self._newcomers.pop(index)
        if newcomer.line is not None:
            newcomer.line.end()
        self._report_loss(index, newcomer.incarnation, why)

    def _report_loss(
        self, index: int, incarnation: int, why: str, *, has_left: bool = False
    ) -> None:
        is_fault = not (has_left or self._any_left())
        self._emit(messages.Lost(index=index, incarnation=incarnation, why=why, is_fault=is_fault))

    def _any_left(self) -> bool:
        return any(seat.left for seat in self._members())

    def _end_view(self, now: float, why: str) -> None:
        if self.phase is JobPhase.RUNNING:
            self.phase = JobPhase.STOPPING
            self._deadline = now + self._patience_seconds
            self._why_over = why
            self._exchanges.end(why)
            for seat in self._members():
                if seat.done is None:
                    seat.line.send({"kind": "view_over", "view": self._number, "why": why})
        self._advance(now)

    def _advance(self, now: float) -> None:
        """Go to the next phase if all members have done what it waits for."""
        members = self._members()
        if not members:
            self.phase, self._deadline = JobPhase.GATHERING, None
            self._gather(now)
        elif early := self._early():
            for seat in early:
                seat.done, seat.left, seat.is_at_end = None, False, False
            for seat in early:
                self._lose(seat, now, "its program ended while those of others went on")
        elif all(seat.left for seat in members):
            self._end()
        elif self.phase is JobPhase.STOPPING and all(seat.done is not None for seat in members):
            self._form()

    def _early(self) -> list[_Seat]:
        """Return the members at the end of their program for which others wait before it.

        These others are in an exchange that all have to make, or in a call after the last one of
        those. A member that has finished fewer calls is served.
        """
        members = self._members()
        at_end = [seat for seat in members if seat.is_at_end]
        if self.phase is JobPhase.RUNNING:
            return at_end if self._exchanges.deadline is not None else []
        if any(seat.done is None for seat in members):
            return []
        others = (seat.done for seat in members if not seat.is_at_end and seat.done is not None)
        goes_on = max(others, default=-1)
        return [seat for seat in at_end if seat.done is not None and seat.done <= goes_on]

    def _form(self) -> None:
        self._number += 1
        seats = sorted(self._seats.values(), key=lambda seat: seat.index)
        view = messages.View(
            number=self._number,
            members=tuple(seat.index for seat in seats),
            addresses={seat.index: seat.hello.address for seat in seats},
            done={seat.index: seat.done for seat in seats if seat.done is not None},
            joined=tuple(seat.index for seat in seats if not seat.in_view),
        )
        self.phase, self._deadline = JobPhase.RUNNING, None
        self._exchanges = Exchanges(self._number, view.members, self._exchanged)
        self._view = view
        for seat in seats:
            seat.in_view, seat.done, seat.left = True, None, False
            self._incarnations[seat.index] = seat.hello.incarnation
            seat.line.send({"kind": "view", "view": view.to_json()})
        self._emit(messages.Formed(view=view))

    def _end(self) -> None:
        error = faults.other_states({seat.index: seat.state for seat in self._members()})
        if error is not None:
            self._fail(error)
            return
        self.phase, self._deadline = JobPhase.ENDED, None
        # Before any of them ends.
        self._emit(messages.Ended())
        for seat in self._seats.values():
            if seat.in_view:
                seat.line.send({"kind": "go"})
                seat.line.end()
            else:
                _refuse(seat.line, faults.job_over(seat.index))
        self._seats.clear()

    def _fail(self, error: RunError, missing: Iterable[int] = ()) -> None:
        """Give up all workers; others may gather again."""
        self.phase, self._deadline = JobPhase.GATHERING, None
        for seat in self._seats.values():
            _refuse(seat.line, error)
        self._seats.clear()
        self._emit(messages.Failed(error=error, missing=frozenset(missing)))


def _refuse(line: MemberLine, error: RunError) -> None:
    line.send({"kind": "error", "error": faults.to_json(error)})
    line.end()
