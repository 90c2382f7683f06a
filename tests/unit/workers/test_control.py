"""The coordinator in the supervisor's process, with real members."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from evener.errors import RunError
from evener.workers.job import Job, job_from_environment
from evener.workers.member import Member
from evener.workers.messages import Ended, Event, Formed, Lost
from evener.workers.supervisor import (
    JobControl,
    LaunchSettings,
    WorkerCommand,
    seconds_to_end,
)

LONGEST_SECONDS = 60


@contextlib.contextmanager
def running(
    num_workers: int, heartbeat_seconds: float = 30.0
) -> Iterator[tuple[JobControl, queue.SimpleQueue[Event]]]:
    settings = LaunchSettings(
        workers=tuple(WorkerCommand(index=index, words=()) for index in range(num_workers)),
        environ={},
        logs=Path(),
        heartbeat_seconds=heartbeat_seconds,
        start_seconds=LONGEST_SECONDS,
        grace_seconds=7.0,
    )
    control = JobControl(settings, "127.0.0.1")
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    control.start(events.put)
    try:
        yield control, events
    finally:
        control.stop()


def job_of(control: JobControl, index: int, incarnation: int = 0) -> Job:
    job = job_from_environment(control.environment(index, incarnation, "127.0.0.1"))
    assert job is not None
    return job


def joined(job: Job) -> Member:
    member = Member(job, address="127.0.0.1:1", facts={}, on_view_over=lambda *_: None)
    member.join()
    return member


def assert_formed(event: Event) -> None:
    assert isinstance(event, Formed)
    assert event.view.members == (0,)


def test_workers_find_the_coordinator_by_their_environment() -> None:
    with running(2) as (control, _):
        job = job_of(control, 1, incarnation=3)
        assert (job.index, job.count, job.incarnation) == (1, 2, 3)
        assert job.coordinator.startswith("127.0.0.1:")
        assert not job.hosts_coordinator
        secrets = {job_of(control, index).secret for index in (0, 1)}
        assert len(secrets) == 1
    with running(2) as (control, _):
        assert job_of(control, 0).secret not in secrets


def test_a_patience_that_is_no_duration_is_refused_before_anything_starts() -> None:
    environ = {"EVENER_PATIENCE_SECONDS": "long"}
    with pytest.raises(RunError, match="RUN-056"):
        JobControl(LaunchSettings(workers=(), environ=environ, logs=Path()), "127.0.0.1")


def test_the_end_and_who_is_not_waited_for() -> None:
    with running(2) as (control, events):
        control.go_without(1)
        member = joined(job_of(control, 0))
        assert_formed(events.get(timeout=LONGEST_SECONDS))
        assert member.leave(5, {}) is None
        assert events.get(timeout=LONGEST_SECONDS) == Ended()


def test_a_worker_whose_connection_closes_may_end_by_itself() -> None:
    with running(1) as (control, events):
        member = joined(job_of(control, 0))
        assert_formed(events.get(timeout=LONGEST_SECONDS))
        member.close()
        lost = events.get(timeout=LONGEST_SECONDS)
        assert isinstance(lost, Lost)
        assert (lost.index, lost.incarnation) == (0, 0)
        assert seconds_to_end(lost, 0.0) > 0


FROZEN = """
import os, signal
from evener.workers.job import job_from_environment
from evener.workers.member import Member
job = job_from_environment(os.environ)
Member(job, address="127.0.0.1:1", facts={}, on_view_over=lambda: None).join()
os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_worker_that_froze_is_killed_at_once() -> None:
    with running(1, heartbeat_seconds=0.3) as (control, events):
        environ = {**os.environ, **control.environment(0, 0, "127.0.0.1")}
        with subprocess.Popen([sys.executable, "-c", FROZEN], env=environ) as worker:
            assert_formed(events.get(timeout=LONGEST_SECONDS))
            lost = events.get(timeout=LONGEST_SECONDS)
            worker.kill()
        assert isinstance(lost, Lost)
        assert seconds_to_end(lost, 7.0) == 0


@pytest.mark.parametrize("is_fault", [True, False])
def test_a_silent_worker_is_killed_at_once_unless_others_have_finished(is_fault: bool) -> None:
    silent = Lost(index=0, incarnation=0, why="it was silent for 10 seconds", is_fault=is_fault)
    assert seconds_to_end(silent, 7.0) == (0.0 if is_fault else 7.0)
