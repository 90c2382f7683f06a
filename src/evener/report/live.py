"""The live view of a training: a table of all devices under the output, or plain lines.

::

    fit ──► FitProgress ─┐
    strategy ────────────┴─► StrategySource ──► LiveState ──► LiveView, a thread ──► TerminalScreen
    workers ──► files ──► JobState ─────────────────┘                                 LineScreen
                                                                                      NotebookScreen

On a terminal the view is below all other output. The cursor stays in the line under the view and is
never hidden, so that a process that is killed leaves a terminal that can be used.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import msgspec
from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

from evener.base.terminal import html_of, standard_error, text_of
from evener.base.text import format_bytes, format_seconds, printable

FOLDER = "EVENER_LIVE"
"""Environment variable with the folder of the workers' files."""

IN_PLACE = "EVENER_LIVEIN_PLACE"
"""Environment variable that says whether the launcher shows the view on a terminal."""

_UNKNOWN = "-"
_BAR_WIDTH = 20
_OTHER_LINES = 6
_LEAST_WAIT = 0.01
_LINE_SECONDS = 10.0
_REFRESH_SECONDS = 0.5
_MOST_LINES = 100
_STALE_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveDevice:
    """Work of one device; None where it is not timed or the device does not tell."""

    name: str
    share: float | None = None
    busy: float | None = None
    waits: float | None = None
    waits_for: str = ""
    memory_bytes: int | None = None
    memory_limit: int | None = None
    worker: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveState:
    """The state of a training at one time; None where a figure is not known."""

    title: str = ""
    epoch: int | None = None
    num_epochs: int | None = None
    step: int = 0
    num_steps: int | None = None
    samples_per_second: float | None = None
    seconds_left: float | None = None
    losses: Mapping[str, float] = field(default_factory=dict)
    devices: tuple[LiveDevice, ...] = ()
    changes: str = ""  # Of shares, as a line


def panel(state: LiveState, *, num_lines: int = 1000) -> RenderableType:
    parts: list[RenderableType] = []
    if state.title:
        parts.append(_line(state.title, style="bold"))
    if state.devices:
        num_shown = max(1, num_lines - _OTHER_LINES - bool(state.changes))
        devices = state.devices[:num_shown]
        rows = [_cells(device) for device in devices]
        # The table has to fit in 80 columns.
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        headings = [
            heading
            for heading in rows[0]
            if heading in ("share", "busy") or any(row[heading] is not None for row in rows)
        ]
        for heading in headings:
            is_text = heading in ("device", "waits for")
            table.add_column(heading, justify="left" if is_text else "right", no_wrap=True)
        for row in rows:
            cells = (row[heading] for heading in headings)
            table.add_row(*(Text(_UNKNOWN if cell is None else cell) for cell in cells))
        parts.append(table)
        if len(state.devices) > num_shown:
            parts.append(_line(f"and {len(state.devices) - num_shown} more devices", style="dim"))
    rate = state.samples_per_second
    bar = None
    if state.num_steps is not None and state.num_epochs is not None and state.epoch is not None:
        done = (state.epoch - 1) * state.num_steps + state.step
        bar = ProgressBar(
            total=state.num_epochs * state.num_steps, completed=done, width=_BAR_WIDTH
        )
    parts.append(
        _ProgressLine(
            position="  ".join(_position(state)),
            bar=bar,
            rate="" if rate is None else f"{rate:,.0f} samples/s",
            left="" if state.epoch is None else _left(state.seconds_left),
        )
    )
    if state.losses:
        parts.append(_line(losses_text(state.losses)))
    if state.changes:
        parts.append(_line(state.changes))
    return Group(*parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ProgressLine:
    """Step, bar, rate and time left; on a narrow terminal the bar goes first, then the rate."""

    position: str
    bar: ProgressBar | None
    rate: str
    left: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        after = "  ".join(filter(None, (self.rate, self.left)))
        text = "  ".join(filter(None, (self.position, after)))
        if self.bar is not None and len(text) + 2 + _BAR_WIDTH <= options.max_width:
            grid = Table.grid(padding=(0, 2))
            grid.add_row(Text(self.position), self.bar, Text(after))
            yield grid
        elif len(text) <= options.max_width:
            yield Text(text)
        else:
            yield _line("  ".join(filter(None, (self.position, self.left))))


def line_of(state: LiveState) -> str:
    """Return the state as one line of plain text.

    >>> line_of(LiveState(epoch=1, num_epochs=3, step=20, num_steps=100, losses={"loss": 0.25}))
    'epoch 1/3  step 20/100  loss 0.2500'
    """
    parts = _position(state)
    if state.samples_per_second is not None:
        parts.append(f"{state.samples_per_second:,.0f} samples/s")
    if state.seconds_left is not None:
        parts.append(_left(state.seconds_left))
    if state.losses:
        parts.append(losses_text(state.losses))
    if len(state.devices) > 1:
        for device in state.devices:
            worker = "" if device.worker is None else f"worker {device.worker} "
            busy = "" if device.busy is None else f" busy {_percent(device.busy)}"
            parts.append(f"{worker}{device.name} {_percent(device.share)}{busy}")
    return "  ".join(parts)


def epoch_line(state: LiveState) -> str:
    """Return one line about a completed epoch.

    >>> epoch_line(LiveState(epoch=1, num_epochs=10, losses={"loss": 0.25}))
    'epoch  1/10  loss 0.2500'
    """
    width = len(str(state.num_epochs))
    parts = [f"epoch {state.epoch:>{width}}/{state.num_epochs}"]
    if state.losses:
        parts.append(losses_text(state.losses))
    if state.samples_per_second is not None:
        parts.append(f"{state.samples_per_second:,.0f} samples/s")
    if len(state.devices) > 1:
        shares = ((d.name, f"{d.share:.1%}") for d in state.devices if d.share is not None)
        parts += [f"{name} {share.replace('%', ' %')}" for name, share in shares]
    return "  ".join(parts)


def losses_text(losses: Mapping[str, float]) -> str:
    in_order = sorted(losses.items(), key=lambda item: item[0] != "loss")
    return "  ".join(f"{name} {value:.4f}" for name, value in in_order)


def _line(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _position(state: LiveState) -> list[str]:
    if state.epoch is None:
        return [f"step {state.step}"]
    return [
        f"epoch {state.epoch}/{state.num_epochs or '?'}",
        f"step {state.step}/{state.num_steps or '?'}",
    ]


def _cells(device: LiveDevice) -> dict[str, str | None]:
    waits = None if device.waits is None else f"{device.waits_for} {_percent(device.waits)}"
    # Copies and rounding of clocks are not worth a name.
    if device.waits is not None and (not device.waits_for or device.waits < _LEAST_WAIT):
        waits = ""
    memory = None if device.memory_bytes is None else format_bytes(device.memory_bytes)
    if memory is not None and device.memory_limit is not None:
        memory += f" of {format_bytes(device.memory_limit)}"
    return {
        "worker": None if device.worker is None else str(device.worker),
        "device": device.name,
        "share": None if device.share is None else _percent(device.share),
        "busy": None if device.busy is None else _percent(device.busy),
        "waits for": waits,
        "memory": memory,
    }


def _percent(fraction: float | None) -> str:
    return _UNKNOWN if fraction is None else f"{fraction * 100:.0f} %"


def _left(seconds: float | None) -> str:
    if seconds is None:
        return f"{_UNKNOWN} left"
    return f"{round(seconds)} s left" if seconds < 60 else f"{format_seconds(seconds)} left"


class Screen:
    replaces_bar = True

    def open(self) -> None:
        """Begin to show."""

    def show(self, state: LiveState) -> None:
        """Show a state, which replaces the last one."""

    def say(self, text: str) -> None:
        """Show a line that stays, such as an event or the end of an epoch."""

    def close(self) -> None:
        """End; what was shown stays. Safe to call again."""


def can_draw(environ: Mapping[str, str]) -> bool:
    """Return whether standard output and standard error are one terminal that can be drawn on."""
    if environ.get("NO_COLOR") or environ.get("TERM", "dumb") in ("dumb", "unknown"):
        return False
    return sys.stdout.isatty() and sys.stderr.isatty()


def screen_of_process(environ: Mapping[str, str]) -> Screen:
    """Return the screen of a command: its terminal if it can be drawn on, otherwise lines."""
    if can_draw(environ):
        return TerminalScreen()
    is_terminal = sys.stdout.isatty() and sys.stderr.isatty()
    return LineScreen(sys.stderr, replaces_bar=is_terminal)


def screen_of(console: Console) -> Screen | None:
    if console.is_jupyter:
        return NotebookScreen()
    is_plain = console.is_dumb_terminal or console.no_color
    if not console.is_terminal or is_plain:
        return None
    is_of_process = console.file in (sys.stdout, sys.stderr)
    if is_of_process and not can_draw(os.environ):
        return None
    return TerminalScreen(console, redirects=is_of_process)


class TerminalScreen(Screen):
    def __init__(self, console: Console | None = None, *, redirects: bool = True) -> None:
        self._console = standard_error() if console is None else console
        # The stream of now, and not what stands in its place later.
        self._console.file = self._console.file
        self._redirects = redirects
        self._process = os.getpid()
        self._state: LiveState | None = None
        self._above: list[Above] = []
        self.lock = threading.RLock()
        # rich's own redirection interprets and wraps what a program writes.
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
            get_renderable=self._view,
        )

    @property
    def is_drawn(self) -> bool:
        return self._live.is_started and os.getpid() == self._process

    def open(self) -> None:
        with self.lock:
            self._live.start()
            self._console.show_cursor(True)
            if self._redirects:
                self._above = [Above(sys.stdout, self), Above(sys.stderr, self)]
                sys.stdout, sys.stderr = self._above
                for stream in self._above:
                    _redirect_handlers(stream.stream, stream)

    def show(self, state: LiveState) -> None:
        with self.lock:
            if self.is_drawn:
                self._state = state
                self._live.refresh()

    def say(self, text: str) -> None:
        with self.lock:
            if self.is_drawn:
                self.write_above(f"{printable(text, keeps_colours=True)}\n")

    def write_above(self, text: str) -> None:
        """Write complete lines, as they are, above the view."""
        with self.lock:
            self._console.print(Segments([Segment(text)]), end="", crop=False)

    def close(self) -> None:
        with self.lock:
            if not self._live.is_started:
                return
            rests = [stream.rest for stream in self._above]
            for stream in self._above:
                stream.rest = ""
            if os.getpid() == self._process:
                self._live.stop()
            for stream, rest in zip(self._above, rests, strict=True):
                # A program may have put others in their place.
                if sys.stdout is stream:
                    sys.stdout = stream.stream
                if sys.stderr is stream:
                    sys.stderr = stream.stream
                _redirect_handlers(stream, stream.stream)
                stream.stream.write(rest)
            self._above = []

    def _view(self) -> RenderableType:
        lines = (s.rest.rstrip("\r").rpartition("\r")[2] for s in self._above if s.rest)
        rests = [Text.from_ansi(line.replace("\b", ""), no_wrap=True) for line in lines]
        if self._state is None:
            return Group(*rests)
        view = panel(self._state, num_lines=self._console.height - 1 - len(rests))
        # The cursor is in the line below.
        return Group(*rests, view, *([""] if self._live.is_started else []))


class Above:
    """A text stream whose lines are written above the view, as they are."""

    def __init__(self, stream: TextIO, screen: TerminalScreen) -> None:
        self.stream = stream
        self._screen = screen
        self.rest = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.stream)

    @property
    def buffer(self) -> _Bytes:
        return _Bytes(self)

    def write(self, text: str) -> int:
        if not self._screen.is_drawn:
            return self.stream.write(text)
        with self._screen.lock:
            lines, end, self.rest = (self.rest + text).rpartition("\n")
            if end:
                self._screen.write_above(f"{lines}\n")
        return len(text)

    def writelines(self, lines: Any) -> None:
        self.write("".join(lines))


class _Bytes:
    """Bytes for a stream that is above a view."""

    def __init__(self, above: Above) -> None:
        self._above = above

    def __getattr__(self, name: str) -> Any:
        return getattr(self._above.stream.buffer, name)

    def write(self, content: Any) -> int:
        self._above.write(bytes(content).decode(errors="surrogateescape"))
        return len(content)


def _redirect_handlers(before: Any, after: Any) -> None:
    for logger in [logging.getLogger(), *logging.root.manager.loggerDict.values()]:
        for handler in getattr(logger, "handlers", ()):
            if isinstance(handler, logging.StreamHandler) and handler.stream is before:
                with contextlib.suppress(ValueError, OSError):
                    handler.setStream(after)


class LineScreen(Screen):
    """Plain lines: one for each epoch and event, and one every ten seconds."""

    def __init__(
        self,
        file: TextIO,
        *,
        replaces_bar: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.replaces_bar = replaces_bar
        self._file = file
        self._clock = clock
        self._process = os.getpid()
        self._due = clock() + _LINE_SECONDS
        self._last = ""
        self._is_open = False

    def open(self) -> None:
        self._is_open = True

    def show(self, state: LiveState) -> None:
        if self._clock() >= self._due and state.step:
            line = line_of(state)
            if line != self._last:
                self._last = line
                self.say(f"evener: {line}")

    def say(self, text: str) -> None:
        if self._is_open and os.getpid() == self._process:
            self._due = self._clock() + _LINE_SECONDS
            self._file.write(f"{printable(text, keeps_colours=True)}\n")
            self._file.flush()

    def close(self) -> None:
        self._is_open = False


class NotebookScreen(Screen):
    """The view in the output of a cell, which is updated in place."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._state = LiveState()
        self._handle: Any = None

    def open(self) -> None:
        from IPython.display import display

        self._handle = display(self._html(), display_id=True)

    def show(self, state: LiveState) -> None:
        self._state = state
        if self._handle is not None:
            self._handle.update(self._html())

    def say(self, text: str) -> None:
        self._lines.append(text)
        self.show(self._state)

    def close(self) -> None:
        self._handle = None

    def _html(self) -> Any:
        from IPython.display import HTML

        return HTML(html_of("\n".join([*self._lines, text_of_view(self._state)])))


def text_of_view(state: LiveState) -> str:
    return text_of(lambda console: console.print(panel(state), no_wrap=True))


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
        _shown.append(self)
        self._screen.open()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
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


class WorkerFile(msgspec.Struct, frozen=True, kw_only=True):
    """File that a worker writes for the launcher."""

    process: int
    state: LiveState
    num_lines: int
    lines: list[str]


class FileScreen(Screen):
    """Screen of a worker: its state, in a file that the launcher reads."""

    def __init__(self, folder: Path, worker: int, *, replaces_bar: bool) -> None:
        self.replaces_bar = replaces_bar
        self._path = folder / f"worker-{worker}.json"
        self._lines: list[str] = []
        self._num_lines = 0
        self._lock = threading.Lock()
        self._state = LiveState()

    def show(self, state: LiveState) -> None:
        with self._lock:
            self._state = state
            self._write()

    def say(self, text: str) -> None:
        with self._lock:
            self._num_lines += 1
            self._lines = [*self._lines, text][-_MOST_LINES:]
            self._write()

    def _write(self) -> None:
        content = WorkerFile(
            process=os.getpid(), state=self._state, num_lines=self._num_lines, lines=self._lines
        )
        part = self._path.with_suffix(f".{os.getpid()}")
        # JSON of msgspec has no losses that are not finite.
        part.write_text(json.dumps(msgspec.to_builtins(content)), encoding="utf-8")
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
        files: dict[int, WorkerFile] = {}
        for path in self._folder.glob("worker-*.json"):
            if self._clock() - path.stat().st_mtime < _STALE_SECONDS:
                number = int(path.stem.removeprefix("worker-"))
                files[number] = msgspec.convert(json.loads(path.read_bytes()), WorkerFile)
        if not files:
            return None
        chief = files[min(files)]
        # A replacement counts from 0 again.
        new = chief.num_lines - self._seen.get(chief.process, 0)
        self._seen[chief.process] = chief.num_lines
        for line in chief.lines[-new:] if new > 0 else ():
            self._screen.say(line)
        devices = tuple(d for worker in sorted(files) for d in files[worker].state.devices)
        return dataclasses.replace(chief.state, devices=devices)


def is_wanted(live: bool | None, environ: Mapping[str, str]) -> bool:
    by_default = FOLDER in environ or can_draw({**environ, "NO_COLOR": ""})
    return by_default if live is None else live


@contextlib.contextmanager
def live_job(environ: dict[str, str] | os._Environ[str]) -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="evener-live-") as folder:
        screen = screen_of_process(environ)
        environ[FOLDER] = folder
        environ[IN_PLACE] = "1" if screen.replaces_bar else ""
        try:
            with LiveView(screen, JobState(Path(folder), screen).state):
                yield
        finally:
            del environ[FOLDER], environ[IN_PLACE]
