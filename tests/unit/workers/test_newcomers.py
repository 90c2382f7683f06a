"""Replacements on their way: which silence is a loss."""

from __future__ import annotations

from evener.workers.messages import Appear, Beat, Hello, Lost
from unit.workers.test_membership import Job, Line


def losses(job: Job) -> list[tuple[int, int, str, bool]]:
    found = [event for event in job.events if isinstance(event, Lost)]
    return [(lost.index, lost.incarnation, lost.why, lost.is_fault) for lost in found]


def without_worker_1() -> Job:
    job = Job()
    job.lose(1)
    job.stop(0, 7)
    job.stop(2, 7)
    job.events.clear()
    return job


def appear(job: Job, now: float, *, incarnation: int = 1) -> Line:
    line = Line()
    job.state.receive(line, Appear(index=1, incarnation=incarnation), now)
    return line


def beat_of_others(job: Job, now: float) -> None:
    for index in (0, 2):
        job.state.receive(job.lines[index], Beat(), now)


def test_a_process_that_never_appears_is_lost() -> None:
    job = without_worker_1()
    job.state.expect(1, 1, 5.0)
    beat_of_others(job, 60.0)
    job.state.tick(64.9)
    assert not losses(job)
    beat_of_others(job, 65.0)
    assert job.state.next_deadline() == 65.0
    job.state.tick(65.0)
    assert losses(job) == [(1, 1, "it was silent for 60 seconds after its start", True)]
    job.state.tick(200.0)
    assert len([each for each in losses(job) if each[0] == 1]) == 1


def test_a_replacement_that_freezes_before_it_joins_is_lost() -> None:
    job = without_worker_1()
    job.state.expect(1, 1, 5.0)
    line = appear(job, 9.0)
    for now in (15.0, 22.0):
        job.state.receive(line, Beat(), now)
        beat_of_others(job, now)
        job.state.tick(now)
    assert not losses(job)
    beat_of_others(job, 32.0)
    job.state.tick(32.0)
    assert losses(job) == [(1, 1, "it was silent for 10 seconds", True)]
    assert line.is_ended
    # What it sends when it runs again changes nothing: the next incarnation is expected.
    job.state.expect(1, 2, 33.0)
    job.state.receive(line, Beat(), 34.0)
    job.state.disconnected(line, 35.0, "its connection closed")
    assert len(losses(job)) == 1


def test_a_replacement_that_joins_is_a_member() -> None:
    job = without_worker_1()
    job.state.expect(1, 1, 5.0)
    line = appear(job, 6.0)
    job.greet(1, incarnation=1, now=8.0)
    job.stop(0, 9, view=2)
    job.stop(2, 9, view=2)
    assert job.view(1)["members"] == [0, 1, 2]
    job.state.disconnected(line, 9.0, "its connection closed")
    job.state.tick(10.0)
    assert not losses(job)


def test_a_replacement_whose_connection_ends_is_lost() -> None:
    job = without_worker_1()
    line = appear(job, 6.0)
    job.state.disconnected(line, 7.0, "its connection closed")
    assert losses(job) == [(1, 1, "its connection closed", True)]


def test_the_coordinator_itself_was_stopped() -> None:
    job = without_worker_1()
    appear(job, 6.0)
    job.state.excuse_silence(50.0)
    job.state.tick(59.0)
    assert not losses(job)


def test_a_hello_is_enough() -> None:
    """A replacement that does not appear, such as one of TF_CONFIG, may join all the same."""
    job = without_worker_1()
    line = Line()
    hello = Hello(index=1, count=3, incarnation=1, address="h:1", facts={"same": {"script": "a"}})
    job.state.receive(line, hello, 8.0)
    assert 1 not in job.state._newcomers
