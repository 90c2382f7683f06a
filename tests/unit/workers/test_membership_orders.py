"""State of a job: rare orders of events, and drawn ones."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from evener.workers.membership import JobPhase, Membership
from evener.workers.messages import Exchange, Hello, Leave, Lost, Message, Stop
from unit.workers.test_membership import Job, Line

COUNT = 3


def test_a_worker_that_has_finished_serves_those_that_have_not() -> None:
    job = Job()
    job.state.receive(job.lines[0], Leave(view=1, done=9), 1.0)
    job.lose(1)
    assert job.lines[2].kinds()[-1] == "view_over"
    assert job.lines[0].kinds()[-1] == "view"
    job.stop(2, 8)
    assert job.view(0) == job.view(2)
    assert job.view(0)["done"] == {"0": 9, "2": 8}
    for index in (0, 2):
        job.state.receive(job.lines[index], Leave(view=2, done=9), 2.0)
    assert job.lines[0].kinds()[-1] == job.lines[2].kinds()[-1] == "go"


def left_early(job: Job) -> bool:
    """Return whether workers 1 and 2 are lost, because worker 0 goes on without them."""
    lost = {event.index: event for event in job.events if isinstance(event, Lost)}
    why = "its program ended while those of others went on"
    return {index: each.why for index, each in lost.items() if each.is_fault} == {1: why, 2: why}


def test_workers_that_have_left_are_lost_if_another_one_waits_for_them_in_a_step() -> None:
    job = Job()
    for index in (1, 2):
        job.state.receive(job.lines[index], Leave(view=1, done=5), 1.0)
    job.stop(0, 5)
    assert left_early(job)
    assert [job.lines[index].error for index in (1, 2)] == ["RUN-071"] * 2
    assert (job.view(0)["number"], job.view(0)["members"]) == (2, [0])
    job.state.receive(job.lines[0], Leave(view=2, done=9), 2.0)
    assert job.state.phase is JobPhase.ENDED


def test_workers_that_have_left_are_lost_if_another_one_gives_a_value() -> None:
    job = Job()
    for index in (1, 2):
        job.state.receive(job.lines[index], Leave(view=1, done=5), 1.0)
    job.state.receive(job.lines[0], Exchange(view=1, key="k", value=1, timeout_seconds=9.0), 1.0)
    assert left_early(job)
    assert [m["error"]["code"] for m in job.lines[0].sent if "error" in m] == ["RUN-070"]
    job.stop(0, 5)
    assert job.view(0)["members"] == [0]


def test_workers_that_have_left_serve_another_one_that_is_behind_or_at_its_end() -> None:
    """Worker 0 has missed the end of the last call; worker 2 could not connect behind its end."""
    job = Job()
    job.state.receive(job.lines[1], Leave(view=1, done=5), 1.0)
    job.stop(0, 4)
    job.state.receive(job.lines[2], Stop(view=1, done=5, is_at_end=True), 1.0)
    assert job.view(0) == job.view(1) == job.view(2)
    assert job.view(0)["members"] == [0, 1, 2]


def test_a_job_has_no_end_where_its_workers_hold_different_values() -> None:
    job = Job()
    for index, checksum in enumerate((1, 1, 2)):
        state = {"rate (0)": [checksum, 3.0 + checksum, 4.0]}
        job.state.receive(job.lines[index], Leave(view=1, done=5, state=state), 1.0)
    assert [job.lines[index].error for index in range(COUNT)] == ["RUN-079"] * COUNT
    assert job.state.phase is JobPhase.GATHERING


def test_nobody_waits_for_a_worker_that_is_not_started_again() -> None:
    job = Job(begin=False)
    job.greet(0)
    job.state.go_without(1, 1.0)
    assert job.state.phase is JobPhase.GATHERING
    job.greet(2)
    assert job.view(0)["members"] == [0, 2]
    for index in (0, 2):
        job.lose(index)
        job.greet(index, incarnation=1)
    assert job.view(2)["members"] == [0, 2]
    assert job.view(2)["joined"] == [0, 2]


def test_who_is_there_begins_when_the_last_one_that_is_missing_is_given_up() -> None:
    job = Job(begin=False)
    job.greet(0)
    job.greet(2)
    job.state.go_without(1, 1.0)
    assert job.view(0)["members"] == [0, 2]


def test_nobody_stops_for_a_newcomer_once_a_worker_has_finished() -> None:
    job = Job()
    job.lose(1)
    job.stop(0, 5)
    job.stop(2, 5)
    job.state.receive(job.lines[0], Leave(view=2, done=9), 2.0)
    newcomer = job.greet(1, incarnation=1)
    assert job.state.phase is JobPhase.RUNNING
    job.state.receive(job.lines[2], Leave(view=2, done=9), 2.0)
    assert newcomer.error == "RUN-074"
    assert job.lines[2].kinds()[-1] == "go"


def test_a_replacement_takes_the_place_of_a_worker_that_seems_alive() -> None:
    job = Job()
    older = job.lines[1]
    job.greet(1, incarnation=1)
    assert older.error == "RUN-071"
    assert "incarnation 1 takes its place" in older.sent[-1]["error"]["why"]
    job.stop(0, 5)
    job.stop(2, 5)
    assert job.view(1)["joined"] == [1]


def test_the_worker_that_the_next_view_waits_for_is_replaced() -> None:
    job = Job()
    job.stop(0, 5)
    job.stop(2, 5)
    job.greet(1, incarnation=1)
    assert job.state.phase is JobPhase.RUNNING
    assert job.view(1) == job.view(0)
    assert (job.view(0)["number"], job.view(0)["joined"]) == (2, [1])
    assert job.lines[0].kinds()[-1] == "view"


def test_an_incarnation_that_was_lost_does_not_come_back() -> None:
    job = Job()
    job.lose(1)
    assert job.greet(1).error == "RUN-071"
    assert job.lines[1].is_ended


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
    for index in range(COUNT):
        job.lose(index)
    assert job.state.phase is JobPhase.GATHERING
    for index in range(COUNT):
        job.greet(index, incarnation=1, now=500.0)
    assert job.view(0)["number"] == 2
    assert job.view(0)["done"] == {}
    assert job.view(0)["joined"] == [0, 1, 2]


def test_a_stop_tells_the_others() -> None:
    job = Job()
    job.stop(0, 5)
    assert job.lines[1].kinds()[-1] == "view_over"
    assert "view_over" not in job.lines[0].kinds()


def test_an_exchange_after_the_view_fails_at_once() -> None:
    job = Job()
    job.lose(1)
    job.state.receive(job.lines[0], Exchange(view=1, key="k", value=1, timeout_seconds=9.0), 1.0)
    assert job.lines[0].error == "RUN-070"


def test_an_exchange_that_failed_fails_for_those_who_come_later() -> None:
    job = Job()
    exchange = Exchange(view=1, key="k", value=1, timeout_seconds=2.0)
    job.state.receive(job.lines[0], exchange, 1.0)
    other = Exchange(view=1, key="other", value=1, timeout_seconds=9.0)
    job.state.receive(job.lines[1], other, 1.0)
    assert job.state.next_deadline() == 3.0
    job.state.tick(3.0)
    error = job.lines[0].sent[-1]["error"]
    assert "workers 1, 2" in error["what"]
    assert "Worker 1 waits in the exchange 'other'" in error["why"]
    job.state.receive(job.lines[2], exchange, 4.0)
    assert job.lines[2].error == "RUN-069"


def test_members_are_excused_when_the_coordinator_itself_was_stopped() -> None:
    job = Job()
    job.state.excuse_silence(100.0)
    job.state.tick(101.0)
    assert not any(isinstance(event, Lost) for event in job.events)
    job.state.tick(110.0)
    assert sum(isinstance(event, Lost) for event in job.events) == COUNT


def test_a_message_out_of_turn_loses_its_sender() -> None:
    job = Job()
    job.stop(0, 5, view=7)
    assert job.lines[0].error == "RUN-071"
    assert job.lines[1].kinds()[-1] == "view_over"


class Worker:
    """A process that answers as a member does.

    Attributes:
        line: Way to it.
        view: Number of its view, 0 before the first.
        waits: Whether it has stopped, left or not begun, so that it waits for the coordinator.
    """

    def __init__(self, line: Line) -> None:
        self.line = line
        self.view = 0
        self.waits = True
        self._read = 0

    @property
    def is_done(self) -> bool:
        return any(kind in ("go", "error") for kind in self.line.kinds())

    def read(self, views: dict[int, Any]) -> None:
        for message in self.line.sent[self._read :]:
            if message["kind"] == "view":
                view = message["view"]
                assert view["number"] > self.view
                # All members are told the same.
                assert views.setdefault(view["number"], view) == view
                self.view, self.waits = view["number"], False
        self._read = len(self.line.sent)

    @property
    def must_stop(self) -> bool:
        overs = [m["view"] for m in self.line.sent if m["kind"] == "view_over"]
        return not self.waits and self.view in overs


class World:
    """Processes of a job that start, die, stop and finish in any order."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.state = Membership(
            COUNT,
            heartbeat_seconds=10.0,
            start_seconds=60.0,
            patience_seconds=100.0,
            emit=self.events.append,
        )
        self.workers: dict[int, Worker] = {}
        self.incarnations = dict.fromkeys(range(COUNT), -1)
        self.views: dict[int, Any] = {}

    def act(self, index: int, action: str) -> None:
        worker = self.workers.get(index)
        if action == "start" and (worker is None or worker.view > 0):
            self.incarnations[index] += 1
            self.workers[index] = Worker(Line())
            self._send(
                index,
                Hello(
                    index=index,
                    count=COUNT,
                    incarnation=self.incarnations[index],
                    address=f"host:{index}",
                    facts={},
                ),
            )
        elif worker is None:
            return
        elif action == "die":
            del self.workers[index]
            self.state.disconnected(worker.line, 1.0, "its connection closed")
        elif action in ("stop", "leave") and not worker.waits and not worker.is_done:
            worker.waits = True
            kind = Stop if action == "stop" else Leave
            self._send(index, kind(view=worker.view, done=worker.view))
        self.read()

    def _send(self, index: int, message: Message) -> None:
        self.state.receive(self.workers[index].line, message, 1.0)

    def read(self) -> None:
        for worker in self.workers.values():
            worker.read(self.views)

    @property
    def alive(self) -> dict[int, Worker]:
        return {index: each for index, each in self.workers.items() if not each.is_done}


ACTIONS = st.lists(
    st.tuples(
        st.integers(0, COUNT - 1), st.sampled_from(["start", "start", "die", "stop", "leave"])
    ),
    max_size=40,
)


@given(ACTIONS)
def test_in_any_order_nobody_waits_in_vain(actions: list[tuple[int, str]]) -> None:
    world = World()
    for index in range(COUNT):
        world.act(index, "start")
    for index, action in actions:
        world.act(index, action)
    # From here on all that have to stop do.
    while stopping := [index for index, each in world.alive.items() if each.must_stop]:
        world.act(stopping[0], "stop")
    alive = world.alive
    if world.state.phase is JobPhase.RUNNING:
        members = {index for index, each in alive.items() if each.view}
        newest = max(world.views)
        assert {each.view for each in alive.values() if each.view} == {newest}
        assert set(world.views[newest]["members"]) == members
        # Newcomers only wait where another worker has finished; then the others finish too.
        assert members == alive.keys() or any(alive[index].waits for index in members)
        for index in sorted(members):
            world.act(index, "leave")
        assert not world.alive
    else:
        assert world.state.phase is not JobPhase.STOPPING
        assert all(each.waits and not each.view for each in alive.values())
        assert len(alive) < COUNT
    assert sorted(world.views) == list(range(1, len(world.views) + 1))
