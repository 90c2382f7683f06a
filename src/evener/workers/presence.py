"""Presence of a replacement that runs the program and has not joined the others yet."""

from __future__ import annotations

import contextlib
import threading

from evener.workers.channel import Channel
from evener.workers.connecting import connect
from evener.workers.job import Job
from evener.workers.messages import BEATS, Appear, Beat, encode


class Presence:
    """Reports to the coordinator that this process is alive, on a connection of its own."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._closed = threading.Event()
        self._channel: Channel = connect(job, self._closed)
        self._channel.send(encode(Appear(index=job.index, incarnation=job.incarnation)))
        self._thread = threading.Thread(target=self._beat, name="evener-presence-beat", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the connection."""
        self._closed.set()
        self._thread.join()

    def _beat(self) -> None:
        # A connection that is lost is the coordinator's to judge.
        with contextlib.suppress(OSError):
            while not self._closed.wait(self._job.heartbeat_seconds / BEATS):
                self._channel.send(encode(Beat()))
        self._channel.close()
