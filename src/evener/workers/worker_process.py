"""The process of a worker, with all processes that it starts, on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Literal

from evener.workers import guard
from evener.workers.connections import start_thread
from evener.workers.output import Source, Stream, read_lines
from evener.workers.supervisor import OutputSink, WorkerStart

LOOPBACK = "127.0.0.1"
_DRAIN_SECONDS = 5.0


def _program(name: str) -> list[str]:
    return [sys.executable, "-I", "-S", str(Path(guard.__file__)), name]


class Guard:
    """Starts the guard, which kills process groups if this process dies, and tells it of groups.

    With ``is_orphan``, the guard is no child of this process, since the children of this process
    may be killed with it, as those of an actor of Ray.
    """

    def __init__(self, *, is_orphan: bool = False) -> None:
        self._process = subprocess.Popen(
            [*_program("watch"), *["orphan"] * is_orphan],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Out of reach of signals to the supervisor's group.
            start_new_session=True,
            cwd="/",
        )
        if is_orphan:
            # Its child is the guard.
            self._process.wait()

    def stop(self) -> None:
        """End the guard. Groups that it watches are killed."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()

    def tell(self, sign: Literal["+", "-"], group: int) -> None:
        """Have a process group watched (+), or left alone when it has ended (-).

        The number of a group that has ended may be used again.
        """
        assert self._process.stdin is not None
        # A guard that was killed protects nothing, but the job goes on.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._process.stdin.fileno(), f"{sign}{group}\n".encode())


class WorkerProcess:
    """The process of a worker, in a process group of its own.

    To be made in the main thread, since the kernel kills the process with that thread. The guard
    kills the group if this process is killed. ``on_end`` gets the exit code, negative for a signal,
    in a thread, once all output was read.
    """

    def __init__(
        self,
        source: Source,
        words: Sequence[str],
        *,
        environ: Mapping[str, str],
        folder: str | None = None,
        output: OutputSink,
        guard: Guard,
        on_end: Callable[[int], None],
    ) -> None:
        self.source = source  # Number and incarnation of the worker.
        self._output, self._guard, self._on_end = output, guard, on_end
        self._lock = threading.Lock()
        self._is_reaped = False
        self._process = subprocess.Popen(
            [*_program("run"), str(os.getpid()), *words],
            env=dict(environ),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # The terminal's Ctrl-C goes to the supervisor alone.
            start_new_session=True,
        )
        self.pid = self._process.pid  # Also the number of the process group.
        guard.tell("+", self.pid)
        output.begin(f"process {self.pid}")
        stdout, stderr = self._process.stdout, self._process.stderr
        assert stdout is not None
        assert stderr is not None
        self._readers = [
            start_thread(f"evener-stdout-{source[0]}", self._read, "stdout", stdout),
            start_thread(f"evener-stderr-{source[0]}", self._read, "stderr", stderr),
        ]
        self._waiter = start_thread(f"evener-worker-{source[0]}", self._wait)

    def send(self, number: int) -> None:
        with self._lock:
            if not self._is_reaped:
                os.kill(self.pid, number)

    def kill(self) -> None:
        with self._lock:
            if not self._is_reaped:
                self._kill_group()

    def join(self) -> None:
        self._waiter.join()

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def _read(self, stream: Stream, pipe: IO[bytes]) -> None:
        with pipe:
            for line in read_lines(pipe):
                self._output.line(stream, line)

    def _wait(self) -> None:
        # Until it is reaped, nobody else gets the number of its group.
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with self._lock:
            self._kill_group()
            code = self._process.wait()
            self._is_reaped = True
        self._guard.tell("-", self.pid)
        for reader in self._readers:
            # A process that left the group may hold a pipe open: what it writes later is lost.
            reader.join(_DRAIN_SECONDS)
        self._output.close()
        self._on_end(code)


class ThisMachine:
    def __init__(self) -> None:
        self._guard = Guard()

    def start(self, start: WorkerStart) -> WorkerProcess:
        """Start a worker. To be called in the main thread."""
        return WorkerProcess(
            start.source,
            start.words,
            environ=start.environ(LOOPBACK),
            output=start.output,
            guard=self._guard,
            on_end=lambda code: start.on_end(code, ""),
        )

    def stop(self) -> None:
        self._guard.stop()
