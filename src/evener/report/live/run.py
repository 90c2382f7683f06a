"""The live view of a run of a script, and of a job of several workers: a thread shows the state."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from evener.report.live.screen import LiveDevice, LiveState, Screen, can_draw, screen_of_process

# The live view: a thread that reads the state of a training and shows it.

_REFRESH_SECONDS = 0.5
_shown: list[LiveView] = []


def is_shown() -> bool:
    """Return whether this process shows a live view already."""
    return bool(_shown)


class LiveView:
    """Shows the state of a training twice a second, in a context."""

    def __init__(
        self,
        screen: Screen,
        state: Callable[[], LiveState | None],
        *,
        refresh_seconds: float = _REFRESH_SECONDS,
    ) -> None:
        self._screen = screen
        self._state = state
        self._refresh_seconds = refresh_seconds
        self._process = os.getpid()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="evener live view", daemon=True)

    def __enter__(self) -> LiveView:
        """Begin to show."""
        _shown.append(self)
        self._screen.open()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Show the last state, which stays, and restore the terminal."""
        # A fork of the program has no thread, and shows nothing.
        if os.getpid() != self._process:
            return
        try:
            self._stop.set()
            self._thread.join()
            with contextlib.suppress(Exception):
                self._update()
        finally:
            _shown.remove(self)
            self._screen.close()

    def _run(self) -> None:
        while not self._stop.wait(self._refresh_seconds):
            try:
                self._update()
            except Exception as error:
                # The view never ends the run.
                with contextlib.suppress(Exception):
                    self._screen.say(f"evener: no live view: {type(error).__name__}: {error}")
                return

    def _update(self) -> None:
        state = self._state()
        if state is not None:
            self._screen.show(state)


# Live view of several workers: each writes its state into a file, and the launcher shows all.

FOLDER = "EVENER_LIVE"
"""Environment variable with the folder of the files."""

_MOST_LINES = 100
_STALE_SECONDS = 5.0


class FileScreen:
    """Screen of a worker: its state, in a file that the launcher reads."""

    def __init__(self, folder: Path, worker: int, *, replaces_bar: bool) -> None:
        self.replaces_bar = replaces_bar
        self._path = folder / f"worker-{worker}.json"
        self._lines: list[str] = []
        self._num_lines = 0
        self._lock = threading.Lock()
        self._state = LiveState()

    def open(self) -> None:
        """Begin to show."""

    def show(self, state: LiveState) -> None:
        """Write the state."""
        with self._lock:
            self._state = state
            self._write()

    def say(self, text: str) -> None:
        """Add a line."""
        with self._lock:
            self._num_lines += 1
            self._lines = [*self._lines, text][-_MOST_LINES:]
            self._write()

    def close(self) -> None:
        """End."""

    def _write(self) -> None:
        content = {
            "process": os.getpid(),
            "state": self._state.to_dict(),
            "num_lines": self._num_lines,
            "lines": self._lines,
        }
        part = self._path.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(content), encoding="utf-8")
        part.replace(self._path)


class JobState:
    """The states of all workers of a job as one, and their new lines."""

    def __init__(
        self, folder: Path, screen: Screen, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._folder = folder
        self._screen = screen
        self._clock = clock
        self._seen: dict[int, int] = {}

    def state(self) -> LiveState | None:
        """Return the state of the job; None before the first worker has one."""
        found = dict(self._fresh())
        if not found:
            return None
        chief = found[min(found)]
        self._say(chief)
        devices: list[LiveDevice] = []
        for worker in sorted(found):
            devices += LiveState.from_dict(found[worker]["state"]).devices
        return dataclasses.replace(LiveState.from_dict(chief["state"]), devices=tuple(devices))

    def _fresh(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the number and the file of each worker that still writes it."""
        for path in self._folder.glob("worker-*.json"):
            age = self._clock() - path.stat().st_mtime
            if age < _STALE_SECONDS:
                number = int(path.stem.removeprefix("worker-"))
                yield number, json.loads(path.read_text(encoding="utf-8"))

    def _say(self, found: Mapping[str, Any]) -> None:
        # A replacement counts from 0 again.
        seen = self._seen.get(found["process"], 0)
        new = found["num_lines"] - seen
        self._seen[found["process"]] = found["num_lines"]
        for line in found["lines"][-new:] if new > 0 else ():
            self._screen.say(line)


# Live view of a run of a script, and of a job of several workers.

_IN_PLACE = "EVENER_LIVE_IN_PLACE"


def is_wanted(live: bool | None, environ: Mapping[str, str]) -> bool:
    """Return whether a command shows a live view."""
    if live is None:
        return FOLDER in environ or can_draw({**environ, "NO_COLOR": ""})
    return live


@contextlib.contextmanager
def live_run(strategy: Any, environ: Mapping[str, str]) -> Iterator[None]:
    """Show the training of a strategy in the block, where ``fit`` is followed by itself."""
    from evener._tf_private.fits import adding_callbacks
    from evener.recording.record import watching
    from evener.report.live.source import FitProgress, StrategySource
    from evener.workers.process import group_of_process

    group = group_of_process()
    worker = None if group is None else group.index
    screen = _screen(worker, environ)
    source = StrategySource(strategy, worker=worker)
    fits: list[FitProgress] = []

    def begin(fit: FitProgress) -> None:
        fits[:] = [fit]

    def say_event(event: Mapping[str, Any]) -> None:
        # Notes and warnings are printed anyway.
        if event["event"] in ("shares", "log"):
            screen.say(f"evener: {event['text']}")

    with (
        watching(say_event),
        adding_callbacks(
            lambda: FitProgress(screen.say, begin=begin), replaces_bar=lambda: screen.replaces_bar
        ),
        LiveView(screen, lambda: source.state(fits[0] if fits else None)),
    ):
        yield


@contextlib.contextmanager
def live_job(environ: dict[str, str] | os._Environ[str]) -> Iterator[None]:
    """Show the training of the workers that are started in the block."""
    with tempfile.TemporaryDirectory(prefix="evener-live-") as folder:
        screen = screen_of_process(environ)
        environ[FOLDER] = folder
        environ[_IN_PLACE] = "1" if screen.replaces_bar else ""
        try:
            with LiveView(screen, JobState(Path(folder), screen).state):
                yield
        finally:
            del environ[FOLDER], environ[_IN_PLACE]


def _screen(worker: int | None, environ: Mapping[str, str]) -> Screen:
    if worker is not None and FOLDER in environ:
        return FileScreen(Path(environ[FOLDER]), worker, replaces_bar=bool(environ.get(_IN_PLACE)))
    return screen_of_process(environ)
