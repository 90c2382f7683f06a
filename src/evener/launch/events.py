"""Events that the supervisor waits for."""

from __future__ import annotations

import signal
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The process of a worker has ended, and its output is complete."""

    index: int
    incarnation: int
    code: int  # Negative for a signal, as in `subprocess`.
    why: str = ""  # Clause, such as ``"was lost with its node"``; empty if the code says all.


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """The coordinator gave a worker up."""

    index: int
    incarnation: int
    why: str  # Clause, such as ``"it was silent for 10 seconds"``.
    # Time after which its process is killed. A process that fails closes its connection before it
    # ends, and its own exit code is worth waiting for.
    wait_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """Workers compute together from now on."""

    indices: tuple[int, ...]
    step: int = 1  # Number of the step that they compute next, from 1.


@dataclass(frozen=True, slots=True)
class Agreed:
    """All workers have left: their program has come to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signalled:
    """The supervisor received a signal that asks it to end."""

    number: int


Membership = Lost | Joined | Agreed
Event = Ended | Membership | Signalled


def ending(code: int) -> str:
    """Return the words for the end of a process; the code is negative for a signal.

    >>> ending(-9), ending(1)
    ('was ended by SIGKILL', 'ended with code 1')
    """
    if code >= 0:
        return f"ended with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was ended by {name}"
