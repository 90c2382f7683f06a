"""Starting workers, as the supervisor needs it: on this machine, or on the nodes of Ray."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from evener.launch.console import Source, Stream


class Output(Protocol):
    """Takes the output of a worker's process. Its methods may be called in any thread."""

    def begin(self, origin: str) -> None:
        """Note that the process has started.

        The origin, for the log file, is the process and, if it is another machine, the host.
        """
        ...

    def line(self, stream: Stream, line: bytes) -> None:
        """Take a line, with its end."""
        ...

    def close(self) -> None:
        """Note that no line follows."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A worker to start."""

    source: Source
    words: Sequence[str]  # Program and arguments; the program is Python.
    # Returns the environment of the worker on a host; called in any thread, when the host is known.
    environ: Callable[[str], Mapping[str, str]] = field(repr=False)
    output: Output
    # Gets the exit code, negative for a signal, and a clause that says why, empty if the code says
    # all; called in a thread, once all output was read.
    on_end: Callable[[int, str], None]


class Worker(Protocol):
    """A worker that was started."""

    @property
    def source(self) -> Source:
        """Number and incarnation of the worker."""
        ...

    def send(self, number: int) -> None:
        """Send a signal to the worker, but not to the processes that it has started."""
        ...

    def kill(self) -> None:
        """Kill the worker and all processes of its group."""
        ...

    def join(self) -> None:
        """Wait until the worker has ended and `on_end` was called."""
        ...


class Placement(Protocol):
    """Starts workers."""

    def start(self, start: Start) -> Worker:
        """Start a worker. To be called in the main thread."""
        ...

    def stop(self) -> None:
        """Free all resources. All workers have ended."""
        ...
