"""A line of the program that is read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A line of a file.

    Args:
        path: The absolute path.
        line: From 1; 0 for the file as a whole.
        text: The line itself, without the spaces around it.
    """

    path: str
    line: int
    text: str = ""
