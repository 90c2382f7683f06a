"""State of a job: every order of events, without threads and clocks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from evener.workers.faults import is_lost
from evener.workers.membership import JobPhase, Membership
from evener.workers.messages import (
    Beat,
    Ended,
    Event,
    Exchange,
    Failed,
    Formed,
    Hello,
    Leave,
    Lost,
    Stop,
)


class Line:
    """Way to a member, which keeps what is sent.

    Attributes:
        sent: Messages so far.
        is_ended: Whether it was closed.
    """

    def __init__(self) -> None:
        self.sent: list[Mapping[str, Any]] = []
        self.is_ended = False

    def send(self, message: Mapping[str, Any]) -> None:
        self.sent.append(message)

    def end(self) -> None:
        self.is_ended = True

    def kinds(self) -> list[str]:
        return [message["kind"] for message in self.sent]

    @property
    def error(self) -> str:
        """Code of the error that was sent last."""
        return self.sent[-1]["error"]["code"]


class Job:
    """A job of three workers, for tests.

    Attributes:
        state: State of the job.
        events: Events so far.
        lines: Way to each worker.
    """

    def __init__(self, *, begin: bool = True) -> None:
        self.events: list[Event] = []
        self.state = Membership(
            3,
            heartbeat_seconds=10.0,
            start_seconds=60.0,
            patience_seconds=100.0,
            emit=self.events.append,
        )
        self.lines: dict[int, Line] = {}
        if begin:
            for index in range(3):
                self.greet(index)

    def greet(self, index: int, *, incarnation: int = 0, now: float = 0.0, **others: Any) -> Line:
        """Let a worker say hello."""
        line = self.lines[index] = Line()
        hello = {"count": 3, "address": f"host:{index}", "facts": {"same": {"script": "a"}}}
        message = Hello(index=index, incarnation=incarnation, **{**hello, **others})
        self.state.receive(line, message, now)
        return line

    def view(self, index: int) -> dict[str, Any]:
        """Return the last view that a worker was told."""
        views = [m["view"] for m in self.lines[index].sent if m["kind"] == "view"]
        return json.loads(json.dumps(views[-1]))

    def stop(self, index: int, done: int, *, view: int = 1) -> None:
        self.state.receive(self.lines[index], Stop(view=view, done=done), 1.0)

    def lose(self, index: int) -> None:
        self.state.disconnected(self.lines[index], 1.0, "its connection closed")


def test_a_view_is_formed_when_all_are_there() -> None:
    job = Job()
    assert job.view(0)["members"] == [0, 1, 2]
    assert job.state.phase is JobPhase.RUNNING
    assert isinstance(job.events[-1], Formed)


def test_who_is_missing_is_named() -> None:
    job = Job(begin=False)
    first = job.greet(0)
    job.state.tick(9.0)
    for now in range(5, 60, 5):
        job.state.receive(first, Beat(), float(now))
    job.state.tick(61.0)
    assert first.error == "RUN-067"
    failed = job.events[-1]
    assert isinstance(failed, Failed)
    assert failed.missing == {1, 2}
    # No wrong usage: a scheduler may try again.
    assert is_lost(failed.error)


def test_a_death_ends_the_view_and_the_others_go_on() -> None:
    job = Job()
    job.lose(1)
    assert job.lines[0].kinds()[-1] == "view_over"
    job.stop(0, 7)
    assert job.state.phase is JobPhase.STOPPING
    job.stop(2, 8)
    assert job.view(0)["members"] == [0, 2]
    assert job.view(2)["done"] == {"0": 7, "2": 8}
    lost = next(event for event in job.events if isinstance(event, Lost))
    assert (lost.index, lost.is_fault) == (1, True)


def test_two_deaths_at_once_and_while_the_view_is_formed() -> None:
    job = Job()
    job.lose(0)
    job.stop(1, 3)
    job.lose(2)
    assert job.view(1)["members"] == [1]


def test_silence_is_a_death() -> None:
    job = Job()
    for index in (0, 2):
        job.state.receive(job.lines[index], Beat(), 9.0)
    job.state.tick(10.5)
    assert job.lines[1].error == "RUN-071"
    assert job.lines[1].is_ended


def test_a_replacement_joins_at_the_next_boundary() -> None:
    job = Job()
    job.lose(1)
    job.stop(0, 5)
    job.stop(2, 5)
    job.greet(1, incarnation=1)
    assert job.lines[0].kinds()[-1] == "view_over"
    job.stop(0, 9, view=2)
    job.stop(2, 9, view=2)
    assert job.view(1)["members"] == [0, 1, 2]
    assert job.view(1)["joined"] == [1]
    assert job.view(1)["done"] == {"0": 9, "2": 9}


def test_a_replacement_that_dies_before_its_view() -> None:
    job = Job()
    job.lose(1)
    job.stop(0, 5)
    job.stop(2, 5)
    job.greet(1, incarnation=1)
    job.stop(0, 9, view=2)
    job.lose(1)
    job.stop(2, 9, view=2)
    assert job.view(0)["members"] == [0, 2]


def test_who_does_not_come_to_the_next_view_is_named() -> None:
    job = Job()
    job.lose(1)
    job.stop(0, 5)
    for now in range(5, 101, 5):
        for index in (0, 2):
            job.state.receive(job.lines[index], Beat(), float(now))
    job.state.tick(102.0)
    assert job.lines[0].error == "RUN-073"


def test_newcomers_that_do_not_fit() -> None:
    job = Job()
    assert job.greet(3).error == "RUN-066"
    assert job.greet(1).error == "RUN-064"
    assert job.greet(1, count=2).error == "RUN-065"
    other = {"same": {"script": "b"}}
    assert job.greet(1, incarnation=1, facts=other).error == "RUN-068"


def test_workers_with_other_facts_end_for_all() -> None:
    job = Job(begin=False)
    job.greet(0)
    job.greet(1, facts={"same": {"script": "b"}})
    job.greet(2)
    assert [line.error for line in job.lines.values()] == ["RUN-068"] * 3
    assert "script" in str(job.lines[0].sent[-1])


def give(job: Job, index: int, key: str, value: Any, *, view: int = 1, now: float = 1.0) -> None:
    message = Exchange(view=view, key=key, value=value, timeout_seconds=30.0)
    job.state.receive(job.lines[index], message, now)


def test_an_exchange_is_remembered_for_replacements() -> None:
    job = Job()
    for index in range(3):
        give(job, index, "seeds", index)
    assert job.lines[2].sent[-1]["values"] == [0, 1, 2]
    assert job.state.past()["exchanged"] == {"seeds": [0, 1, 2]}
    assert job.state.past()["view"]["members"] == (0, 1, 2)


def test_exchanges_that_fail() -> None:
    job = Job()
    give(job, 0, "a", 1)
    give(job, 0, "a", 2)
    assert job.lines[0].error == "RUN-075"
    for now in (9.0, 18.0, 27.0):
        for index in range(3):
            job.state.receive(job.lines[index], Beat(), now)
    job.state.tick(32.0)
    assert job.lines[0].error == "RUN-069"
    give(job, 1, "b", 1, now=32.0)
    job.lose(2)
    assert {m["error"]["code"] for m in job.lines[1].sent if "error" in m} == {"RUN-070"}


def test_all_leave_together() -> None:
    job = Job()
    for index in (0, 1):
        job.state.receive(job.lines[index], Leave(view=1, done=4), 1.0)
    assert "go" not in job.lines[0].kinds()
    job.state.receive(job.lines[2], Leave(view=1, done=4), 1.0)
    assert all(line.kinds()[-1] == "go" for line in job.lines.values())
    assert isinstance(job.events[-1], Ended)
    assert job.greet(1, incarnation=1).error == "RUN-074"


def test_a_death_after_others_have_finished_is_no_fault() -> None:
    job = Job()
    job.state.receive(job.lines[0], Leave(view=1, done=4), 1.0)
    job.lose(1)
    lost = next(event for event in job.events if isinstance(event, Lost))
    assert not lost.is_fault
    job.state.receive(job.lines[2], Leave(view=1, done=4), 1.0)
    assert job.state.phase is JobPhase.ENDED
