"""Connections between processes of a job, each of which has proved that it knows the secret.

`Authenticator` accepts, `introduce` connects; `Channel` carries JSON messages between members and
the coordinator, `Listener` the connections of workers for a view. What is sent afterwards is
neither encrypted nor signed, so it belongs on a private network.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import os
import queue
import secrets
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, cast

import msgspec

from evener.workers.job import join_address

LARGEST_MESSAGE = 64 * 2**20
"""Bytes of the largest message; a longer one ends the connection."""
_LOGGER = logging.getLogger(__name__)
_MAGIC = b"evener 2"
_NONCE = 32
_GREETING = len(_MAGIC) + 2 * _NONCE
_LENGTH = 8
_HANDSHAKE_SECONDS = 20.0
_MOST_STRANGERS, _MOST_GREETED = 128, 1024
_REPORT_SECONDS = 30.0
_RETRY_SECONDS = 0.05


def start_thread(name: str, work: Callable[..., object], *words: Any) -> threading.Thread:
    """Start a thread that does not keep the process from its end."""
    thread = threading.Thread(target=work, name=name, args=words, daemon=True)
    thread.start()
    return thread


class Channel:
    """A connection that several threads send by, and one thread reads; it closes the socket."""

    def __init__(self, connected: socket.socket, *, send_seconds: float) -> None:
        connected.setblocking(True)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        whole = int(send_seconds)
        # At least a microsecond: zero would mean no limit.
        micro = max(int((send_seconds - whole) * 1e6), int(0 < send_seconds < 1))
        limit = struct.pack("@ll", whole, micro)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self._socket = connected
        # A descriptor of its own: the socket stays to interrupt a thread that reads.
        self._connection: Connection = Connection(os.dup(connected.fileno()))
        self._sending = threading.Lock()

    def send(self, message: Mapping[str, Any] | msgspec.Struct) -> None:
        """Send a message; nothing is sent if it is no JSON (TypeError, ValueError)."""
        data = json.dumps(msgspec.to_builtins(message)).encode()
        with self._sending:
            try:
                self._connection.send_bytes(data)
            except BlockingIOError:
                # A part of the message is sent: nothing can follow it.
                self.interrupt()
                raise

    def poll(self, seconds: float) -> bool:
        """Wait some seconds for a message, or the end of the connection."""
        # Once more at the end: this process may have been stopped all the time.
        return self._connection.poll(seconds) or self._connection.poll(0)

    def receive(self) -> dict[str, Any]:
        """Wait for the next message; ValueError if it is no JSON object."""
        value = json.loads(self._connection.recv_bytes(LARGEST_MESSAGE))
        if not isinstance(value, dict):
            raise ValueError(f"the message is a {type(value).__name__}, not an object")
        return cast("dict[str, Any]", value)

    def finish_sending(self) -> None:
        self._shut(socket.SHUT_WR)

    def interrupt(self) -> None:
        """End the connection; a thread that reads or sends gets an error."""
        self._shut(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection and free it; called by the thread that reads."""
        self.interrupt()
        with self._sending:
            self._connection.close()
            self._socket.close()

    def _shut(self, direction: int) -> None:
        # It may have ended on its own, or be closed already.
        with contextlib.suppress(OSError):
            self._socket.shutdown(direction)


class WrongSecret(ConnectionError):
    """The other side has another secret."""


class NoPeer(ConnectionError):
    """The other side does not speak the protocol."""


@dataclass(slots=True, eq=False)
class _Handshake:
    connected: socket.socket
    address: str
    limit: float
    data: bytearray = field(default_factory=bytearray)
    nonces: bytes = b""  # Once the client has greeted.


class Authenticator:
    """Accepts connections, and passes on those whose other side knows the secret of the job.

    ::

        client                                        server
        magic, nonce c, HMAC(hello, c)      ------>
                                            <------   magic, nonce s, HMAC(server, c, s)
        HMAC(client, c, s)                  ------>

    One thread does all handshakes: a client costs a descriptor and 72 bytes until it is known. The
    oldest handshakes give way to new ones. Those of clients that greeted with the secret are
    counted apart, so strangers never take the place of members: a greeting may be a copy of an
    earlier one, so it proves nothing, but nobody makes one without the secret.
    """

    def __init__(
        self, server: socket.socket, secret: bytes, admit: Callable[[socket.socket], None]
    ) -> None:
        server.setblocking(False)
        self._server, self._secret, self._admit = server, secret, admit
        self._handshakes: dict[_Handshake, None] = {}  # The oldest first.
        self._selector = selectors.DefaultSelector()
        self._closing = threading.Event()
        self._num_problems, self._next_report = 0, 0.0
        self._thread = start_thread("evener-accept", self._run)

    def close(self) -> None:
        self._closing.set()
        with contextlib.suppress(OSError):
            # Otherwise the thread that accepts would wait on.
            self._server.shutdown(socket.SHUT_RDWR)
        if self._thread is not threading.current_thread():
            self._thread.join()
        self._server.close()

    def _run(self) -> None:
        with self._selector as selector:
            selector.register(self._server, selectors.EVENT_READ)
            while not self._closing.is_set():
                for key, _ in selector.select(1.0 if self._handshakes else None):
                    if key.fileobj is self._server:
                        self._accept()
                    elif key.data in self._handshakes:
                        self._go_on(key.data)
                now = time.monotonic()
                for late in [each for each in self._handshakes if each.limit <= now]:
                    self._refuse(late, f"it took more than {_HANDSHAKE_SECONDS:g} seconds")
            for each in self._handshakes:
                each.connected.close()

    def _accept(self) -> None:
        try:
            connected, address = self._server.accept()
        except BlockingIOError:
            return  # The client is gone.
        except OSError as error:
            # Out of descriptors, for example. Strangers have some; others may become free.
            if not self._closing.is_set() and not self._make_room(1, has_greeted=False):
                self._report(f"A connection cannot be accepted: {error}")
                self._closing.wait(0.1)
            return
        self._make_room(_MOST_STRANGERS, has_greeted=False)
        connected.setblocking(False)
        limit = time.monotonic() + _HANDSHAKE_SECONDS
        handshake = _Handshake(connected, join_address(*address[:2]), limit)
        self._handshakes[handshake] = None
        # A member greets as it connects: it is read in the next round, whoever comes behind it.
        self._selector.register(connected, selectors.EVENT_READ, handshake)

    def _go_on(self, handshake: _Handshake) -> None:
        """Read what has come of a handshake, and act on a message that is whole."""
        wanted = _NONCE if handshake.nonces else _GREETING
        try:
            received = handshake.connected.recv(wanted - len(handshake.data))
            handshake.data += received
            if not received:
                self._refuse(handshake, "it closed the connection")
            elif not handshake.nonces and not _MAGIC.startswith(handshake.data[: len(_MAGIC)]):
                self._refuse(handshake, "it speaks another protocol")
            elif len(handshake.data) == wanted:
                self._answer(handshake, bytes(handshake.data))
        except BlockingIOError:
            return
        except OSError as error:
            self._refuse(handshake, str(error))

    def _answer(self, handshake: _Handshake, data: bytes) -> None:
        connected, greeted, proof = handshake.connected, handshake.nonces, data[-_NONCE:]
        role, nonces = b"client" if greeted else b"hello", greeted or data[len(_MAGIC) : -_NONCE]
        if not hmac.compare_digest(proof, _proof(self._secret, role, nonces)):
            connected.send(_MAGIC + bytes(2 * _NONCE))
            self._refuse(handshake, "it does not know the secret of the job")
        elif not greeted:
            self._make_room(_MOST_GREETED, has_greeted=True)
            own = secrets.token_bytes(_NONCE)
            handshake.nonces, handshake.data = nonces + own, bytearray()
            connected.send(_MAGIC + own + _proof(self._secret, b"server", handshake.nonces))
        else:
            self._remove(handshake)
            try:
                connected.setblocking(True)
                self._admit(connected)
            except (OSError, RuntimeError) as error:
                # Out of descriptors or threads: the client may come again. A copy may be open.
                with contextlib.suppress(OSError):
                    connected.shutdown(socket.SHUT_RDWR)
                connected.close()
                self._report(f"The connection from {handshake.address} cannot be read: {error}")

    def _make_room(self, most: int, *, has_greeted: bool) -> bool:
        """End the oldest handshake of a kind if there are that many; return whether there were."""
        same = [each for each in self._handshakes if bool(each.nonces) == has_greeted]
        if len(same) >= most:
            self._refuse(same[0], "others came behind it, and it was not done")
        return len(same) >= most

    def _refuse(self, handshake: _Handshake, why: str) -> None:
        self._remove(handshake)
        # Before the client sees the end: what it reports then stands in the log already.
        self._report(f"The connection from {handshake.address} was refused: {why}")
        handshake.connected.close()

    def _remove(self, handshake: _Handshake) -> None:
        del self._handshakes[handshake]
        self._selector.unregister(handshake.connected)

    def _report(self, text: str) -> None:
        """Log a problem, at a bounded rate."""
        self._num_problems += 1
        if time.monotonic() >= self._next_report:
            _LOGGER.warning("%s (%d so far)", text, self._num_problems)
            self._next_report = time.monotonic() + _REPORT_SECONDS


def introduce(connected: socket.socket, secret: bytes) -> None:
    """Prove to an `Authenticator` that this side knows the secret, and let it prove the same.

    Raises OSError if the connection ends or times out; of its kinds, `WrongSecret` and `NoPeer` say
    that the other side has another secret, or is another program.
    """
    nonce = secrets.token_bytes(_NONCE)
    with contextlib.suppress(ConnectionError):
        # Another program may have closed it, behind an answer that is read next.
        connected.sendall(_MAGIC + nonce + _proof(secret, b"hello", nonce))
    if _read(connected, len(_MAGIC)) != _MAGIC:
        raise NoPeer("the answer has another form")
    nonces = nonce + _read(connected, _NONCE)
    if not hmac.compare_digest(_read(connected, _NONCE), _proof(secret, b"server", nonces)):
        raise WrongSecret("the other side has another secret")
    connected.sendall(_proof(secret, b"client", nonces))


def _proof(secret: bytes, role: bytes, nonces: bytes) -> bytes:
    return hmac.digest(secret, role + nonces, "sha256")


class Listener:
    """Socket on which a worker accepts the connections of the others, and answers `ask`."""

    def __init__(self, host: str, secret: bytes) -> None:
        self._secret = secret
        self.answer: Callable[[Any], bytes] | None = None
        # Connections by view and worker, or the error of those that `reach` could not make.
        self._arrived: dict[tuple[int, int], socket.socket | OSError] = {}
        self._over = 0
        self._changed = threading.Condition()
        self._is_closed = False
        server = socket.create_server((host, 0), backlog=1024)
        self.port: int = server.getsockname()[1]
        self._server = Authenticator(server, secret, self._admit)

    def reach(self, address: str, *, view: int, index: int, peer: int, deadline: float) -> None:
        """Connect to a peer's listener for a view, in a thread: `take` returns the connection."""

        def run() -> None:
            try:
                made = connect(address, self._secret, {"view": view, "index": index}, deadline)
            except OSError as error:
                made = error
            self._keep((view, peer), made)

        start_thread("evener-connect", run)

    def take(self, view: int, index: int, deadline: float) -> socket.socket:
        key = (view, index)
        with self._changed:
            self._changed.wait_for(
                lambda: key in self._arrived or self._is_closed or self.is_over(view),
                deadline - time.monotonic(),
            )
            arrived = self._arrived.pop(key, None)
            if isinstance(arrived, OSError):
                raise arrived
            if arrived is not None:
                return arrived
            if self._is_closed:
                raise ConnectionError("the listener is closed")
            if self.is_over(view):
                raise ConnectionError("the view is over")
            raise TimeoutError(f"worker {index} has not connected")

    def end(self, view: int) -> None:
        """End a view and all before: their connections that nobody has taken are closed."""
        with self._changed:
            self._over = max(self._over, view)
            self._drop([key for key in self._arrived if key[0] <= view])

    def is_over(self, view: int) -> bool:
        return view <= self._over

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._drop([*self._arrived])
        self._server.close()

    def _drop(self, keys: list[tuple[int, int]]) -> None:
        for key in keys:
            arrived = self._arrived.pop(key)
            if isinstance(arrived, socket.socket):
                arrived.close()
        self._changed.notify_all()

    def _admit(self, accepted: socket.socket) -> None:
        start_thread("evener-receive", self._receive, accepted)

    def _receive(self, accepted: socket.socket) -> None:
        try:
            accepted.settimeout(_HANDSHAKE_SECONDS)
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

    def _keep(self, key: tuple[int, int], connection: socket.socket | OSError) -> None:
        with self._changed:
            self._arrived[key] = connection
            if self._is_closed or self.is_over(key[0]):
                self._drop([key])
            self._changed.notify_all()


def ask(
    addresses: Sequence[str], secret: bytes, question: Any, *, seconds: float, patience: float
) -> tuple[str, bytes]:
    """Ask several listeners the same; return the first answer that is not empty, and its address.

    The next one is asked when the one before has failed, or takes longer than the patience. If none
    answers, OSError has the reason of each.
    """
    answers: queue.SimpleQueue[tuple[str, bytes | Exception]] = queue.SimpleQueue()

    def run(address: str) -> None:
        deadline = time.monotonic() + seconds
        try:
            with connect(address, secret, {"question": question}, deadline) as connection:
                connection.settimeout(max(deadline - time.monotonic(), 0.01))
                length = int.from_bytes(_read(connection, _LENGTH), "big")
                found = _read(connection, length)
            answers.put((address, found))
        except (OSError, ValueError) as error:
            # A wrong address too: nobody would wait for a thread that has ended.
            answers.put((address, error))

    problems: list[str] = []
    waiting = deque(addresses)
    while len(problems) < len(addresses):
        if waiting:
            start_thread("evener-ask", run, waiting.popleft())
        try:
            address, found = answers.get(timeout=patience if waiting else None)
        except queue.Empty:
            continue
        if isinstance(found, bytes) and found:
            return address, found
        problems.append(f"{address}: {found or 'it keeps no results'}")
    raise ConnectionError("; ".join(problems))


def connect(address: str, secret: bytes, hello: Any, deadline: float) -> socket.socket:
    """Connect to the `Listener` of another worker, and tell it what the connection is for."""
    host, _, port = address.rpartition(":")
    text = json.dumps(hello).encode()
    while (left := deadline - time.monotonic()) > 0:
        try:
            made = socket.create_connection((host, int(port)), timeout=min(left, 10.0))
        except TimeoutError:
            time.sleep(_RETRY_SECONDS)
            continue
        try:
            made.settimeout(min(left, _HANDSHAKE_SECONDS))
            introduce(made, secret)
            made.sendall(len(text).to_bytes(_LENGTH, "big") + text)
            return made
        except BaseException as error:
            made.close()
            # A flood of strangers may have pushed it out.
            if isinstance(error, WrongSecret | NoPeer) or not isinstance(error, ConnectionError):
                raise
        time.sleep(_RETRY_SECONDS)
    raise TimeoutError(f"{address} does not answer")


def _read(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        received = connection.recv(min(count - len(data), 1 << 20))
        if not received:
            raise ConnectionError("the other side has closed the connection")
        data += received
    return bytes(data)
