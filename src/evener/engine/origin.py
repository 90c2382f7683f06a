"""Source line of a person's program that led here, for messages that name it."""

from __future__ import annotations

import warnings
from typing import NamedTuple

from evener._tf_private.source_lines import stack
from evener.errors import EvenerWarning, house_form
from evener.own_code import is_own


class Line(NamedTuple):
    """A line of a program.

    Attributes:
        file: Its path.
        number: Counted from 1.
    """

    file: str
    number: int

    def __str__(self) -> str:
        return f"{self.file}:{self.number}"


def user_line() -> Line:
    """Return the innermost line of a person's own code, through what AutoGraph has rewritten."""
    for file, number in reversed(stack()):
        if is_own(file):
            return Line(file, number)
    return Line("<unknown>", 0)


def warn_at_user_line(code: str, what: str, *, why: str, fix: str) -> None:
    """Warn in the house form, at the line of the person's program."""
    line = user_line()
    text = house_form(code, what, f"{why}\nAt: {line}", fix)
    warnings.warn_explicit(EvenerWarning(text), EvenerWarning, line.file, line.number)
