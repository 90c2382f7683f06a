"""A line of the program that is read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A line of a file.

    Args:
        path: Absolute path.
        line: Line number, from 1; 0 for the file as a whole.
        text: Text of the line, without surrounding spaces.
    """

    path: str
    line: int
    text: str = ""
