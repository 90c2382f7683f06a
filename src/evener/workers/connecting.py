"""Connections to the coordinator of a job."""

from __future__ import annotations

import itertools
import threading
import time
from multiprocessing import AuthenticationError

from evener.workers import faults
from evener.workers.channel import Channel, NoPeer, dial
from evener.workers.job import Job

_LONGEST_PAUSE = 1.0
_ANSWER_SECONDS = 5.0


def connect(job: Job, closed: threading.Event) -> Channel:
    """Return a channel to the coordinator, which is tried until the time for the start is over.

    Args:
        job: Part of this process in the job.
        closed: Set when this process gives up.

    Raises:
        RunError: RUN-061 to RUN-063 if the coordinator is not reached, has another secret, or is
            another program; RUN-076 if this process gives up.
    """
    address, seconds = job.coordinator, job.start_seconds
    deadline = time.monotonic() + seconds
    for attempt in itertools.count():
        left = max(deadline - time.monotonic(), 0.01)
        try:
            return _dial(job, min(left, _ANSWER_SECONDS))
        except (OSError, EOFError) as error:
            reason = getattr(error, "strerror", None) or str(error) or "the connection closed"
        pause = min(0.1 * 1.5 ** min(attempt, 20), _LONGEST_PAUSE)
        if time.monotonic() + pause >= deadline:
            raise faults.not_reached(address, seconds, reason)
        if closed.wait(pause):
            raise faults.closed(job.index)
    raise AssertionError("the loop has no end of its own")


def _dial(job: Job, seconds: float) -> Channel:
    channel = dial(job.coordinator, seconds, send_seconds=job.heartbeat_seconds)
    try:
        channel.introduce(job.secret, seconds)
    except BaseException as error:
        channel.close()
        if isinstance(error, AuthenticationError):
            raise faults.wrong_secret(job.coordinator) from None
        if isinstance(error, NoPeer):
            raise faults.no_coordinator(job.coordinator) from error
        raise
    return channel
