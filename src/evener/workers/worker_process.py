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

from evener.workers import shim
from evener.workers.guard import Guard
from evener.workers.output import Pipes, Source
from evener.workers.supervisor import Output, Start

LOOPBACK = "127.0.0.1"


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
        output: Output,
        guard: Guard,
        on_end: Callable[[int], None],
    ) -> None:
        self._source = source
        self._output = output
        self._guard = guard
        self._on_end = on_end
        self._lock = threading.Lock()
        self._is_reaped = False
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(shim.__file__)), str(os.getpid()), *words],
            env=dict(environ),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # The terminal's Ctrl-C goes to the supervisor alone.
            start_new_session=True,
        )
        guard.watch(self.pid)
        stdout, stderr = self._process.stdout, self._process.stderr
        assert stdout is not None
        assert stderr is not None
        output.begin(f"process {self.pid}")
        self._pipes = Pipes(source[0], stdout, stderr, output.line)
        self._waiter = threading.Thread(
            target=self._wait, name=f"evener-worker-{source[0]}", daemon=True
        )
        self._waiter.start()

    @property
    def source(self) -> Source:
        """Number and incarnation of the worker."""
        return self._source

    @property
    def pid(self) -> int:
        """Process id, and number of the process group."""
        return self._process.pid

    def send(self, number: int) -> None:
        """Send a signal to the worker, but not to the processes that it has started."""
        with self._lock:
            if not self._is_reaped:
                os.kill(self.pid, number)

    def kill(self) -> None:
        with self._lock:
            if not self._is_reaped:
                self._kill_group()

    def join(self) -> None:
        """Wait until the process has ended and `on_end` was called."""
        self._waiter.join()

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def _wait(self) -> None:
        # Until it is reaped, nobody else gets the number of its group.
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with self._lock:
            self._kill_group()
            code = self._process.wait()
            self._is_reaped = True
        self._guard.forget(self.pid)
        self._pipes.finish()
        self._output.close()
        self._on_end(code)


class ThisMachine:
    """Starts workers as processes on this machine."""

    def __init__(self) -> None:
        self._guard = Guard()

    def start(self, start: Start) -> WorkerProcess:
        """Start a worker. To be called in the main thread."""

        def on_end(code: int) -> None:
            start.on_end(code, "")

        return WorkerProcess(
            start.source,
            start.words,
            environ=start.environ(LOOPBACK),
            output=start.output,
            guard=self._guard,
            on_end=on_end,
        )

    def stop(self) -> None:
        self._guard.stop()
