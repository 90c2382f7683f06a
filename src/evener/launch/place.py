"""The script's own line behind a call: where somebody would look."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

from evener.own_code import is_own, short_path

__all__ = ["Place", "callers", "is_own", "own_place", "place_of"]


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
        return f"{short_path(self.path)}:{self.line}"

    def as_in_a_traceback(self) -> str:
        """Return the line in the form in which Python's tracebacks name it."""
        return f'  File "{self.path}", line {self.line}, in {self.function}'


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
