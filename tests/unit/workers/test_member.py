"""Members and their coordinator, over connections."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from evener.errors import RunError
from evener.workers.coordinator import Coordinator
from evener.workers.faults import coordinator_gone
from evener.workers.job import Job
from evener.workers.late import ends_with_the_job
from evener.workers.member import Member
from evener.workers.messages import Ended, Event, Formed

SECRET = b"a secret of the job"


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    made = Coordinator(2, SECRET, heartbeat_seconds=30.0, start_seconds=30.0)
    made.start()
    yield made
    made.stop()
    left = [t.name for t in threading.enumerate() if t.name.startswith("evener-coordinator")]
    assert not left


def member(
    coordinator: str, index: int, *, over: Callable[[], None] = lambda: None, **others: Any
) -> Member:
    usual = {"count": 2, "incarnation": 0, "heartbeat_seconds": 30.0, "start_seconds": 20.0}
    job = Job(
        index=index,
        coordinator=coordinator,
        hosts_coordinator=False,
        host="127.0.0.1",
        **{"secret": SECRET, **usual, **others},
    )
    return Member(job, address=f"host:{index}", facts={}, on_view_over=over)


def both(first: Callable[[], Any], second: Callable[[], Any]) -> list[Any]:
    """Call two functions at the same time."""
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(each) for each in (first, second)]
        return [future.result(timeout=60) for future in futures]


def test_two_members_from_joining_to_leaving(coordinator: Coordinator) -> None:
    members = [member(coordinator.address, index) for index in range(2)]
    views = both(members[0].join, members[1].join)
    assert [view.members for view in views] == [(0, 1)] * 2
    values = both(
        lambda: members[0].exchange("k", {"a": 1}, 20.0), lambda: members[1].exchange("k", 2, 20.0)
    )
    assert values == [[{"a": 1}, 2]] * 2
    view, exchanged = member(coordinator.address, 1).look()
    assert view == views[0]
    assert exchanged == {"k": [{"a": 1}, 2]}
    assert both(lambda: members[0].leave(3, {}), lambda: members[1].leave(3, {})) == [None, None]
    with pytest.raises(RunError, match="RUN-076"):
        members[0].exchange("late", 1, 1.0)


def test_a_member_that_closes_ends_the_view(coordinator: Coordinator) -> None:
    is_over = threading.Event()
    members = [member(coordinator.address, 0, over=is_over.set), member(coordinator.address, 1)]
    both(members[0].join, members[1].join)
    members[1].close()
    assert is_over.wait(20)
    assert members[0].next_view(4).members == (0,)
    members[0].close()


def test_a_coordinator_that_is_gone(coordinator: Coordinator) -> None:
    # What waits in a step for others ends, too: collectives would wait for their patience.
    is_over = threading.Event()
    members = [member(coordinator.address, index, over=is_over.set) for index in range(2)]
    both(members[0].join, members[1].join)
    coordinator.stop()
    assert is_over.wait(20)
    for each in members:
        with pytest.raises(RunError, match="RUN-072"):
            each.exchange("k", 1, 20.0)
        each.close()


def test_another_secret(coordinator: Coordinator) -> None:
    with pytest.raises(RunError, match="RUN-062"):
        member(coordinator.address, 0, secret=b"another", start_seconds=0.5).join()


def test_nobody_answers() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(RunError, match="RUN-061"):
        member(address, 0, start_seconds=0.5).join()


def test_another_program_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            connected, _ = server.accept()
            with connected:
                connected.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=greet, daemon=True).start()
        with pytest.raises(RunError, match="RUN-063"):
            member(f"127.0.0.1:{server.getsockname()[1]}", 0).join()


def test_a_replacement_is_seen_from_its_start_until_it_joins() -> None:
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    started = Coordinator(1, SECRET, heartbeat_seconds=0.4, start_seconds=30.0)
    started.start(events.put)
    try:
        newcomer = member(started.address, 0, incarnation=1, heartbeat_seconds=0.4, count=1)
        newcomer.appear()
        with pytest.raises(queue.Empty):
            # It beats: three times the silence after which it would be lost.
            events.get(timeout=1.2)
        newcomer.join()
        assert isinstance(events.get(timeout=20), Formed)
        newcomer.leave(1, {})
        assert isinstance(events.get(timeout=20), Ended)
        assert not [t for t in threading.enumerate() if t.name.startswith("evener-presence")]
    finally:
        started.stop()


def test_a_replacement_that_ends_before_it_joins(coordinator: Coordinator) -> None:
    newcomer = member(coordinator.address, 0, incarnation=1)
    newcomer.appear()
    newcomer.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("evener-presence")]


def test_a_port_in_use(coordinator: Coordinator) -> None:
    other = Coordinator(
        2, SECRET, address=coordinator.address, heartbeat_seconds=1.0, start_seconds=1.0
    )
    with pytest.raises(RunError, match="RUN-060"):
        other.start()


def test_a_replacement_that_comes_when_all_have_finished(
    coordinator: Coordinator, capsys: pytest.CaptureFixture[str]
) -> None:
    members = [member(coordinator.address, index) for index in range(2)]
    both(members[0].join, members[1].join)
    both(lambda: members[0].leave(3, {}), lambda: members[1].leave(3, {}))
    replacement = member(coordinator.address, 1)
    with pytest.raises(RunError, match="RUN-074"):
        replacement.look()
    with pytest.raises(SystemExit) as ended, ends_with_the_job():
        replacement.look()
    assert ended.value.code == 0
    assert "Worker 1 comes too late" in capsys.readouterr().err
    with pytest.raises(RunError, match="RUN-072"), ends_with_the_job():
        raise coordinator_gone("127.0.0.1:1", "nobody listens")
