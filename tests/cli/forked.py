"""What a program that `forks` has run left behind, for the tests beside this file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Done]

# Another share than even, so that what a replica scales wrong is seen.
UNEVEN = ("run", "--devices", "cpu:2", "--shares", "3,1", "--json")
