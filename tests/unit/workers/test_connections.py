"""Connections between workers: who is let in."""

from __future__ import annotations

import errno
import hashlib
import hmac
import logging
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from evener.workers.connections import Authenticator, Listener, WrongSecret, connect, introduce

SECRET = b"secret"


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener("127.0.0.1", SECRET)
    yield made
    made.close()


def soon() -> float:
    return time.monotonic() + 20.0


def connected_to(listener: Listener, *, index: int = 1, view: int = 1) -> socket.socket:
    hello = {"view": view, "index": index}
    return connect(f"127.0.0.1:{listener.port}", SECRET, hello, soon())


def test_a_worker_is_known_by_its_view_and_number(listener: Listener) -> None:
    made = [connected_to(listener, view=2, index=index) for index in (1, 3)]
    for index, connection in zip((3, 1), reversed(made), strict=True):
        with listener.take(2, index, soon()) as taken, connection:
            connection.sendall(b"%d" % index)
            assert taken.recv(8) == b"%d" % index


def test_another_secret_is_refused_on_both_sides(listener: Listener) -> None:
    with pytest.raises(WrongSecret):
        connect(f"127.0.0.1:{listener.port}", b"other", {"view": 1, "index": 1}, soon())
    with pytest.raises(TimeoutError, match="worker 1"):
        listener.take(1, 1, time.monotonic())
    # One who waits is woken when it closes.
    listener.close()
    with pytest.raises(ConnectionError, match="closed"):
        listener.take(1, 1, soon())


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        connect(f"127.0.0.1:{port}", SECRET, {"view": 1, "index": 1}, soon())


def test_connections_of_earlier_views_are_closed(listener: Listener) -> None:
    early, late = (connected_to(listener, view=view) for view in (1, 2))
    with early, late, listener.take(2, 1, soon()):
        # The connection of view 1 may arrive behind that of view 2: wait for it.
        with listener._changed:
            assert listener._changed.wait_for(lambda: (1, 1) in listener._arrived, 20.0)
        listener.end(1)
        early.settimeout(20.0)
        assert early.recv(1) == b""


class Server:
    """Server whose clients authenticate, with those that it has admitted."""

    def __init__(self) -> None:
        server = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._address: tuple[str, int] = server.getsockname()
        self.admitted: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
        self.authenticator = Authenticator(server, SECRET, self.admitted.put)

    def dialled(self) -> socket.socket:
        return socket.create_connection(self._address, timeout=20.0)

    def admits(self, client: socket.socket) -> bool:
        """Wait for the next connection that is admitted; return whether it is that of a client."""
        with self.admitted.get(timeout=20.0) as admitted:
            return admitted.getpeername() == client.getsockname()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.authenticator.close()


def proof(role: bytes, *numbers: bytes) -> bytes:
    return hmac.new(SECRET, role + b"".join(numbers), hashlib.sha256).digest()


def between(connected: socket.socket, before: Callable[[bytes], object]) -> Any:
    """Return a connection with a function that is called in front of each message it sends."""

    def sendall(data: bytes) -> None:
        before(data)
        connected.sendall(data)

    return SimpleNamespace(recv=connected.recv, sendall=sendall)


def test_strangers_cost_a_bounded_number_of_descriptors_and_no_threads(listener: Listener) -> None:
    before = threading.active_count()
    with ExitStack() as stack:
        strangers = [
            stack.enter_context(socket.create_connection(("127.0.0.1", listener.port), 20.0))
            for _ in range(300)
        ]
        # The oldest gave way: the server has closed them.
        assert [stranger.recv(1) for stranger in strangers[:150]] == [b""] * 150
        assert threading.active_count() <= before
        with connected_to(listener), listener.take(1, 1, soon()):
            pass


def test_strangers_do_not_push_out_a_member_that_has_greeted(server: Server) -> None:
    with ExitStack() as stack:

        def flood(message: bytes) -> None:
            if len(message) == 32:  # The answer to the server's challenge.
                strangers = [stack.enter_context(server.dialled()) for _ in range(300)]
                # The first ones have given way, so all are there.
                assert [stranger.recv(1) for stranger in strangers[:150]] == [b""] * 150

        member = stack.enter_context(server.dialled())
        introduce(between(member, flood), SECRET)
        assert server.admits(member)


def test_a_handshake_that_is_sent_again_admits_nobody(server: Server) -> None:
    sent: list[bytes] = []
    with server.dialled() as member, server.dialled() as copy:
        introduce(between(member, sent.append), SECRET)
        assert server.admits(member)
        copy.sendall(b"".join(sent))
        while copy.recv(1024):  # A challenge with another number, and the refusal.
            pass
    assert server.admitted.empty()


def test_the_proof_of_a_server_is_none_of_a_client(server: Server) -> None:
    with server.dialled() as stranger:
        stranger.sendall(b"evener 2" + bytes(32) + proof(b"hello", bytes(32)))
        stranger.sendall(stranger.recv(72, socket.MSG_WAITALL)[-32:])
        while stranger.recv(1024):
            pass
    assert server.admitted.empty()


def test_a_client_without_the_secret_is_sent_no_proof(server: Server) -> None:
    """Or it could try words as secrets, as often as it likes."""
    with server.dialled() as stranger:
        stranger.sendall(b"evener 2" + bytes(64))
        assert stranger.recv(1024, socket.MSG_WAITALL) == b"evener 2" + bytes(64)


def test_both_sides_prove_the_secret_by_sha256_over_both_numbers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        member = socket.create_connection(listening.getsockname(), timeout=20.0)
        accepted, _ = listening.accept()
    accepted.settimeout(20.0)
    seen: list[bool] = []

    def serve() -> None:
        greeting = accepted.recv(72, socket.MSG_WAITALL)
        own, theirs = b"s" * 32, greeting[8:40]
        seen.append(greeting[40:] == proof(b"hello", theirs))
        accepted.sendall(b"evener 2" + own + proof(b"server", theirs, own))
        seen.append(accepted.recv(32, socket.MSG_WAITALL) == proof(b"client", theirs, own))

    thread = threading.Thread(target=serve)
    with member, accepted:
        thread.start()
        introduce(member, SECRET)
        thread.join(20.0)
    assert seen == [True, True]


@pytest.fixture
def accept_errors(monkeypatch: pytest.MonkeyPatch) -> list[OSError]:
    """Return the errors that the next calls of `accept` raise, the last one first."""
    accept, errors = socket.socket.accept, []

    def failing(server: socket.socket) -> Any:
        if errors:
            raise errors.pop()
        return accept(server)

    monkeypatch.setattr(socket.socket, "accept", failing)
    return errors


def test_accepting_goes_on_after_errors(listener: Listener, accept_errors: list[OSError]) -> None:
    accept_errors += [OSError(errno.EMFILE, "no descriptors"), ConnectionAbortedError()]
    with connected_to(listener):
        listener.take(1, 1, soon()).close()
    assert not accept_errors


def test_a_stranger_gives_its_descriptor_to_one_who_waits(
    server: Server, accept_errors: list[OSError]
) -> None:
    with server.dialled() as stranger, server.dialled() as first:
        introduce(first, SECRET)
        assert server.admits(first)  # So the stranger before it is accepted.
        accept_errors.append(OSError(errno.EMFILE, "no descriptors"))
        with server.dialled() as member:
            introduce(member, SECRET)
            assert server.admits(member)
        assert stranger.recv(1) == b""


def test_a_connection_that_gets_no_thread_ends_alone(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        with connected_to(listener) as refused:
            assert refused.recv(1) == b""
    with connected_to(listener, index=2):
        listener.take(1, 2, soon()).close()


def test_a_stranger_that_says_nothing_is_dropped_in_time(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evener.workers.connections._HANDSHAKE_SECONDS", 0.0)
    with server.dialled() as stranger:
        assert stranger.recv(1) == b""


def test_who_is_refused_is_logged_once_in_a_while(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    names: list[str] = []
    for _ in range(5):
        with server.dialled() as stranger:
            names.append("{}:{}".format(*stranger.getsockname()))
            stranger.sendall(b"GET / HTTP/1.1")
            assert stranger.recv(1) == b""
    (record,) = caplog.records
    assert names[0] in record.getMessage()
    assert "another protocol" in record.getMessage()


def test_a_member_that_strangers_have_pushed_out_comes_again(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_first = iter([True, False])

    def greet(connected: socket.socket, secret: bytes) -> None:
        if next(is_first):
            raise ConnectionResetError
        introduce(connected, secret)

    monkeypatch.setattr("evener.workers.connections.introduce", greet)
    with connected_to(listener):
        listener.take(1, 1, soon()).close()
