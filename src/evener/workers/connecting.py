"""Connections to the coordinator of a job."""

from __future__ import annotations

import itertools
import socket
import threading
import time

from evener.workers import faults
from evener.workers.addresses import split_address
from evener.workers.channel import Channel
from evener.workers.connections import NoPeer, WrongSecret, introduce
from evener.workers.job import Job

_LONGEST_PAUSE = 1.0
_ANSWER_SECONDS = 5.0


def connect(job: Job, closed: threading.Event) -> Channel:
    """Return a channel to the coordinator; retry for ``start_seconds``, or until ``closed``."""
    address, seconds = job.coordinator, job.start_seconds
    deadline = time.monotonic() + seconds
    for attempt in itertools.count():
        left = min(max(deadline - time.monotonic(), 0.01), _ANSWER_SECONDS)
        try:
            return _dial(job, left)
        except WrongSecret:
            raise faults.wrong_secret(address) from None
        except NoPeer as error:
            raise faults.no_coordinator(address) from error
        except OSError as error:
            reason = getattr(error, "strerror", None) or str(error) or "the connection closed"
        pause = min(0.1 * 1.5 ** min(attempt, 20), _LONGEST_PAUSE)
        if time.monotonic() + pause >= deadline:
            raise faults.not_reached(address, seconds, reason)
        if closed.wait(pause):
            raise faults.closed(job.index)
    raise AssertionError("the loop has no end of its own")


def _dial(job: Job, seconds: float) -> Channel:
    connected = socket.create_connection(split_address(job.coordinator, "coordinator"), seconds)
    try:
        if connected.getsockname() == connected.getpeername():
            # TCP connects a port to itself where nothing listens and the system drew the same port.
            raise ConnectionRefusedError("nothing listens there")
        introduce(connected, job.secret)
        return Channel(connected, send_seconds=job.heartbeat_seconds)
    except BaseException:
        connected.close()
        raise
