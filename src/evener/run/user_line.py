"""The line of user code that led to a call, from the frames of the stack: without TensorFlow."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

from evener.own_code import is_own, short_path

# An optimizer that these modules call is part of `fit`.
_TRAINERS = ("keras.src.backend.tensorflow.trainer", "keras.src.trainers", "tf_keras.src.engine.")


@dataclass(frozen=True, slots=True, kw_only=True)
class UserLine:
    """A line of user code.

    Args:
        path: The absolute path of the file.
        number: The line number, from 1.
        function: The enclosing function; ``"<module>"`` outside of functions.
    """

    path: str
    number: int
    function: str = "<module>"

    def __str__(self) -> str:
        return f"{short_path(self.path)}:{self.number}"

    def as_in_a_traceback(self) -> str:
        """Return the line in the form in which Python's tracebacks name it."""
        return f'  File "{self.path}", line {self.number}, in {self.function}'


def callers() -> Iterator[FrameType]:
    """Yield the stack frames of the caller, innermost first."""
    frame = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def user_line() -> UserLine | None:
    """Return the innermost line of user code on the stack of this thread, or None."""
    return next((line_of(f) for f in callers() if is_own(f.f_code.co_filename)), None)


def line_of(frame: FrameType) -> UserLine:
    """Return the current line of a frame."""
    code = frame.f_code
    return UserLine(path=code.co_filename, number=frame.f_lineno, function=code.co_name)


def line_of_loop() -> UserLine | None:
    """Return the script's line, or None if Keras runs the loop or no line is the script's."""
    own: UserLine | None = None
    for frame in callers():
        if str(frame.f_globals.get("__name__", "")).startswith(_TRAINERS):
            return None
        if own is None and is_own(frame.f_code.co_filename):
            own = line_of(frame)
    return own
