"""The script's own line behind a call: where somebody would look."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

_EVENER = str(Path(__file__).parents[1]) + os.sep
_LIBRARIES = tuple({str(Path(path)) + os.sep for path in sysconfig.get_paths().values() if path})
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
# AutoGraph runs a rewritten copy of a function; its lines are nobody's.
_REWRITTEN = "__autograph_generated_file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A line of a person's own code.

    Args:
        path: The absolute path of the file.
        line: The number of the line, from 1.
        function: The function it is in; ``"<module>"`` for none.
    """

    path: str
    line: int
    function: str = "<module>"

    def __str__(self) -> str:
        return f"{_short(self.path)}:{self.line}"

    def as_in_a_traceback(self) -> str:
        """Return the line in the form in which Python's tracebacks name it."""
        return f'  File "{self.path}", line {self.line}, in {self.function}'


def is_own(filename: str) -> bool:
    """Return whether a code's file is a person's own: no library, not evener, not generated.

    >>> is_own("/home/me/train.py"), is_own("<string>")
    (True, False)
    """
    if filename.startswith(("<", _EVENER, *_LIBRARIES)) or _REWRITTEN in filename:
        return False
    return not any(folder in filename for folder in _INSTALLED)


def callers() -> Iterator[FrameType]:
    """Yield the frames around the function that asks, from the inside out."""
    frame = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def own_place() -> Place | None:
    """Return the innermost own line that is running in this thread, or None."""
    return next((place_of(f) for f in callers() if is_own(f.f_code.co_filename)), None)


def place_of(frame: FrameType) -> Place:
    """Return the line that a frame is at."""
    code = frame.f_code
    return Place(path=code.co_filename, line=frame.f_lineno, function=code.co_name)


def _short(path: str) -> str:
    """Return a path as somebody in this folder would write it."""
    below = Path(path)
    return str(below.relative_to(Path.cwd())) if below.is_relative_to(Path.cwd()) else path
