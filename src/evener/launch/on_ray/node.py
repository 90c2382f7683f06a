"""The process of a worker on a node of Ray. Ray makes an actor of the class here."""

from __future__ import annotations

import contextlib
import importlib
import os
import queue
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evener.launch.console import Source, Stream
from evener.launch.guard import Guard
from evener.launch.on_ray import faults
from evener.launch.on_ray.node_environ import node_environ
from evener.launch.process import WorkerProcess

NUM_THREADS = 4
"""Threads of an actor: one that reads, one that sends signals, and two for what comes late."""
_POLL_SECONDS = 5.0
_NUM_WAITING = 4096
"""Lines that wait to be read; then the process waits too, as for any pipe."""
_MOST_LINES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Output of a worker since the last batch."""

    lines: tuple[tuple[Stream, bytes], ...]  # Lines, each with its stream.
    code: int | None = None  # Exit code, if the process has ended and no line follows.


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Place that Ray has given an actor."""

    host: str  # Address under which other nodes reach the node.
    gpus: tuple[str, ...] = ()  # GPUs of the actor, as ``CUDA_VISIBLE_DEVICES`` names them.


def place_of_ray() -> Place:
    """Return the place of the actor in which this is called."""
    ray: Any = importlib.import_module("ray")
    gpus = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
    return Place(host=ray.util.get_node_ip_address(), gpus=tuple(map(str, gpus)))


class NodeWorker:
    """Process of a worker, with its output in a queue. Its methods may be called in any thread."""

    def __init__(self, place: Callable[[], Place] = place_of_ray) -> None:
        self._place = place
        self._queue: queue.Queue[tuple[Stream, bytes] | int] = queue.Queue(_NUM_WAITING)
        self._process: WorkerProcess | None = None
        self._is_started = threading.Event()
        self._reading = threading.Lock()
        self._number = 0
        self._batch = Batch(lines=())

    def host(self) -> str:
        """Return the address under which other nodes reach this one."""
        return self._place().host

    def start(
        self, source: Source, arguments: Sequence[str], sent: Mapping[str, str], folder: str
    ) -> int:
        """Start this node's Python, and return the number of its process.

        ``sent`` is the environment of the worker in the process of the command. RUN-088 if this
        node has no such working folder, or no process can be started.
        """
        place = self._place()
        environ = node_environ(os.environ, sent, place.gpus)
        started: queue.SimpleQueue[WorkerProcess | Exception] = queue.SimpleQueue()

        def run() -> None:
            # The kernel kills a process with the thread that has started it.
            with contextlib.ExitStack() as stack:
                try:
                    guard = Guard(is_orphan=True)
                    stack.callback(guard.stop)
                    process = WorkerProcess(
                        source,
                        (sys.executable, *arguments),
                        environ=environ,
                        folder=folder,
                        output=_QueueOutput(self._queue),
                        guard=guard,
                        on_end=self._queue.put,
                    )
                except Exception as error:
                    started.put(error)
                else:
                    started.put(process)
                    process.join()

        if not Path(folder).is_dir():
            raise faults.not_started(place.host, f"it has no folder {folder}")
        threading.Thread(target=run, name="evener-worker", daemon=True).start()
        found = started.get()
        if isinstance(found, Exception):
            raise faults.not_started(place.host, str(found))
        self._process = found
        self._is_started.set()
        return found.pid

    def read(self, number: int) -> Batch:
        """Return a batch of output, or an empty one after some seconds.

        Batches are numbered from 1. Where an answer was lost, the same number is asked again.
        """
        with self._reading:
            if number != self._number:
                self._number, self._batch = number, self._next()
            return self._batch

    def send(self, number: int) -> None:
        """Send a signal to the process, but not to those that it has started."""
        self._is_started.wait()
        if self._process is not None:
            self._process.send(number)

    def kill(self) -> None:
        """Kill the process and all of its group."""
        self._is_started.wait()
        if self._process is not None:
            self._process.kill()

    def _next(self) -> Batch:
        lines: list[tuple[Stream, bytes]] = []
        with contextlib.suppress(queue.Empty):
            found = self._queue.get(timeout=_POLL_SECONDS)
            while not isinstance(found, int):
                lines.append(found)
                if len(lines) == _MOST_LINES:
                    break
                found = self._queue.get_nowait()
            else:
                return Batch(lines=tuple(lines), code=found)
        return Batch(lines=tuple(lines))


class _QueueOutput:
    """Puts the lines of a process into a queue."""

    def __init__(self, lines: queue.Queue[tuple[Stream, bytes] | int]) -> None:
        self._lines = lines

    def begin(self, origin: str) -> None:
        """Do nothing: the driver notes the start."""

    def line(self, stream: Stream, line: bytes) -> None:
        """Take a line; wait while too many are waiting."""
        self._lines.put((stream, line))

    def close(self) -> None:
        """Do nothing: the exit code follows."""
