"""The driver's side of a worker on a node of Ray."""

from __future__ import annotations

import signal
import threading
import time
from typing import Any

from evener.errors import EvenerError
from evener.launch.console import Source
from evener.launch.on_ray import faults
from evener.launch.on_ray.node import Batch
from evener.launch.placement import Start

_POLL_SECONDS = 0.5
_KILL_SECONDS = 5.0
"""Time for an actor to report the end of a process that was killed; then the actor is killed."""


class _GivenUp(Exception):
    """The worker is not waited for any more."""


class RayWorker:
    """Follows the actor of a worker to its end, in a thread.

    The actor of `NodeWorker` may not be placed yet: Ray has ``place_seconds`` to place it.
    """

    def __init__(
        self, start: Start, ray: Any, actor: Any, *, folder: str, place_seconds: float
    ) -> None:
        self._start = start
        self._ray = ray
        self._actor = actor
        self._folder = folder
        self._place_seconds = place_seconds
        self._changed = threading.Condition()
        self._is_placed = False
        self._give_up_at: float | None = None
        self._code = -int(signal.SIGKILL)
        self._thread = threading.Thread(
            target=self._run, name=f"evener-worker-{start.source[0]}", daemon=True
        )
        self._thread.start()

    @property
    def source(self) -> Source:
        """Number and incarnation of the worker."""
        return self._start.source

    def send(self, number: int) -> None:
        """Send a signal to the worker; a worker without a place ends by it."""
        with self._changed:
            if not self._is_placed:
                self._code = -number
                self._give_up(0.0)
                return
        self._actor.send.remote(number)

    def kill(self) -> None:
        """Kill the worker and all processes of its group."""
        with self._changed:
            self._give_up(_KILL_SECONDS if self._is_placed else 0.0)
            if not self._is_placed:
                return
        self._actor.kill.remote()

    def join(self) -> None:
        """Wait until the worker has ended and `on_end` was called."""
        self._thread.join()

    def _give_up(self, seconds: float) -> None:
        if self._give_up_at is None:
            self._give_up_at = time.monotonic() + seconds
            self._changed.notify_all()

    def _run(self) -> None:
        code, why = self._followed()
        # Whatever was left is over with the actor; its resources are free for the replacement.
        self._ray.kill(self._actor)
        self._start.output.close()
        self._start.on_end(code, why)

    def _followed(self) -> tuple[int, str]:
        """Return the exit code of the worker, and a clause if the code does not say all."""
        try:
            return self._read_all(), ""
        except _GivenUp:
            return self._code, ""
        except TimeoutError:
            return self._code, f"was not placed by Ray within {self._place_seconds:g} seconds"
        except self._ray.exceptions.RayActorError as error:
            if self._is_placed:
                return self._code, f"was lost with its Ray actor ({faults.reason(error)})"
            return self._failed(faults.not_started("that Ray has chosen", faults.reason(error))), ""
        except self._ray.exceptions.RayTaskError as error:
            cause = error.cause
            if not isinstance(cause, EvenerError):
                cause = faults.not_started("that Ray has chosen", faults.reason(error))
            return self._failed(cause), ""
        except self._ray.exceptions.RayError as error:
            return self._code, f"was lost by Ray ({faults.reason(error)})"

    def _read_all(self) -> int:
        """Start the process, take its output, and return its exit code."""
        start, actor = self._start, self._actor
        host: str = self._get(actor.host.remote(), self._place_seconds)
        with self._changed:
            if self._give_up_at is not None:
                raise _GivenUp
            self._is_placed = True
        # Arguments of a method go to the actor alone. Those of its class, and the variables of its
        # environment, are kept by Ray and shown in its dashboard: they are no place for a secret.
        sent = dict(start.environ(host))
        pid = self._get(
            actor.start.remote(start.source, tuple(start.words[1:]), sent, self._folder)
        )
        start.output.begin(f"process {pid} on {host}")
        number = 1
        while True:
            batch = self._batch(number)
            for stream, line in batch.lines:
                start.output.line(stream, line)
            if batch.code is not None:
                return batch.code
            number += 1

    def _batch(self, number: int) -> Batch:
        while True:
            try:
                return self._get(self._actor.read.remote(number))
            except self._ray.exceptions.ActorUnavailableError:
                # The network is cut for now. Ray tells when the actor is dead.
                with self._changed:
                    if self._changed.wait_for(lambda: self._give_up_at is not None, _POLL_SECONDS):
                        raise _GivenUp from None

    def _get(self, answer: Any, seconds: float | None = None) -> Any:
        """Return the result of a call of the actor; TimeoutError if it takes longer."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while not self._ray.wait([answer], timeout=_POLL_SECONDS)[0]:
            now = time.monotonic()
            if self._give_up_at is not None and now >= self._give_up_at:
                raise _GivenUp
            if deadline is not None and now >= deadline:
                raise TimeoutError
        return self._ray.get(answer)

    def _failed(self, error: EvenerError) -> int:
        """Show an error as that of the worker, and return its exit code."""
        for line in str(error).splitlines():
            self._start.output.line("stderr", f"{line}\n".encode())
        return 1
