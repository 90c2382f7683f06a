"""State of a training as text, and its screens: a terminal, plain lines, the cell of a notebook."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TextIO

from rich import box
from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from evener.base.terminal import PrintableConsole, html_of, standard_error
from evener.base.text import format_bytes, format_seconds, printable

# The state of a training that the live view shows.


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveDevice:
    """Work of one device."""

    name: str  # Name of the device
    # Fraction of every batch that it computes now; None if it computes no part
    share: float | None = None
    busy: float | None = None  # Fraction of the time in which it computes; None if it is not timed
    waits: float | None = None  # Fraction of a step in which it waits; None if it is not timed
    waits_for: str = ""  # Device that it waits for longest; empty if it waits for none
    memory_bytes: int | None = None  # Memory in use; None where the device does not tell
    memory_limit: int | None = None  # Memory that there is; None where the device does not tell
    worker: int | None = None  # Number of its worker; None for a single process


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveState:
    """The state of a training at one time."""

    title: str = ""  # Line above the view; empty for none
    epoch: int | None = None  # Current epoch, from 1; None in a loop that is not Keras's
    num_epochs: int | None = None  # Number of epochs; None if unknown
    step: int = 0  # Completed steps, of the epoch if there are epochs
    num_steps: int | None = None  # Steps of an epoch; None if unknown
    samples_per_second: float | None = None  # Throughput of all devices; None if unknown
    seconds_left: float | None = None  # Seconds to the end of the last epoch; None if unknown
    # Loss and metrics of the epoch, by name
    losses: Mapping[str, float] = field(default_factory=dict)
    devices: tuple[LiveDevice, ...] = ()  # All devices

    def to_dict(self) -> dict[str, Any]:
        """Return the state as values of JSON."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_dict(fields: Mapping[str, Any]) -> LiveState:
        """Return the state of values of JSON.

        >>> import json
        >>> state = LiveState(step=3, devices=(LiveDevice(name="gpu:0"),))
        >>> LiveState.from_dict(json.loads(json.dumps(state.to_dict()))) == state
        True
        """
        devices = tuple(LiveDevice(**device) for device in fields["devices"])
        return LiveState(**{**fields, "devices": devices})


# The live view as text: a table of the devices, a progress bar, and the losses.

_UNKNOWN = "-"
_BAR_WIDTH = 20
_OTHER_LINES = 6
_LEAST_WAIT = 0.01


def panel(state: LiveState, *, num_lines: int = 1000) -> RenderableType:
    """Return the view for a terminal or a notebook."""
    parts: list[RenderableType] = []
    if state.title:
        parts.append(_line(state.title, style="bold"))
    if state.devices:
        num_shown = max(1, num_lines - _OTHER_LINES)
        parts.append(_table(state.devices[:num_shown]))
        if len(state.devices) > num_shown:
            parts.append(_line(f"and {len(state.devices) - num_shown} more devices", style="dim"))
    parts.append(_progress(state))
    losses = losses_text(state.losses)
    if losses:
        parts.append(_line(losses))
    return Group(*parts)


def line_of(state: LiveState) -> str:
    """Return the state as one line of plain text.

    >>> line_of(LiveState(epoch=1, num_epochs=3, step=20, num_steps=100, losses={"loss": 0.25}))
    'epoch 1/3  step 20/100  loss 0.2500'
    """
    parts = _where(state)
    if state.samples_per_second is not None:
        parts.append(f"{state.samples_per_second:,.0f} samples/s")
    if state.seconds_left is not None:
        parts.append(_left(state.seconds_left))
    if state.losses:
        parts.append(losses_text(state.losses))
    if len(state.devices) > 1:
        parts += [_device_text(device) for device in state.devices]
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
    """Return the loss and the metrics in one line, the loss first."""
    in_order = sorted(losses.items(), key=lambda item: item[0] != "loss")
    return "  ".join(f"{name} {value:.4f}" for name, value in in_order)


def _line(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _table(devices: Sequence[LiveDevice]) -> Table:
    columns: list[tuple[str, Callable[[LiveDevice], str], bool]] = [
        ("device", lambda d: d.name, True),
        ("share", lambda d: _percent(d.share), True),
        ("busy", lambda d: _percent(d.busy), True),
        ("waits for", _waiting, any(d.waits is not None for d in devices)),
        ("memory", _memory, any(d.memory_bytes is not None for d in devices)),
    ]
    if any(device.worker is not None for device in devices):
        worker = lambda d: _UNKNOWN if d.worker is None else str(d.worker)  # noqa: E731
        columns.insert(0, ("worker", worker, True))
    # The table has to fit in 80 columns.
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    shown = [(heading, cell) for heading, cell, is_shown in columns if is_shown]
    for heading, _ in shown:
        is_text = heading in ("device", "waits for")
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=True)
    for device in devices:
        table.add_row(*(Text(cell(device)) for _, cell in shown))
    return table


def _progress(state: LiveState) -> RenderableType:
    text = "  ".join(_where(state))
    rate = state.samples_per_second
    after = [] if rate is None else [f"{rate:,.0f} samples/s"]
    if state.epoch is not None:
        after.append(_left(state.seconds_left))
    if state.num_steps is None or state.num_epochs is None or state.epoch is None:
        return _line("  ".join([text, *after]))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, overflow="ellipsis")
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, overflow="ellipsis")
    done = (state.epoch - 1) * state.num_steps + state.step
    bar = ProgressBar(total=state.num_epochs * state.num_steps, completed=done, width=_BAR_WIDTH)
    grid.add_row(Text(text), bar, Text("  ".join(after)))
    return grid


def _where(state: LiveState) -> list[str]:
    if state.epoch is None:
        return [f"step {state.step}"]
    return [
        f"epoch {state.epoch}/{state.num_epochs or '?'}",
        f"step {state.step}/{state.num_steps or '?'}",
    ]


def _device_text(device: LiveDevice) -> str:
    name = device.name if device.worker is None else f"worker {device.worker} {device.name}"
    busy = "" if device.busy is None else f" busy {_percent(device.busy)}"
    return f"{name} {_percent(device.share)}{busy}"


def _waiting(device: LiveDevice) -> str:
    if device.waits is None:
        return _UNKNOWN
    # Copies and rounding of clocks are not worth a name.
    if not device.waits_for or device.waits < _LEAST_WAIT:
        return ""
    return f"{device.waits_for} {_percent(device.waits)}"


def _memory(device: LiveDevice) -> str:
    if device.memory_bytes is None:
        return _UNKNOWN
    used = format_bytes(device.memory_bytes)
    return used if device.memory_limit is None else f"{used} of {format_bytes(device.memory_limit)}"


def _percent(fraction: float | None) -> str:
    return _UNKNOWN if fraction is None else f"{fraction * 100:.0f} %"


def _left(seconds: float | None) -> str:
    if seconds is None:
        return f"{_UNKNOWN} left"
    return f"{round(seconds)} s left" if seconds < 60 else f"{format_seconds(seconds)} left"


# Standard output and error of a program, above the live view.


class Place(Protocol):
    """Screen that output is written above."""

    @property
    def is_drawn(self) -> bool:
        """Whether there is a view on the terminal."""
        ...

    @property
    def lock(self) -> threading.RLock:  # type: ignore[valid-type]
        """Lock of what is on the terminal."""
        ...

    def write_above(self, text: str, stream: TextIO) -> None:
        """Write complete lines above the view."""
        ...


class Above:
    """A text stream whose lines are written above the view, as they are.

    A line that is not complete, such as another progress bar, is the first line of the view until
    it is. Without a view, all goes straight to the stream, as in processes that are forked.
    """

    def __init__(self, stream: TextIO, place: Place) -> None:
        self._stream = stream
        self._place = place
        self.rest = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stream)

    @property
    def buffer(self) -> _Bytes:
        """The same stream for bytes."""
        return _Bytes(self)

    @property
    def shown_rest(self) -> str:
        """The part of the incomplete line that a terminal would show."""
        return self.rest.rstrip("\r").rpartition("\r")[2].replace("\b", "")

    def write(self, text: str) -> int:
        """Write a text; return the number of its characters."""
        if not self._place.is_drawn:
            return self._stream.write(text)
        with self._place.lock:
            lines, end, self.rest = (self.rest + text).rpartition("\n")
            if end:
                self._place.write_above(f"{lines}\n", self._stream)
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write several texts."""
        self.write("".join(lines))

    def flush(self) -> None:
        """Flush the stream; an incomplete line appears with the next view."""
        self._stream.flush()

    def take_rest(self) -> str:
        """Return the incomplete line, which is no longer kept."""
        rest, self.rest = self.rest, ""
        return rest


class _Bytes:
    """Bytes for a stream that is above a view."""

    def __init__(self, above: Above) -> None:
        self._above = above

    def __getattr__(self, name: str) -> Any:
        return getattr(self._above._stream.buffer, name)

    def write(self, content: Any) -> int:
        """Write bytes; return their number."""
        self._above.write(bytes(content).decode(errors="surrogateescape"))
        return len(content)

    def flush(self) -> None:
        """Flush the stream."""
        self._above.flush()


def redirected_handlers(streams: Mapping[Any, Any]) -> Callable[[], None]:
    """Let handlers of the logging module, which keep their stream, write to others."""
    loggers = [logging.getLogger(), *logging.root.manager.loggerDict.values()]
    handlers = {h: None for logger in loggers for h in getattr(logger, "handlers", ())}
    changed: list[tuple[Any, Any]] = []
    for handler in handlers:
        stream = getattr(handler, "stream", None)
        new = next((after for before, after in streams.items() if before is stream), None)
        if new is not None and isinstance(handler, logging.StreamHandler):
            changed.append((handler, stream))
            handler.setStream(new)

    def undo() -> None:
        for handler, stream in changed:
            with contextlib.suppress(ValueError, OSError):
                handler.setStream(stream)

    return undo


# Screens of the live view: a terminal, plain lines, and the cell of a notebook.
#
# On a terminal the view is below all other output. The cursor stays in the line under the view, and
# is never hidden, so that a process that is killed leaves a terminal that can be used::
#
#     output of the script
#     device  share  busy        <- view: erased and drawn again
#     epoch 1/3  step 20/100
#     _                          <- cursor

_LINE_SECONDS = 10.0
_NOTEBOOK_WIDTH = 100


class Screen(Protocol):
    """Place where a live view appears."""

    replaces_bar: bool
    """Whether Keras's own progress bar would show the same, in the same place."""

    def open(self) -> None:
        """Begin to show."""
        ...

    def show(self, state: LiveState) -> None:
        """Show a state, which replaces the last one."""
        ...

    def say(self, text: str) -> None:
        """Show a line that stays, such as an event or the end of an epoch."""
        ...

    def close(self) -> None:
        """End; what was shown stays. Safe to call again."""
        ...


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
    """Return the screen of a console, a terminal or a notebook; None if it cannot be drawn on."""
    if console.is_jupyter:
        return NotebookScreen()
    is_plain = console.is_dumb_terminal or console.no_color
    if not console.is_terminal or is_plain:
        return None
    is_of_process = console.file in (sys.stdout, sys.stderr)
    if is_of_process and not can_draw(os.environ):
        return None
    return TerminalScreen(console, redirects=is_of_process)


class TerminalScreen:
    """The view at the lower end of a terminal, under the output of the program."""

    replaces_bar = True

    def __init__(self, console: Console | None = None, *, redirects: bool = True) -> None:
        self._console = standard_error() if console is None else console
        self._file: TextIO = self._console.file  # type: ignore[assignment]
        self._redirects = redirects
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._lines: list[str] = []
        self._height = 0
        self._is_open = False
        self._streams: tuple[Any, Any] | None = None
        self._undo: Callable[[], None] = lambda: None

    @property
    def is_drawn(self) -> bool:
        """Whether the view of this process is on the terminal."""
        return self._is_open and os.getpid() == self._process

    def open(self) -> None:
        """Let all output appear above the view from now on."""
        with self._lock:
            self._is_open = True
            if not self._redirects:
                return
            self._streams = before = sys.stdout, sys.stderr
            sys.stdout, sys.stderr = new = Above(before[0], self), Above(before[1], self)
            self._undo = redirected_handlers(dict(zip(before, new, strict=True)))

    def show(self, state: LiveState) -> None:
        """Draw the view again."""
        with self._lock:
            if self.is_drawn:
                self._lines = self._rendered(panel(state, num_lines=self._console.height - 1))
                self._write(self._drawn())

    def say(self, text: str) -> None:
        """Write a line above the view."""
        with self._lock:
            if self.is_drawn:
                self.write_above(f"{printable(text, keeps_colours=True)}\n", self._file)

    def write_above(self, text: str, stream: TextIO) -> None:
        """Write complete lines of the program to their stream, as they are, above the view."""
        with self._lock:
            self._write(self._erased())
            stream.write(text)
            stream.flush()
            self._write(self._drawn())

    @property
    def lock(self) -> threading.RLock:  # type: ignore[valid-type]
        """Lock of what is on the terminal."""
        return self._lock

    def close(self) -> None:
        """Leave the last view on the terminal, and give standard output and error back."""
        with self._lock:
            if not self._is_open:
                return
            above = _above()
            rest = [stream.take_rest() for stream in above]
            if self.is_drawn:
                self._write(self._erased() + self._drawn())
            self._is_open = False
            if self._streams is not None:
                # A program may have put others in their place.
                if isinstance(sys.stdout, Above):
                    sys.stdout = self._streams[0]
                if isinstance(sys.stderr, Above):
                    sys.stderr = self._streams[1]
            self._undo()
            for stream, text in zip(above, rest, strict=True):
                stream.write(text)

    def _erased(self) -> str:
        """Return the codes that erase the view."""
        height, self._height = self._height, 0
        return f"\x1b[{height}A\x1b[J" if height else ""

    def _drawn(self) -> str:
        """Return the view in place of the one that is there; only `show` renders it."""
        up = f"\x1b[{self._height}A" if self._height else ""
        rest = [line for stream in _above() if stream.rest for line in self._rest_of(stream)]
        lines = [*rest, *self._lines][: max(1, self._console.height - 1)]
        self._height = len(lines)
        return f"{up}{''.join(f'{line}{_TO_END}' for line in lines)}\x1b[J"

    def _rest_of(self, stream: Above) -> list[str]:
        return self._rendered(Text.from_ansi(stream.shown_rest))

    def _rendered(self, view: RenderableType) -> list[str]:
        with self._console.capture() as capture:
            self._console.print(view, no_wrap=True, overflow="ellipsis", crop=True)
        return capture.get().splitlines()

    def _write(self, text: str) -> None:
        if text:
            self._file.write(text)
            self._file.flush()


_TO_END = "\x1b[K\n"


def _above() -> list[Above]:
    return [stream for stream in (sys.stdout, sys.stderr) if isinstance(stream, Above)]


class LineScreen:
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
        """Begin to show."""
        self._is_open = True

    def show(self, state: LiveState) -> None:
        """Print the state if the last line is ten seconds old."""
        if self._clock() >= self._due and state.step:
            line = line_of(state)
            if line != self._last:
                self._last = line
                self.say(f"evener: {line}")

    def say(self, text: str) -> None:
        """Print a line."""
        if self._is_open and os.getpid() == self._process:
            self._due = self._clock() + _LINE_SECONDS
            self._file.write(f"{printable(text, keeps_colours=True)}\n")
            self._file.flush()

    def close(self) -> None:
        """End."""
        self._is_open = False


class NotebookScreen:
    """The view in the output of a cell, which is updated in place."""

    replaces_bar = True

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._state = LiveState()
        self._handle: Any = None

    def open(self) -> None:
        """Show an empty view."""
        from IPython.display import display

        self._handle = display(self._html(), display_id=True)

    def show(self, state: LiveState) -> None:
        """Update the view."""
        self._state = state
        if self._handle is not None:
            self._handle.update(self._html())

    def say(self, text: str) -> None:
        """Add a line above the view."""
        self._lines.append(text)
        self.show(self._state)

    def close(self) -> None:
        """End; the view stays."""
        self._handle = None

    def _html(self) -> Any:
        from IPython.display import HTML

        return HTML(html_of("\n".join([*self._lines, text_of_view(self._state)])))


def text_of_view(state: LiveState, width: int = _NOTEBOOK_WIDTH) -> str:
    """Return the view as plain text."""
    out = io.StringIO()
    console = PrintableConsole(
        file=out, width=width, color_system=None, force_jupyter=False, legacy_windows=False
    )
    console.print(panel(state), no_wrap=True)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())
