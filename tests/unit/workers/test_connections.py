"""Connections between workers: who is let in."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from evener.workers.connections import Listener, connect

SECRET = b"secret"


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener("127.0.0.1", SECRET)
    yield made
    made.close()


def soon() -> float:
    return time.monotonic() + 20.0


def address_of(listener: Listener) -> str:
    return f"127.0.0.1:{listener.port}"


def test_a_worker_is_known_by_its_view_and_number(listener: Listener) -> None:
    made = [
        connect(address_of(listener), SECRET, view=2, index=index, deadline=soon())
        for index in (1, 3)
    ]
    for index, connection in zip((3, 1), reversed(made), strict=True):
        with listener.take(2, index, soon()) as taken, connection:
            connection.sendall(b"%d" % index)
            assert taken.recv(8) == b"%d" % index


def test_another_secret_is_refused_on_both_sides(listener: Listener) -> None:
    with pytest.raises(ConnectionError):
        connect(address_of(listener), b"other", view=1, index=1, deadline=soon())
    with pytest.raises(TimeoutError, match="worker 1"):
        listener.take(1, 1, time.monotonic())


def test_a_listener_with_another_secret_is_not_trusted() -> None:
    """The answer to a proof does not prove that the other side knows the secret."""
    other = Listener("127.0.0.1", b"other")
    try:
        with pytest.raises(ConnectionError):
            connect(address_of(other), SECRET, view=1, index=1, deadline=soon())
    finally:
        other.close()


def test_strangers_keep_nobody_waiting(listener: Listener) -> None:
    strangers = [socket.create_connection(("127.0.0.1", listener.port)) for _ in range(5)]
    try:
        strangers[0].sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
        made = connect(address_of(listener), SECRET, view=1, index=1, deadline=soon())
        with made, listener.take(1, 1, soon()):
            pass
    finally:
        for stranger in strangers:
            stranger.close()


def test_a_worker_that_does_not_come(listener: Listener) -> None:
    with pytest.raises(TimeoutError, match="worker 4"):
        listener.take(1, 4, time.monotonic())


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        connect(f"127.0.0.1:{port}", SECRET, view=1, index=1, deadline=soon())


def test_one_who_waits_is_woken_when_the_listener_closes(listener: Listener) -> None:
    listener.close()
    with pytest.raises(ConnectionError, match="closed"):
        listener.take(1, 1, soon())


def test_connections_of_earlier_views_are_closed(listener: Listener) -> None:
    early = connect(address_of(listener), SECRET, view=1, index=1, deadline=soon())
    late = connect(address_of(listener), SECRET, view=2, index=1, deadline=soon())
    taken = listener.take(2, 1, soon())
    with early, late, taken:
        # The connection of view 1 may arrive behind that of view 2: wait for it.
        with listener._changed:
            assert listener._changed.wait_for(lambda: (1, 1) in listener._arrived, 20.0)
        listener.end(1)
        early.settimeout(20.0)
        assert early.recv(1) == b""
