"""State of a job, without threads and clocks; tests/workers/test_simulated.py draws its events."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from evener.workers.faults import is_lost
from evener.workers.membership import JobPhase, Membership
from evener.workers.messages import (
    Appear,
    Beat,
    Ended,
    Event,
    Exchange,
    Failed,
    Formed,
    Hello,
    Leave,
    Lost,
    Message,
    Stop,
)

COUNT = 3
OTHER_SCRIPT = {"same": {"script": "b"}}


class Line:
    """Way to a member, which keeps what is sent, and whether it was closed."""

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
    """A job of three workers: its state, the events so far, and the way to each worker."""

    def __init__(self, *, begin: bool = True) -> None:
        self.events: list[Event] = []
        self.state = Membership(
            COUNT,
            heartbeat_seconds=10.0,
            start_seconds=60.0,
            patience_seconds=100.0,
            emit=self.events.append,
        )
        self.lines: dict[int, Line] = {}
        for index in range(COUNT if begin else 0):
            self.greet(index)

    def receive(self, index: int, message: Message, now: float = 1.0) -> None:
        self.state.receive(self.lines[index], message, now)

    def greet(self, index: int, *, incarnation: int = 0, now: float = 0.0, **others: Any) -> Line:
        """Let a worker say hello."""
        usual = {"count": COUNT, "address": f"host:{index}", "facts": {"same": {"script": "a"}}}
        line = self.lines[index] = Line()
        self.receive(index, Hello(index=index, incarnation=incarnation, **{**usual, **others}), now)
        return line

    def view(self, index: int) -> dict[str, Any]:
        """Return the last view that a worker was told."""
        views = [m["view"] for m in self.lines[index].sent if m["kind"] == "view"]
        return json.loads(json.dumps(views[-1]))

    def stop(self, *indices: int, done: int, view: int = 1) -> None:
        for index in indices:
            self.receive(index, Stop(view=view, done=done))

    def leave(self, *indices: int, done: int, view: int = 1) -> None:
        for index in indices:
            self.receive(index, Leave(view=view, done=done))

    def give(self, index: int, key: str, value: Any = 1, *, seconds: float = 30.0) -> None:
        self.receive(index, Exchange(view=1, key=key, value=value, timeout_seconds=seconds))

    def beat(self, indices: Iterable[int], *times: float) -> None:
        for now in times:
            for index in indices:
                self.receive(index, Beat(), now)

    def lose(self, *indices: int) -> None:
        for index in indices:
            self.state.disconnected(self.lines[index], 1.0, "its connection closed")

    def losses(self) -> list[tuple[int, int, str, bool]]:
        found = [event for event in self.events if isinstance(event, Lost)]
        return [(lost.index, lost.incarnation, lost.why, lost.is_fault) for lost in found]

    def last_kinds(self, *indices: int) -> list[str]:
        return [self.lines[index].kinds()[-1] for index in indices]

    def errors(self, *indices: int) -> list[str]:
        return [self.lines[index].error for index in indices]


def without_worker_1(done: int = 5) -> Job:
    """Return a job whose second view has the workers 0 and 2."""
    job = Job()
    job.lose(1)
    job.stop(0, 2, done=done)
    job.events.clear()
    return job


def test_who_is_missing_is_named() -> None:
    job = Job(begin=False)
    first = job.greet(0)
    job.state.tick(9.0)
    job.beat([0], *range(5, 60, 5))
    job.state.tick(61.0)
    assert first.error == "RUN-067"
    failed = job.events[-1]
    assert isinstance(failed, Failed)
    assert failed.missing == {1, 2}
    # No wrong usage: a scheduler may try again.
    assert is_lost(failed.error)


def test_a_death_ends_the_view_and_the_others_go_on() -> None:
    job = Job()
    assert job.view(0)["members"] == [0, 1, 2]
    assert job.state.phase is JobPhase.RUNNING
    assert isinstance(job.events[-1], Formed)
    job.lose(1)
    assert job.last_kinds(0) == ["view_over"]
    job.stop(0, done=7)
    assert job.state.phase is JobPhase.STOPPING
    job.stop(2, done=8)
    assert job.view(0)["members"] == [0, 2]
    assert job.view(2)["done"] == {"0": 7, "2": 8}
    assert job.losses() == [(1, 0, "its connection closed", True)]
    # The incarnation that was lost does not come back.
    assert job.greet(1).error == "RUN-071"
    assert job.lines[1].is_ended


def test_two_deaths_at_once_and_while_the_view_is_formed() -> None:
    job = Job()
    job.lose(0)
    job.stop(1, done=3)
    job.lose(2)
    assert job.view(1)["members"] == [1]


def test_silence_is_a_death() -> None:
    job = Job()
    job.beat([0, 2], 9.0)
    job.state.tick(10.5)
    assert job.lines[1].error == "RUN-071"
    assert job.lines[1].is_ended


def test_members_are_excused_when_the_coordinator_itself_was_stopped() -> None:
    job = Job()
    job.state.excuse_silence(100.0)
    job.state.tick(101.0)
    assert not job.losses()
    job.state.tick(110.0)
    assert len(job.losses()) == COUNT


def test_a_replacement_joins_at_the_next_boundary() -> None:
    job = without_worker_1()
    job.greet(1, incarnation=1)
    assert job.last_kinds(0) == ["view_over"]
    job.stop(0, 2, done=9, view=2)
    assert job.view(1)["members"] == [0, 1, 2]
    assert job.view(1)["joined"] == [1]
    assert job.view(1)["done"] == {"0": 9, "2": 9}


def test_a_replacement_that_dies_before_its_view() -> None:
    job = without_worker_1()
    job.greet(1, incarnation=1)
    job.stop(0, done=9, view=2)
    job.lose(1)
    job.stop(2, done=9, view=2)
    assert job.view(0)["members"] == [0, 2]


def test_a_replacement_takes_the_place_of_a_worker_that_seems_alive() -> None:
    job = Job()
    older = job.lines[1]
    job.greet(1, incarnation=1)
    assert older.error == "RUN-071"
    assert "incarnation 1 takes its place" in older.sent[-1]["error"]["why"]
    job.stop(0, 2, done=5)
    assert job.view(1)["joined"] == [1]


def test_the_worker_that_the_next_view_waits_for_is_replaced() -> None:
    job = Job()
    job.stop(0, done=5)
    # A stop is told to the others.
    assert job.last_kinds(0, 1) == ["view", "view_over"]
    job.stop(2, done=5)
    job.greet(1, incarnation=1)
    assert job.state.phase is JobPhase.RUNNING
    assert job.view(1) == job.view(0)
    assert (job.view(0)["number"], job.view(0)["joined"]) == (2, [1])
    assert job.last_kinds(0) == ["view"]


def test_who_does_not_come_to_the_next_view_is_named() -> None:
    job = Job()
    job.lose(1)
    job.stop(0, done=5)
    job.beat([0, 2], *range(5, 101, 5))
    job.state.tick(102.0)
    assert job.lines[0].error == "RUN-073"


def test_newcomers_that_do_not_fit() -> None:
    job = Job()
    assert job.greet(3).error == "RUN-066"
    assert job.greet(1).error == "RUN-064"
    assert job.greet(1, count=2).error == "RUN-065"
    assert job.greet(1, incarnation=1, facts=OTHER_SCRIPT).error == "RUN-068"


def test_workers_with_other_facts_end_for_all() -> None:
    job = Job(begin=False)
    for index in range(COUNT):
        job.greet(index, **({"facts": OTHER_SCRIPT} if index == 1 else {}))
    assert job.errors(0, 1, 2) == ["RUN-068"] * 3
    assert "script" in str(job.lines[0].sent[-1])


def test_an_exchange_is_remembered_for_replacements() -> None:
    job = Job()
    for index in range(COUNT):
        job.give(index, "seeds", index)
    assert job.lines[2].sent[-1]["values"] == [0, 1, 2]
    assert job.state.past()["exchanged"] == {"seeds": [0, 1, 2]}
    assert job.state.past()["view"]["members"] == (0, 1, 2)


def test_exchanges_that_fail() -> None:
    job = Job()
    job.give(0, "a")
    job.give(0, "a")
    assert job.lines[0].error == "RUN-075"
    job.beat(range(COUNT), 9.0, 18.0, 27.0)
    job.state.tick(32.0)
    assert job.lines[0].error == "RUN-069"
    job.give(1, "b")
    job.lose(2)
    assert {m["error"]["code"] for m in job.lines[1].sent if "error" in m} == {"RUN-070"}
    # After the view, they fail at once.
    job.give(0, "k")
    assert job.lines[0].error == "RUN-070"


def test_an_exchange_that_failed_fails_for_those_who_come_later() -> None:
    job = Job()
    job.give(0, "k", seconds=2.0)
    job.give(1, "other")
    assert job.state.next_deadline() == 3.0
    job.state.tick(3.0)
    error = job.lines[0].sent[-1]["error"]
    assert "workers 1, 2" in error["what"]
    assert "Worker 1 waits in the exchange 'other'" in error["why"]
    job.give(2, "k")
    assert job.lines[2].error == "RUN-069"


def test_all_leave_together() -> None:
    job = Job()
    job.leave(0, 1, done=4)
    assert "go" not in job.lines[0].kinds()
    job.leave(2, done=4)
    assert job.last_kinds(0, 1, 2) == ["go"] * 3
    assert isinstance(job.events[-1], Ended)
    assert job.greet(1, incarnation=1).error == "RUN-074"


def test_a_death_after_others_have_finished_is_no_fault() -> None:
    job = Job()
    job.leave(0, done=4)
    job.lose(1)
    assert job.losses() == [(1, 0, "its connection closed", False)]
    job.leave(2, done=4)
    assert job.state.phase is JobPhase.ENDED


def test_a_worker_that_has_finished_serves_those_that_have_not() -> None:
    job = Job()
    job.leave(0, done=9)
    job.lose(1)
    assert job.last_kinds(0, 2) == ["view", "view_over"]
    job.stop(2, done=8)
    assert job.view(0) == job.view(2)
    assert job.view(0)["done"] == {"0": 9, "2": 8}
    job.leave(0, 2, done=9, view=2)
    assert job.last_kinds(0, 2) == ["go"] * 2


@pytest.mark.parametrize("waits_in", ["a step", "an exchange"])
def test_workers_that_have_left_are_lost_if_another_one_waits_for_them(waits_in: str) -> None:
    job = Job()
    job.leave(1, 2, done=5)
    if waits_in == "an exchange":
        job.give(0, "k")
        assert [m["error"]["code"] for m in job.lines[0].sent if "error" in m] == ["RUN-070"]
    job.stop(0, done=5)
    why = "its program ended while those of others went on"
    assert job.losses() == [(index, 0, why, True) for index in (1, 2)]
    assert job.errors(1, 2) == ["RUN-071"] * 2
    assert (job.view(0)["number"], job.view(0)["members"]) == (2, [0])
    job.leave(0, done=9, view=2)
    assert job.state.phase is JobPhase.ENDED


def test_workers_that_have_left_serve_another_one_that_is_behind_or_at_its_end() -> None:
    """Worker 0 has missed the end of the last call; worker 2 could not connect behind its end."""
    job = Job()
    job.leave(1, done=5)
    job.stop(0, done=4)
    job.receive(2, Stop(view=1, done=5, is_at_end=True))
    assert job.view(0) == job.view(1) == job.view(2)
    assert job.view(0)["members"] == [0, 1, 2]


def test_a_job_has_no_end_where_its_workers_hold_different_values() -> None:
    job = Job()
    for index, checksum in enumerate((1, 1, 2)):
        state = {"rate (0)": [checksum, 3.0 + checksum, 4.0]}
        job.receive(index, Leave(view=1, done=5, state=state))
    assert job.errors(0, 1, 2) == ["RUN-079"] * COUNT
    assert job.state.phase is JobPhase.GATHERING


@pytest.mark.parametrize("is_last", [False, True])
def test_nobody_waits_for_a_worker_that_is_not_started_again(is_last: bool) -> None:
    job = Job(begin=False)
    job.greet(0)
    if is_last:
        job.greet(2)
        job.state.go_without(1, 1.0)
    else:
        job.state.go_without(1, 1.0)
        assert job.state.phase is JobPhase.GATHERING
        job.greet(2)
    assert job.view(0)["members"] == [0, 2]
    for index in (0, 2):
        job.lose(index)
        job.greet(index, incarnation=1)
    assert job.view(2)["members"] == [0, 2]
    assert job.view(2)["joined"] == [0, 2]


def test_nobody_stops_for_a_newcomer_once_a_worker_has_finished() -> None:
    job = without_worker_1()
    job.leave(0, done=9, view=2)
    newcomer = job.greet(1, incarnation=1)
    assert job.state.phase is JobPhase.RUNNING
    job.leave(2, done=9, view=2)
    assert newcomer.error == "RUN-074"
    assert job.last_kinds(2) == ["go"]


def test_a_worker_that_dies_before_the_first_view_may_start_again() -> None:
    job = Job(begin=False)
    job.greet(0)
    job.greet(1)
    job.lose(1)
    job.greet(1)
    job.greet(2)
    assert job.view(1)["members"] == [0, 1, 2]


def test_after_the_death_of_all_the_job_gathers_again_without_a_state() -> None:
    job = Job()
    job.lose(*range(COUNT))
    assert job.state.phase is JobPhase.GATHERING
    for index in range(COUNT):
        job.greet(index, incarnation=1, now=500.0)
    view = job.view(0)
    assert (view["number"], view["done"], view["joined"]) == (2, {}, [0, 1, 2])


def test_a_message_out_of_turn_loses_its_sender() -> None:
    job = Job()
    job.stop(0, done=5, view=7)
    assert job.lines[0].error == "RUN-071"
    assert job.last_kinds(1) == ["view_over"]


# Replacements on their way: which silence is a loss.


def appear(job: Job, now: float) -> Line:
    line = Line()
    job.state.receive(line, Appear(index=1, incarnation=1), now)
    return line


def test_a_process_that_never_appears_is_lost() -> None:
    job = without_worker_1()
    job.state.expect(1, 1, 5.0)
    job.beat([0, 2], 60.0)
    job.state.tick(64.9)
    assert not job.losses()
    job.beat([0, 2], 65.0)
    assert job.state.next_deadline() == 65.0
    job.state.tick(65.0)
    assert job.losses() == [(1, 1, "it was silent for 60 seconds after its start", True)]
    job.state.tick(200.0)
    assert len([each for each in job.losses() if each[0] == 1]) == 1


def test_a_replacement_that_freezes_before_it_joins_is_lost() -> None:
    job = without_worker_1()
    job.state.expect(1, 1, 5.0)
    line = appear(job, 9.0)
    for now in (15.0, 22.0):
        job.state.receive(line, Beat(), now)
        job.beat([0, 2], now)
        job.state.tick(now)
    assert not job.losses()
    job.beat([0, 2], 32.0)
    job.state.tick(32.0)
    assert job.losses() == [(1, 1, "it was silent for 10 seconds", True)]
    assert line.is_ended
    # What it sends when it runs again changes nothing: the next incarnation is expected.
    job.state.expect(1, 2, 33.0)
    job.state.receive(line, Beat(), 34.0)
    job.state.disconnected(line, 35.0, "its connection closed")
    assert len(job.losses()) == 1


def test_a_replacement_that_joins_is_a_member() -> None:
    """One that does not appear, such as one of TF_CONFIG, may join all the same."""
    for appears in (True, False):
        job = without_worker_1()
        job.state.expect(1, 1, 5.0)
        line = appear(job, 6.0) if appears else Line()
        job.greet(1, incarnation=1, now=8.0)
        assert 1 not in job.state._newcomers
        job.stop(0, 2, done=9, view=2)
        assert job.view(1)["members"] == [0, 1, 2]
        job.state.disconnected(line, 9.0, "its connection closed")
        job.state.tick(10.0)
        assert not job.losses()


def test_a_replacement_whose_connection_ends_is_lost() -> None:
    job = without_worker_1()
    line = appear(job, 6.0)
    # The coordinator itself was stopped.
    job.state.excuse_silence(50.0)
    job.state.tick(59.0)
    assert not job.losses()
    job.state.disconnected(line, 59.0, "its connection closed")
    assert job.losses() == [(1, 1, "its connection closed", True)]
