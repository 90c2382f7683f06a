"""Events of a job, which a coordinator reports to the process that hosts it."""

from __future__ import annotations

from dataclasses import dataclass

from evener.errors import RunError
from evener.workers.view import View


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A worker is lost; ``why`` is a clause, such as ``"it was silent for 10 seconds"``."""

    index: int
    incarnation: int
    why: str
    is_fault: bool  # False if other workers had finished already, so nobody needs a replacement.


@dataclass(frozen=True, slots=True, kw_only=True)
class Formed:
    """A view is formed, and its members were told."""

    view: View


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """All workers were given up, with the error that each of them raises."""

    error: RunError
    missing: frozenset[int] = frozenset()  # Workers that had not joined, or did not come.


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """All members of the view have finished."""


Event = Lost | Formed | Failed | Ended
