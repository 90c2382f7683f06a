"""Members in processes of their own, which are killed or stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from queue import SimpleQueue

import pytest

from evener.workers.coordinator import Coordinator
from evener.workers.messages import Event, Formed, Lost

_PROGRAM = """
import sys
from evener.workers.job import Job
from evener.workers.member import Member
job = Job(index=int(sys.argv[2]), count=2, coordinator=sys.argv[1], secret=b"secret",
          hosts_coordinator=False, host="127.0.0.1", incarnation=0, heartbeat_seconds=2.0,
          start_seconds=30.0)
member = Member(job, address=f"host:{job.index}", facts={}, on_view_over=lambda: None)
member.join()
sys.stdin.read(1)
print(member.next_view(5).members, flush=True)
"""


@pytest.fixture
def events() -> SimpleQueue[Event]:
    return SimpleQueue()


@pytest.fixture
def members(events: SimpleQueue[Event]) -> Iterator[list[subprocess.Popen[bytes]]]:
    coordinator = Coordinator(
        2, b"secret", heartbeat_seconds=2.0, start_seconds=30.0, on_event=events.put
    )
    coordinator.start()
    made = [
        subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, coordinator.address, str(index)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for index in range(2)
    ]
    yield made
    for process in made:
        process.kill()
        process.communicate()
    coordinator.stop()


@pytest.mark.parametrize(
    ("sent", "why"), [(signal.SIGKILL, "connection closed"), (signal.SIGSTOP, "silent for 2")]
)
def test_the_others_go_on_without_it(
    sent: signal.Signals,
    why: str,
    members: list[subprocess.Popen[bytes]],
    events: SimpleQueue[Event],
) -> None:
    assert isinstance(events.get(timeout=30), Formed)
    os.kill(members[1].pid, sent)
    lost = events.get(timeout=30)
    assert isinstance(lost, Lost)
    assert lost.index == 1
    assert why in lost.why
    assert members[0].stdin is not None
    members[0].stdin.write(b"x")
    members[0].stdin.flush()
    assert members[0].stdout is not None
    assert members[0].stdout.readline() == b"(0,)\n"
