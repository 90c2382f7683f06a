"""The supervisor: starts workers, waits for events, replaces workers, and ends with a code.

It runs the coordinator of the workers in its own process. What starts a worker, on this machine or
on the nodes of Ray, is a `Placement`.
"""

from __future__ import annotations

import contextlib
import math
import queue
import secrets
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from evener.workers.coordinator import Coordinator
from evener.workers.job import Job, duration, join_address
from evener.workers.messages import Ended, Event, Failed, Formed, Lost
from evener.workers.output import Console, Source, Stream, WorkerOutput
from evener.workers.policy import Finish, Policy, ProcessEnded, Shrink

OF_OTHER_JOBS = ("TF_CONFIG", "EVENER_JOB", "EVENER_JOB_SECRET", "EVENER_COORDINATOR")
"""Variables of the environment that describe the job of the workers."""
_CLOSING_SECONDS = 5.0
"""Time for a worker to end after its connection: a failing program closes it first."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCommand:
    index: int  # Number of the worker, from 0.
    words: Sequence[str]  # Program and arguments.
    is_shown: bool = True  # True if its output may appear on the console.


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSettings:
    workers: tuple[WorkerCommand, ...]  # Commands of the workers of this machine.
    # Environment of the workers, without the variables of the job.
    environ: Mapping[str, str] = field(repr=False)
    logs: Path  # Existing folder for the log files.
    num_restarts: int = 3  # Number of replacements in the whole job, 0 or more.
    heartbeat_seconds: float = 10.0  # Silence after which a worker counts as frozen.
    start_seconds: float = 300.0  # Time that workers wait for each other at the start.
    grace_seconds: float = 60.0  # Time that workers have to end after a signal.
    # Time after an error of a worker before it is replaced: if the others fail too, the program is
    # wrong, and nothing is replaced.
    error_wait_seconds: float = 2.0
    # Time within which errors of all workers are one error of the program.
    error_window_seconds: float = 30.0


class OutputSink(Protocol):
    """Takes the output of a worker's process. Its methods may be called in any thread."""

    def begin(self, origin: str) -> None:
        """Note where the process runs, before its first line."""

    def line(self, stream: Stream, line: bytes) -> None: ...

    def close(self) -> None:
        """Note that no line follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStart:
    source: Source
    words: Sequence[str]  # Program and arguments; the program is Python.
    # Returns the environment of the worker on a host; called in any thread, when the host is known.
    environ: Callable[[str], Mapping[str, str]] = field(repr=False)
    output: OutputSink
    # Gets the exit code, negative for a signal, and a clause that says why, empty if the code says
    # all; called in a thread, once all output was read.
    on_end: Callable[[int, str], None]


class Worker(Protocol):
    source: Source  # Its number and incarnation.

    def send(self, number: int) -> None:
        """Send a signal to the worker, but not to the processes that it has started."""

    def kill(self) -> None: ...

    def join(self) -> None:
        """Wait until the worker has ended and `on_end` was called."""


class Placement(Protocol):
    def start(self, start: WorkerStart) -> Worker: ...

    def stop(self) -> None:
        """Free all resources. All workers have ended."""


class Control:
    """Membership of a job, as the supervisor needs it; by itself, one that is kept elsewhere.

    The environment of its workers names the coordinator already.
    """

    def start(self, on_event: Callable[[Event], None]) -> None:
        """Begin to listen; ``on_event`` is told of changes of the membership, in any thread."""

    def environment(self, index: int, incarnation: int, host: str) -> Mapping[str, str]:
        """Return the variables by which a worker finds the coordinator. For any thread."""
        return {}

    def go_without(self, index: int) -> None:
        """Do not wait for a worker that nobody starts again."""

    def stop(self) -> None:
        """Close all connections, and end all threads."""


class JobControl(Control):
    """Runs the coordinator of a job, with a secret of its own; all workers reach ``host``."""

    def __init__(self, settings: LaunchSettings, host: str) -> None:
        self._settings = settings
        self._secret = secrets.token_hex(32).encode()
        self._coordinator = Coordinator(
            len(settings.workers),
            self._secret,
            address=join_address(host, 0),
            heartbeat_seconds=settings.heartbeat_seconds,
            start_seconds=settings.start_seconds,
            patience_seconds=duration(settings.environ, "patience_seconds"),
        )

    def start(self, on_event: Callable[[Event], None]) -> None:
        self._coordinator.start(on_event)

    def environment(self, index: int, incarnation: int, host: str) -> Mapping[str, str]:
        if incarnation:
            # The others wait for all that are there from the start.
            self._coordinator.expect(index, incarnation)
        job = Job(
            index=index,
            count=len(self._settings.workers),
            coordinator=self._coordinator.address,
            secret=self._secret,
            hosts_coordinator=False,
            host=host,
            incarnation=incarnation,
            heartbeat_seconds=self._settings.heartbeat_seconds,
            start_seconds=self._settings.start_seconds,
        )
        return job.to_environment()

    def go_without(self, index: int) -> None:
        self._coordinator.go_without(index)

    def stop(self) -> None:
        self._coordinator.stop()


def seconds_to_end(lost: Lost, grace_seconds: float) -> float:
    """Return how long the process of a worker that was given up may take to end by itself.

    One that fails closes its connection before it ends: its own exit code is worth waiting for.
    """
    if not lost.is_fault:
        return grace_seconds
    return 0.0 if "silent" in lost.why else _CLOSING_SECONDS


@contextlib.contextmanager
def handled_signals(
    numbers: Iterable[int], handler: Callable[[int, object], None]
) -> Generator[None]:
    """Handle signals in the block, but not those that are ignored, as under `nohup`."""
    before = {number: signal.getsignal(number) for number in numbers}
    handled = [number for number, own in before.items() if own is not signal.SIG_IGN]
    for number in handled:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, before[number])


class Supervisor:
    """Runs a job to its end. To be used once, in the main thread. The clock returns seconds."""

    def __init__(
        self,
        settings: LaunchSettings,
        control: Control,
        console: Console,
        *,
        placement: Placement,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._control, self._console = settings, control, console
        self._placement, self._clock = placement, clock
        # Its `put` may be called in a handler of signals while this thread is in `get`.
        self._events: queue.SimpleQueue[ProcessEnded | Event | signal.Signals] = queue.SimpleQueue()
        self._commands = {command.index: command for command in settings.workers}
        self._running: dict[int, Worker] = {}
        self._placed: dict[int, int] = {}  # Newest incarnation of each worker that has a host.
        self._killed: dict[int, str] = {}
        self._stop: signal.Signals | None = None  # That asks the supervisor to end.
        self._stop_at = math.inf
        self._policy = Policy(
            tuple(self._commands),
            num_restarts=settings.num_restarts,
            error_wait_seconds=settings.error_wait_seconds,
            error_window_seconds=settings.error_window_seconds,
            grace_seconds=settings.grace_seconds,
        )

    def run(self) -> int:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("A supervisor handles signals, so it runs in the main thread.")

        def note(number: int, frame: object) -> None:
            self._events.put(signal.Signals(number))

        with handled_signals(_SIGNALS, note), contextlib.ExitStack() as stack:
            stack.callback(self._placement.stop)
            stack.callback(self._control.stop)
            self._control.start(self._events.put)
            stack.callback(self._kill_all)
            for index in self._commands:
                self._start((index, 0))
            self._choose_chief()
            while True:
                now = self._clock()
                if self._stop and now >= self._stop_at:
                    return 128 + self._stop
                self._start_and_kill(now)
                due = min(self._policy.next_time(), self._stop_at)
                wait = max(due - now, 0.0) if due < math.inf else None
                try:
                    code = self._handle(self._events.get(timeout=wait))
                except queue.Empty:
                    continue
                if code is not None:
                    return code

    def _start_and_kill(self, now: float) -> None:
        """Start the replacements, and kill the workers, that are due."""
        for decision in self._policy.pending:
            if decision.at > now:
                continue
            self._console.message(f"worker {decision.index} {decision.why}")
            self._show_failure((decision.index, decision.incarnation - 1))
            self._policy.started(decision.index, decision.incarnation)
            self._start((decision.index, decision.incarnation))
            self._choose_chief()
        for index, why in self._policy.due(now).items():
            if index in self._running:
                self._killed[index] = why
                self._running[index].kill()

    def _handle(self, event: ProcessEnded | Event | signal.Signals) -> int | None:
        """Act on an event, and return the exit code if the job is over."""
        match event:
            case signal.Signals():
                if self._stop is not None or not self._running:
                    return 128 + event
                self._stop = event
                self._policy.stop()
                self._stop_at = self._clock() + self._settings.grace_seconds
                for process in self._running.values():
                    process.send(event)
                return None
            case ProcessEnded():
                del self._running[event.index]
                why = self._killed.pop(event.index, event.why)
                if self._stop is not None:
                    return None if self._running else 128 + self._stop
                decision = self._policy.ended(event.index, event.code, self._clock(), why)
                if why and (decision is None or not decision.why):
                    self._console.message(f"worker {event.index} {why}")
                if isinstance(decision, Finish):
                    self._explain(decision)
                    return decision.code
                if isinstance(decision, Shrink):
                    self._console.message(f"worker {decision.index} {decision.why}")
                    self._show_failure((event.index, event.incarnation))
                    self._control.go_without(decision.index)
                    self._choose_chief()
                # A replacement is started when it is due. A chief that has finished has said all.
                return None
            case Ended():
                self._policy.agreed()
            case Lost():
                at = self._clock() + seconds_to_end(event, self._settings.grace_seconds)
                self._policy.lost(event.index, event.incarnation, event.why, at)
            case Failed():
                # The others have waited for them in vain.
                why = "it has not joined the others in time"
                for index in sorted(event.missing):
                    self._policy.lost(index, self._placed.get(index, 0), why, self._clock())
            case Formed():
                step = max(event.view.done.values(), default=0) + 1
                for index, number in self._policy.joined(event.view.members):
                    joins = f"computes with the others from step {step}"
                    self._console.message(f"worker {index} (restart {number}) {joins}")
        return None

    def _explain(self, decision: Finish) -> None:
        """Show the error that ends a job, unless the chief has shown the same."""
        if decision.why:
            self._console.message(decision.why)
        failed, chief = decision.failed, self._console.chief
        if failed is None or failed == chief:
            return
        lines = self._console.last_lines(failed)
        shown = [] if chief is None else self._console.last_lines(chief)
        if lines and lines[-1:] != shown[-1:]:
            self._console.show_failure(failed)

    def _show_failure(self, source: Source) -> None:
        if source != self._console.chief:
            self._console.show_failure(source)

    def _start(self, source: Source) -> None:
        index, incarnation = source

        def on_end(code: int, why: str) -> None:
            self._events.put(ProcessEnded(index=index, incarnation=incarnation, code=code, why=why))

        def environ(host: str) -> Mapping[str, str]:
            self._placed[index] = incarnation
            job = self._control.environment(index, incarnation, host)
            return {**self._settings.environ, **job}

        start = WorkerStart(
            source=source,
            words=self._commands[index].words,
            environ=environ,
            output=WorkerOutput(source, self._settings.logs, self._console),
            on_end=on_end,
        )
        self._running[index] = self._placement.start(start)

    def _choose_chief(self) -> None:
        """Show the output of the lowest worker if the chief has ended."""
        sources = [process.source for process in self._running.values()]
        shown = [source for source in sources if self._commands[source[0]].is_shown]
        if shown and self._console.chief not in shown:
            self._console.set_chief(min(shown, key=lambda source: (source[1], source[0])))

    def _kill_all(self) -> None:
        for process in self._running.values():
            process.kill()
        for process in self._running.values():
            process.join()
