"""Screens of the live view: a terminal, plain lines, and the cell of a notebook.

On a terminal the view is below all other output. The cursor stays in the line under the view, and
is never hidden, so that a process that is killed leaves a terminal that can be used::

    output of the script
    device  share  busy        <- view: erased and drawn again
    epoch 1/3  step 20/100
    _                          <- cursor
"""

from __future__ import annotations

import io
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TextIO

from rich.console import Console, RenderableType
from rich.text import Text

from evener.report.live.above import Above, redirected_handlers
from evener.report.live.display import line_of, panel
from evener.report.live.state import LiveState
from evener.terminal import PrintableConsole, html_of, standard_error
from evener.units import printable

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
    """Return the screen of a console: its terminal, or a notebook; None if it cannot be drawn on.

    Args:
        console: Console of a program, or for the output of one.
    """
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
    """The view at the lower end of a terminal, under the output of the program.

    Args:
        console: Console of the terminal; None for that of standard error.
        redirects: Whether standard output and standard error appear above the view.
    """

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
    """Plain lines: one for each epoch and event, and one every ten seconds.

    Args:
        file: Stream for the lines.
        replaces_bar: Whether Keras's own progress bar is written to the same terminal.
        clock: Function that returns the time in seconds.
    """

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
