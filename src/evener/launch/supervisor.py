"""The supervisor: starts workers, waits for events, replaces workers, and ends with a code."""

from __future__ import annotations

import contextlib
import math
import queue
import signal
import threading
import time
from collections.abc import Callable, Generator, Mapping

from evener.launch.console import Console, Source
from evener.launch.control import Control
from evener.launch.events import Agreed, Ended, Event, Joined, Lost, Signalled
from evener.launch.output import WorkerOutput
from evener.launch.placement import Placement, Start, Worker
from evener.launch.policy import Decision, Finish, Policy, Shrink
from evener.launch.settings import LaunchSettings

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
        self._settings = settings
        self._control = control
        self._console = console
        self._placement = placement
        self._clock = clock
        # Its `put` may be called in a handler of signals while this thread is in `get`.
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._commands = {command.index: command for command in settings.workers}
        self._running: dict[int, Worker] = {}
        self._killed: dict[int, str] = {}
        self._stop: Signalled | None = None
        self._stop_at = math.inf
        self._policy = Policy(
            tuple(self._commands),
            num_restarts=settings.num_restarts,
            error_wait_seconds=settings.error_wait_seconds,
            error_window_seconds=settings.error_window_seconds,
            grace_seconds=settings.grace_seconds,
        )

    def run(self) -> int:
        """Run the job, and return its exit code.

        It is 0, the program's own, 1 if no worker is left, or 128 and the number of the signal that
        ended the job.
        """
        with self._handled_signals(), contextlib.ExitStack() as stack:
            stack.callback(self._placement.stop)
            stack.callback(self._control.stop)
            self._control.start(self._events.put)
            stack.callback(self._kill_all)
            for index in self._commands:
                self._start((index, 0))
            self._choose_chief()
            return self._loop()

    def _loop(self) -> int:
        while True:
            now = self._clock()
            if self._stop and now >= self._stop_at:
                return 128 + self._stop.number
            self._act(now)
            due = min(self._policy.next_time(), self._stop_at)
            try:
                event = self._events.get(timeout=max(due - now, 0.0) if due < math.inf else None)
            except queue.Empty:
                continue
            code = self._handle(event)
            if code is not None:
                return code

    def _act(self, now: float) -> None:
        """Start and kill the workers that are due."""
        self._start_due(now)
        for index, why in self._policy.due(now).items():
            if index in self._running:
                self._killed[index] = why
                self._running[index].kill()

    def _handle(self, event: Event) -> int | None:
        """Act on an event, and return the exit code if the job is over."""
        match event:
            case Signalled():
                return self._signalled(event)
            case Ended():
                return self._ended(event)
            case Agreed():
                self._policy.agreed()
            case Lost():
                at = self._clock() + event.wait_seconds
                self._policy.lost(event.index, event.incarnation, event.why, at)
            case Joined():
                for index, number in self._policy.joined(event.indices):
                    joins = f"computes with the others from step {event.step}"
                    self._console.message(f"worker {index} (restart {number}) {joins}")
        return None

    def _ended(self, event: Ended) -> int | None:
        del self._running[event.index]
        why = self._killed.pop(event.index, event.why)
        if self._stop is not None:
            return None if self._running else 128 + self._stop.number
        decision = self._policy.ended(event.index, event.code, self._clock(), why)
        if why and (decision is None or not decision.why):
            self._console.message(f"worker {event.index} {why}")
        return self._carry_out(decision, (event.index, event.incarnation))

    def _carry_out(self, decision: Decision, source: Source) -> int | None:
        if isinstance(decision, Finish):
            self._explain(decision)
            return decision.code
        if isinstance(decision, Shrink):
            self._console.message(f"worker {decision.index} {decision.why}")
            self._show_failure(source)
            self._control.go_without(decision.index)
            self._choose_chief()
        # A replacement is started when it is due. A chief that has finished has said all.
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

    def _start_due(self, now: float) -> None:
        for decision in self._policy.pending:
            if decision.at > now:
                continue
            self._console.message(f"worker {decision.index} {decision.why}")
            self._show_failure((decision.index, decision.incarnation - 1))
            self._policy.started(decision.index, decision.incarnation)
            self._start((decision.index, decision.incarnation))
            self._choose_chief()

    def _start(self, source: Source) -> None:
        index, incarnation = source

        def on_end(code: int, why: str) -> None:
            self._events.put(Ended(index=index, incarnation=incarnation, code=code, why=why))

        def environ(host: str) -> Mapping[str, str]:
            job = self._control.environment(index, incarnation, host)
            return {**self._settings.environ, **job}

        start = Start(
            source=source,
            words=self._commands[index].words,
            environ=environ,
            output=WorkerOutput(source, self._settings.logs, self._console),
            on_end=on_end,
        )
        self._running[index] = self._placement.start(start)

    def _choose_chief(self) -> None:
        """Show the output of the lowest worker if the chief has ended.

        A replacement runs the program from its beginning, so it comes after all that have not been
        replaced.
        """
        sources = [process.source for process in self._running.values()]
        shown = [source for source in sources if self._commands[source[0]].is_shown]
        if shown and self._console.chief not in shown:
            self._console.set_chief(min(shown, key=lambda source: (source[1], source[0])))

    def _signalled(self, event: Signalled) -> int | None:
        """Pass the first signal on; at the second, do not wait any more."""
        if self._stop is not None or not self._running:
            return 128 + event.number
        self._stop = event
        self._policy.stop()
        self._stop_at = self._clock() + self._settings.grace_seconds
        for process in self._running.values():
            process.send(event.number)
        return None

    def _kill_all(self) -> None:
        for process in self._running.values():
            process.kill()
        for process in self._running.values():
            process.join()

    @contextlib.contextmanager
    def _handled_signals(self) -> Generator[None]:
        """Turn signals into events, but not those that are ignored, as under `nohup`."""

        def handler(number: int, frame: object) -> None:
            self._events.put(Signalled(number=number))

        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("A supervisor handles signals, so it runs in the main thread.")
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        handled = [number for number in _SIGNALS if before[number] is not signal.SIG_IGN]
        for number in handled:
            signal.signal(number, handler)
        try:
            yield
        finally:
            for number in handled:
                signal.signal(number, before[number])
