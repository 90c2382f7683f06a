"""Connections between workers, each of which proves that it knows the secret of the job."""

from __future__ import annotations

import contextlib
import hmac
import json
import queue
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

_NONCE = 32
_LENGTH = 8
_HANDSHAKE_SECONDS = 20.0
_RETRY_SECONDS = 0.05
_BUFFER = 4 << 20
"""Bytes that the system holds for each direction of a connection."""


class Listener:
    """Socket on which a worker takes the connections of the others.

    Args:
        host: Address to listen on.
        secret: Secret of the job.

    Attributes:
        answer: Function that answers the question of a worker that is no member; see `ask`.
    """

    def __init__(self, host: str, secret: bytes) -> None:
        self._secret = secret
        self.answer: Callable[[Any], bytes] | None = None
        self._socket = socket.create_server((host, 0), backlog=128)
        self._arrived: dict[tuple[int, int], socket.socket] = {}
        self._failed: dict[tuple[int, int], OSError] = {}
        self._over = 0
        self._changed = threading.Condition()
        self._is_closed = False
        threading.Thread(target=self._accept, name="evener-listener", daemon=True).start()

    @property
    def port(self) -> int:
        """The port of the socket."""
        return self._socket.getsockname()[1]

    def reach(self, address: str, *, view: int, index: int, peer: int, deadline: float) -> None:
        """Connect to the listener of another worker, in a thread: `take` returns the connection.

        Args:
            address: Address of its listener.
            view: Number of the view for which the connection is made.
            index: Number of this worker.
            peer: Number of the other worker.
            deadline: Time of `time.monotonic` until which it is tried.
        """

        def run() -> None:
            try:
                made = connect(address, self._secret, view=view, index=index, deadline=deadline)
            except OSError as error:
                with self._changed:
                    self._failed[view, peer] = error
                    self._changed.notify_all()
                return
            self._keep((view, peer), made)

        threading.Thread(target=run, name="evener-connect", daemon=True).start()

    def take(self, view: int, index: int, deadline: float) -> socket.socket:
        """Return the connection with a worker for a view.

        Args:
            view: Number of the view.
            index: Number of the worker.
            deadline: Time of `time.monotonic` until which it may come.

        Raises:
            OSError: If it does not come, or need not come any more: the view is over.
        """
        key = (view, index)
        with self._changed:
            self._changed.wait_for(
                lambda: key in self._arrived or key in self._failed or not self._wants(view),
                deadline - time.monotonic(),
            )
            if key in self._arrived:
                return self._arrived.pop(key)
            if key in self._failed:
                raise self._failed[key]
            if self._is_closed:
                raise ConnectionError("the listener is closed")
            if self.is_over(view):
                raise ConnectionError("the view is over")
            raise TimeoutError(f"worker {index} has not connected")

    def end(self, view: int) -> None:
        """End a view and all before: their connections that nobody has taken are closed."""
        with self._changed:
            self._over = max(self._over, view)
            for key in [key for key in self._arrived if key[0] <= view]:
                self._arrived.pop(key).close()
            for key in [key for key in self._failed if key[0] <= view]:
                del self._failed[key]
            self._changed.notify_all()

    def is_over(self, view: int) -> bool:
        """Return whether a view has ended."""
        return view <= self._over

    def close(self) -> None:
        """Stop listening."""
        with self._changed:
            self._is_closed = True
            for arrived in self._arrived.values():
                arrived.close()
            self._arrived.clear()
            self._changed.notify_all()
        with contextlib.suppress(OSError):
            # Otherwise the thread that accepts would wait on.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._socket.accept()
            except OSError:
                return
            # A stranger who says nothing keeps nobody waiting.
            threading.Thread(target=self._receive, args=(accepted,), daemon=True).start()

    def _receive(self, accepted: socket.socket) -> None:
        try:
            accepted.settimeout(_HANDSHAKE_SECONDS)
            _prove(accepted, self._secret, is_server=True)
            hello = json.loads(_read(accepted, int.from_bytes(_read(accepted, _LENGTH), "big")))
            if "question" in hello:
                with accepted:
                    found = b"" if self.answer is None else self.answer(hello["question"])
                    accepted.sendall(len(found).to_bytes(_LENGTH, "big") + found)
                return
            key = (int(hello["view"]), int(hello["index"]))
        except (OSError, ValueError, KeyError, TypeError):
            accepted.close()
            return
        self._keep(key, accepted)

    def _keep(self, key: tuple[int, int], connection: socket.socket) -> None:
        with self._changed:
            if not self._wants(key[0]):
                connection.close()
                return
            self._arrived[key] = connection
            self._changed.notify_all()

    def _wants(self, view: int) -> bool:
        return not self._is_closed and not self.is_over(view)


def connect(
    address: str, secret: bytes, *, view: int, index: int, deadline: float
) -> socket.socket:
    """Connect to the listener of another worker.

    Args:
        address: Address of its listener.
        secret: Secret of the job.
        view: Number of the view for which the connection is made.
        index: Number of this worker.
        deadline: Time of `time.monotonic` until which it is tried.

    Raises:
        OSError: If it cannot be reached, or does not know the secret.
    """
    return _open(address, secret, {"view": view, "index": index}, deadline)


def ask(
    addresses: Sequence[str], secret: bytes, question: Any, *, seconds: float, patience: float
) -> tuple[str, bytes]:
    """Ask several listeners for the same; return the first answer that is not empty, and whose.

    The next one is asked when the one before has failed, or has not answered for a while: it may be
    frozen.

    Args:
        addresses: Addresses of the listeners, in the order in which they are asked.
        secret: Secret of the job.
        question: A JSON value.
        seconds: Time that each may take.
        patience: Time after which the next one is asked too.

    Raises:
        OSError: If none of them answers, with the reason of each.
    """
    answers: queue.SimpleQueue[tuple[str, bytes | Exception]] = queue.SimpleQueue()

    def run(address: str) -> None:
        try:
            answers.put((address, _ask(address, secret, question, time.monotonic() + seconds)))
        except (OSError, ValueError) as error:
            # A wrong address too: nobody would wait for a thread that has ended.
            answers.put((address, error))

    problems: list[str] = []
    waiting = deque(addresses)
    while len(problems) < len(addresses):
        if waiting:
            asked = waiting.popleft()
            threading.Thread(target=run, args=(asked,), name="evener-ask", daemon=True).start()
        try:
            address, found = answers.get(timeout=patience if waiting else None)
        except queue.Empty:
            continue
        if isinstance(found, bytes) and found:
            return address, found
        problems.append(f"{address}: {found or 'it keeps no results'}")
    raise ConnectionError("; ".join(problems))


def _ask(address: str, secret: bytes, question: Any, deadline: float) -> bytes:
    with _open(address, secret, {"question": question}, deadline) as connection:
        connection.settimeout(max(deadline - time.monotonic(), 0.01))
        return _read(connection, int.from_bytes(_read(connection, _LENGTH), "big"))


def _open(address: str, secret: bytes, hello: Any, deadline: float) -> socket.socket:
    host, _, port = address.rpartition(":")
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"{address} does not answer")
        try:
            made = socket.create_connection((host, int(port)), timeout=min(left, 10.0))
            break
        except ConnectionRefusedError:
            raise
        except TimeoutError:
            time.sleep(_RETRY_SECONDS)
    try:
        made.settimeout(min(left, _HANDSHAKE_SECONDS))
        _prove(made, secret, is_server=False)
        text = json.dumps(hello).encode()
        made.sendall(len(text).to_bytes(_LENGTH, "big") + text)
    except BaseException:
        made.close()
        raise
    return made


def tune(connection: socket.socket) -> None:
    """Prepare a connection for large arrays and short waits; it does not block from then on."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        connection.setsockopt(socket.SOL_SOCKET, option, _BUFFER)
    connection.setblocking(False)


def close_all(connections: Sequence[socket.socket]) -> None:
    """Close connections, so that whoever waits for them sees their end."""
    for connection in connections:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()


def _prove(connection: socket.socket, secret: bytes, *, is_server: bool) -> None:
    """Prove to each other that both sides know the secret, which is not sent.

    Raises:
        ConnectionError: If the other side does not know it.
    """
    mine = secrets.token_bytes(_NONCE)
    connection.sendall(mine)
    theirs = _read(connection, _NONCE)
    own, other = (b"server", b"client") if is_server else (b"client", b"server")
    connection.sendall(hmac.digest(secret, own + theirs + mine, "sha256"))
    answer = _read(connection, _NONCE)
    if not hmac.compare_digest(answer, hmac.digest(secret, other + mine + theirs, "sha256")):
        raise ConnectionError("the other side does not know the secret of the job")


def _read(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        received = connection.recv(min(count - len(data), 1 << 20))
        if not received:
            raise ConnectionError("the other side has closed the connection")
        data += received
    return bytes(data)
