"""Connections between members and the coordinator: of JSON messages.

Both sides have proved that they know the secret of the job. What they send afterwards is neither
encrypted nor signed, so it belongs on a private network.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any, cast

LARGEST_MESSAGE = 64 * 2**20
"""Bytes of the largest message; a longer one ends the connection."""


class Channel:
    """A connection that several threads send by, and one thread reads; it closes the socket.

    `send` gives up after ``send_seconds`` if the other side does not take the message.
    """

    def __init__(self, connected: socket.socket, *, send_seconds: float) -> None:
        connected.setblocking(True)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected
        self._set_timeout(socket.SO_SNDTIMEO, send_seconds)
        # A descriptor of its own: the socket stays to interrupt a thread that reads.
        self._connection: Connection = Connection(os.dup(connected.fileno()))
        self._sending = threading.Lock()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message; nothing is sent if it is no JSON (TypeError, ValueError).

        A connection that ends, or a message that is not taken in time, raises OSError.
        """
        data = json.dumps(message).encode()
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
        """Wait for the next message; ValueError if it is no JSON object.

        A connection that ends raises OSError or EOFError.
        """
        value = json.loads(self._connection.recv_bytes(LARGEST_MESSAGE))
        if not isinstance(value, dict):
            raise ValueError(f"the message is a {type(value).__name__}, not an object")
        return cast("dict[str, Any]", value)

    def finish_sending(self) -> None:
        """Tell the other side that no more messages come."""
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

    def _set_timeout(self, option: int, seconds: float) -> None:
        whole = int(seconds)
        # At least a microsecond: zero would mean no limit.
        micro = max(int((seconds - whole) * 1e6), int(0 < seconds < 1))
        self._socket.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", whole, micro))
