"""A view: the workers that compute together, until one of them is lost or another one joins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evener.errors import RunError

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
