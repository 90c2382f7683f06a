"""Messages between the members of a job and its coordinator, and the events of a job.

All messages are JSON objects that are checked when they are read: reading them executes no code.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from evener.errors import RunError

# A view: the workers that compute together, until one of them is lost or another one joins.

NOTHING = -1
"""Calls of a replacement that no one has handed a state over to yet."""


class ViewOver(RunError):
    """RUN-070: the view ended while a worker waited in it; it goes on with `Member.next_view`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The workers that compute together."""

    number: int  # Number of the view, from 1; every change of the members makes a new one.
    members: tuple[int, ...]  # Numbers of the workers, in rising order.
    addresses: Mapping[int, str]  # Data address of every member.
    # Calls that each member had finished when the view was formed. A member that joins has none, so
    # it takes over the state of another one; it has ``NOTHING`` if an earlier view was over before
    # that. Empty in the first view, and where nobody is left who has a state.
    done: Mapping[int, int]
    joined: tuple[int, ...]  # Members that were not in the view before, in rising order.

    def to_json(self) -> dict[str, Any]:
        """Return the view as a JSON object; its keys are texts."""
        return {
            "number": self.number,
            "members": list(self.members),
            "addresses": {str(index): address for index, address in self.addresses.items()},
            "done": {str(index): calls for index, calls in self.done.items()},
            "joined": list(self.joined),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> View:
        """Return the view that `to_json` wrote."""
        return cls(
            number=value["number"],
            members=tuple(value["members"]),
            addresses={int(index): address for index, address in value["addresses"].items()},
            done={int(index): calls for index, calls in value["done"].items()},
            joined=tuple(value["joined"]),
        )


# Messages from a member to the coordinator, checked when they are read.
#
# ::
#
#     member                      coordinator
#       Appear       ------->        (a replacement, on a connection of its own, with beats)
#       Look         ------->        (a replacement, on a connection of its own)
#                    <-------     past
#       Hello        ------->
#                    <-------     view, or error
#       Beat         ------->     (at least four in the time after which silence is a loss)
#                    <-------     beat
#       Exchange     ------->
#                    <-------     values, or exchange_failed
#                    <-------     view_over
#       Stop         ------->
#                    <-------     view
#       Leave        ------->
#                    <-------     go, or view
#
# All messages are JSON objects: reading them executes no code.

BEATS = 4
"""Beats in the time after which silence is a loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """A process wants to join as a worker."""

    index: int
    count: int  # Number of workers that it expects.
    incarnation: int  # Number of its restarts.
    address: str  # Data address under which the others reach it.
    # Description of the worker; those under ``"same"`` must be equal on all workers.
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Appear:
    """Evener has started in a replacement, which does not join yet."""

    index: int
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A replacement asks where the job stands, before it joins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """A member is alive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A member gives its JSON value of an exchange."""

    view: int
    key: str
    value: Any
    timeout_seconds: float  # Time that the member waits for the others.


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """A member has stopped at the end of a step, for the next view."""

    view: int  # Number of the view that it leaves.
    done: int  # Calls that it has finished.
    is_at_end: bool = False  # Whether its program has ended, and it serves others.


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """A member has finished."""

    view: int
    done: int  # Calls that it has finished.
    # Summary of its variables; see `evener.workers.state`.
    state: dict[str, Any] = dataclasses.field(default_factory=dict)


Message = Hello | Appear | Look | Beat | Exchange | Stop | Leave
_KINDS: dict[str, type[Message]] = {
    "hello": Hello,
    "appear": Appear,
    "look": Look,
    "beat": Beat,
    "exchange": Exchange,
    "stop": Stop,
    "leave": Leave,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}
_ALLOWED: dict[Any, tuple[type, ...]] = {
    int: (int,),
    bool: (bool,),
    float: (int, float),
    str: (str,),
    dict[str, Any]: (dict,),
    Any: (object,),
}
_TYPES = {
    kind: {name: _ALLOWED[hint] for name, hint in get_type_hints(kind).items()} for kind in _NAMES
}


def encode(message: Message) -> dict[str, Any]:
    """Return a message as a JSON object."""
    names = [field.name for field in dataclasses.fields(message)]
    return {"kind": _NAMES[type(message)], **{name: getattr(message, name) for name in names}}


def decode(value: Mapping[str, Any]) -> Message:
    """Return the message of a JSON object; ValueError if its kind or its fields are wrong."""
    fields = dict(value)
    kind = _KINDS.get(str(fields.pop("kind", None)))
    if kind is None or fields.keys() != _TYPES[kind].keys():
        raise ValueError(f"no message has these fields: {sorted(value)}")
    for name, allowed in _TYPES[kind].items():
        if not isinstance(fields[name], allowed):
            raise ValueError(f"{name} of {_NAMES[kind]} is {type(fields[name]).__name__}")
    return kind(**fields)


# Events of a job, which a coordinator reports to the process that hosts it.


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
