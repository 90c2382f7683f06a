"""Clock, lines, steps and faults, which all parts of the watcher in the watched process share.

    program --> patches --> parts (loops, training, data, settings) --> Facts --> file
                              |                                          ^
                              +-- Recorder: steps, lines, faults --------+

The parts only look. An exception of theirs becomes a text in `Facts.missed`, never one of the
program's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CellType, FrameType
from typing import Any, Literal, TypeVar, cast

from evener.base.user_code import is_own, is_rewritten
from evener.doctor.facts import CodeLine, Ending, Facts, Outcome, to_bytes

T = TypeVar("T")
SCOPE = "evener_watch"
"""Scope of operations that the watcher adds to graphs."""
FLUSH_SECONDS = 1.0
_BUSY_SHARE = 0.3
_BUSY_LOAD = 3.0  # waiting processes per core
_AUTOGRAPH = str(Path("tensorflow", "python", "autograph"))

Event = Literal["apply", "difference", "draw", "fit", "gradient", "run", "step", "tape"]
"""What a part may listen to, by a method with its name."""
Original = Callable[..., Any]
"""A function of a library that the watcher replaces, and calls."""


class Recorder:
    def __init__(self, path: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.began = clock()
        self.last_step_at: float | None = None
        self.num_steps = 0  # that are over
        self.is_busy = False
        self._here = threading.local()
        # Each has `facts`, which returns fields of `Facts` as far as they are known now, and a
        # method `on_EVENT` for each `Event` that it listens to.
        self.parts: list[Any] = []
        self.ending: Ending | None = None
        self.missed: dict[str, None] = {}
        self.notes: dict[str, None] = {}
        self._path = path
        self._pid = os.getpid()
        self._flushed = self.began
        self._cpu = time.process_time()
        self._lock = threading.RLock()

    @property
    def is_here(self) -> bool:
        """Whether this is the watched process itself, not a fork of it."""
        return os.getpid() == self._pid

    @property
    def is_looking(self) -> int:
        return getattr(self._here, "looking", 0)

    def safely(self, look: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function of the watcher; if it fails, that is recorded, and None returned."""
        self._here.looking = self.is_looking + 1
        try:
            return look(*args, **kwargs)
        except Exception as error:
            self.miss(getattr(look, "__qualname__", repr(look)), error)
            return None
        finally:
            self._here.looking -= 1

    def tell(self, event: Event, *args: Any) -> None:
        for part in self.parts:
            listen = getattr(part, f"on_{event}", None)
            if listen is not None:
                self.safely(listen, *args)

    def before(self, look: Callable[..., Any]) -> Callable[..., Any]:
        """Return a wrap whose result shows its arguments to `look`, and calls the original."""
        from evener._tf_private.functions import left_to_autograph

        def replaced(original: Original, *args: Any, **kwargs: Any) -> Any:
            self.safely(look, *args, **kwargs)
            return original(*args, **kwargs)

        return left_to_autograph(replaced)

    def after_init(self, look: Callable[[Any], None]) -> Callable[..., Any]:
        """Return a wrap of an ``__init__`` whose result shows what is made to `look`."""
        from evener._tf_private.functions import left_to_autograph

        def replaced(original: Original, made: Any, *args: Any, **kwargs: Any) -> None:
            original(made, *args, **kwargs)
            self.safely(look, made)

        return left_to_autograph(replaced)

    def every(self, seconds: float, look: Callable[[], None]) -> None:
        """Call a function of the watcher from a thread, now and then until the run has ended."""

        def run() -> None:
            wait = threading.Event().wait
            while self.ending is None and not wait(seconds):
                self.safely(look)

        threading.Thread(target=run, name=f"evener-{look.__name__}", daemon=True).start()

    def miss(self, what: str, error: BaseException) -> None:
        self.missed[f"{what}: {type(error).__name__}: {error}"[:500]] = None

    def ending_now(self, outcome: Outcome, **fields: Any) -> Ending:
        now = self.clock()
        still = now - (self.last_step_at or self.began)
        return Ending(outcome=outcome, seconds=now - self.began, still_seconds=still, **fields)

    def facts(self) -> Facts:
        fields: dict[str, Any] = {}
        for part in self.parts:
            fields |= self.safely(part.facts) or {}
        return Facts(
            # A parent that has ended it knows more.
            ending=self.ending or self.ending_now(Outcome.TIMED_OUT, is_busy=self.is_busy),
            is_machine_busy=os.getloadavg()[0] > _BUSY_LOAD * (os.cpu_count() or 1),
            missed=tuple(self.missed),
            notes=tuple(self.notes),
            **fields,
        )

    def flush(self, *, least_seconds: float = 0.0) -> None:
        """Write the facts, unless that was done less than so many seconds ago."""
        if not self.is_here or self.clock() - self._flushed < least_seconds:
            return
        with self._lock:
            # Whole or not at all, and no open file: programs may close all that they did not open.
            beside = Path(f"{self._path}.new")
            beside.write_bytes(to_bytes(self.facts()))
            beside.replace(self._path)
            self._flushed = self.clock()

    def flush_each_second(self) -> None:
        """Write the facts now and then, so that a kill loses little."""
        cpu, self._cpu = self._cpu, time.process_time()
        self.is_busy = self._cpu - cpu >= _BUSY_SHARE * FLUSH_SECONDS
        self.flush(least_seconds=FLUSH_SECONDS)


def added(use: T, **counts: float) -> T:
    """Return a record of facts with some of its numbers greater."""
    sums = {name: getattr(use, name) + count for name, count in counts.items()}
    return dataclasses.replace(cast("Any", use), **sums)


@contextlib.contextmanager
def inside(here: threading.local, flag: str) -> Iterator[bool]:
    """Set a flag of this thread in the block; give what it was before."""
    before = getattr(here, flag, False)
    setattr(here, flag, True)
    try:
        yield before
    finally:
        setattr(here, flag, before)


@functools.lru_cache(maxsize=8192)
def _kind_of(filename: str) -> str:
    if is_rewritten(filename):
        return "rewritten"
    return "own" if is_own(filename) else "library"


def own_frame(frame: FrameType | None = None) -> FrameType | None:
    """Return the innermost frame of user code, rewritten by AutoGraph or not, in this thread."""
    frame = frame or sys._getframe(1)
    while frame is not None and _kind_of(frame.f_code.co_filename) == "library":
        frame = frame.f_back
    return frame


def own_line(frame: FrameType | None = None) -> CodeLine | None:
    """Return the innermost line of user code in this thread, as it was written."""
    found = own_frame(frame or sys._getframe(1))
    if found is None:
        return None
    if _kind_of(found.f_code.co_filename) == "own":
        return CodeLine(file=found.f_code.co_filename, line=found.f_lineno)
    from evener._tf_private.functions import stack

    # AutoGraph runs a copy; TensorFlow knows its lines.
    for file, number in reversed(stack()):
        if _kind_of(file) == "own":
            return CodeLine(file=file, line=number)
    return None


def targets(pattern: str) -> list[str]:
    """Return targets of a patch: one for each word in braces.

    >>> targets("keras:layers.{GRU LSTM}.call")
    ['keras:layers.GRU.call', 'keras:layers.LSTM.call']
    """
    before, words, after = re.split("[{}]", pattern)
    return [f"{before}{word}{after}" for word in words.split()]


def making_line() -> CodeLine | None:
    """Return the line of user code that makes an object: outside of the `__init__` of its class."""
    frame = own_frame(sys._getframe(1))
    while frame is not None and (
        frame.f_code.co_name == "__init__" or _kind_of(frame.f_code.co_filename) != "own"
    ):
        frame = frame.f_back
    return own_line(frame) if frame is not None else own_line()


def states_of_numpy(function: Any) -> list[int]:
    """Return states of `np.random` and of generators that a function names: draws change them."""
    # Imported here: its threads would be there before a sandbox is entered.
    import numpy as np

    state: Any = np.random.get_state(legacy=False)
    function = getattr(function, "__func__", function)
    names = getattr(getattr(function, "__code__", None), "co_names", ())
    known = getattr(function, "__globals__", {})
    cells = getattr(function, "__closure__", None) or ()
    given = [known.get(name) for name in names]
    given += [cell.cell_contents for cell in cells if cell != CellType()]
    generators = [each for each in given if isinstance(each, np.random.Generator)]
    position = int(state["state"].get("pos", 0))
    return [position, *(hash(str(each.bit_generator.state)) for each in generators)]


def is_asked_by_user(frame: FrameType) -> bool:
    """Return whether the frame that called a patched function is user code, or AutoGraph for it."""
    caller = frame
    while caller is not None and _AUTOGRAPH in caller.f_code.co_filename:
        caller = caller.f_back
    return caller is not None and _kind_of(caller.f_code.co_filename) != "library"
