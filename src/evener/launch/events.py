"""Events that the supervisor waits for."""

from __future__ import annotations

import signal
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The process of a worker has ended, and its output is complete.

    Attributes:
        index: Number of the worker.
        incarnation: Number of its restarts.
        code: Exit code; the negative number of a signal, as in `subprocess`.
        why: Clause that says why, such as ``"was lost with its node"``; empty if the code says all.
    """

    index: int
    incarnation: int
    code: int
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """The coordinator gave a worker up.

    Attributes:
        index: Number of the worker.
        incarnation: Incarnation that is lost.
        why: Clause that says why, such as ``"it was silent for 10 seconds"``.
        wait_seconds: Time after which its process is killed. A process that fails closes its
            connection before it ends, and its own exit code is worth waiting for.
    """

    index: int
    incarnation: int
    why: str
    wait_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """Workers compute together from now on.

    Attributes:
        indices: Numbers of the workers.
        step: Number of the step that they compute next, from 1.
    """

    indices: tuple[int, ...]
    step: int = 1


@dataclass(frozen=True, slots=True)
class Agreed:
    """All workers have left: their program has come to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signalled:
    """The supervisor received a signal that asks it to end.

    Attributes:
        number: Number of the signal.
    """

    number: int


Membership = Lost | Joined | Agreed
Event = Ended | Membership | Signalled


def ending(code: int) -> str:
    """Return the words for the end of a process.

    Args:
        code: Exit code; the negative number of a signal.

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
