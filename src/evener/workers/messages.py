"""Messages from a member to the coordinator, checked when they are read.

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

All messages are JSON objects: reading them executes no code.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

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
    # Summary of its variables; see `evener.workers.fingerprints`.
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
