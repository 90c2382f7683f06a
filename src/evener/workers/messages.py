"""Messages between the members of a job and its coordinator, and the events of a job.

::

    member                      coordinator
      Appear       ------->        (a replacement, on a connection of its own, with beats)
      Look         ------->        (a replacement, on a connection of its own)
                   <-------     past
      Hello        ------->
                   <-------     view, or error
      Beat         ------->     (at least four in the time after which silence is a loss)
                   <-------     beat
      Exchange     ------->
                   <-------     values, or exchange_failed
                   <-------     view_over
      Stop         ------->
                   <-------     view
      Leave        ------->
                   <-------     go, or view

All messages are JSON objects that are checked when they are read: reading them executes no code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from evener.errors import RunError

NOTHING = -1
"""Calls of a replacement that no one has handed a state over to yet."""
BEATS = 4
"""Beats in the time after which silence is a loss."""


class ViewOver(RunError):
    """RUN-070: the view ended while a worker waited in it; it goes on with `Member.next_view`."""


class View(msgspec.Struct, frozen=True, kw_only=True):
    """The workers that compute together, until one of them is lost or another one joins."""

    number: int  # Number of the view, from 1; every change of the members makes a new one.
    members: tuple[int, ...]  # Numbers of the workers, in rising order.
    addresses: dict[int, str]  # Data address of every member.
    # Calls that each member had finished when the view was formed. A member that joins has none, so
    # it takes over the state of another one; it has ``NOTHING`` if an earlier view was over before
    # that. Empty in the first view, and where nobody is left who has a state.
    done: dict[int, int]
    joined: tuple[int, ...]  # Members that were not in the view before, in rising order.

    def to_json(self) -> dict[str, Any]:
        return msgspec.to_builtins(self, str_keys=True)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> View:
        return msgspec.convert(value, cls, str_keys=True)


class _Message(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag=str.lower,
):
    """Message from a member to the coordinator."""


class Hello(_Message, frozen=True):
    index: int
    count: int  # Number of workers that it expects.
    incarnation: int  # Number of its restarts.
    address: str  # Data address under which the others reach it.
    # Description of the worker; those under ``"same"`` must be equal on all workers.
    facts: dict[str, Any]


class Appear(_Message, frozen=True):
    """Evener has started in a replacement, which does not join yet."""

    index: int
    incarnation: int


class Look(_Message, frozen=True):
    """A replacement asks where the job stands, before it joins."""


class Beat(_Message, frozen=True):
    """A member is alive."""


class Exchange(_Message, frozen=True):
    view: int
    key: str
    value: Any
    timeout_seconds: float  # Time that the member waits for the others.


class Stop(_Message, frozen=True):
    """A member has stopped at the end of a step, for the next view."""

    view: int  # Number of the view that it leaves.
    done: int  # Calls that it has finished.
    is_at_end: bool = False  # Whether its program has ended, and it serves others.


class Leave(_Message, frozen=True):
    view: int
    done: int  # Calls that it has finished.
    state: dict[str, Any] = {}  # Summary of its variables; see `evener.workers.state`.


Message = Hello | Appear | Look | Beat | Exchange | Stop | Leave


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A worker is lost; ``why`` is a clause, such as ``"it was silent for 10 seconds"``."""

    index: int
    incarnation: int
    why: str
    is_fault: bool  # False if other workers had finished already, so nobody needs a replacement.


@dataclass(frozen=True, slots=True, kw_only=True)
class Formed:
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
"""What a coordinator reports to the process that hosts it."""
