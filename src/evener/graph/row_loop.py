"""Loops over rows, as `tf.map_fn` makes them, and the roles of their arguments."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evener.graph.dims import Size

if TYPE_CHECKING:
    from evener.graph.nodes import Node


class Role(enum.Enum):
    """Roles of the arguments of a loop over rows."""

    COUNTER = enum.auto()
    """The number of the round, from 0."""
    SAME = enum.auto()
    """Handed through."""
    READ = enum.auto()
    """A list that is handed through, of which a round reads its row."""
    WRITTEN = enum.auto()
    """A list of which a round writes its row, and may read it."""
    PUSHED = enum.auto()
    """A list that begins empty and grows by one row in every round."""
    POPPED = enum.auto()
    """A list that loses its last row in every round."""
    SUM = enum.auto()
    """What is added to in every round, and not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLoop:
    """A loop whose rounds have one row each.

    Attributes:
        count: The number of rounds, and of elements in the lists of rows.
        roles: Role of every argument.
        tests: The comparisons of a counter with the number of rounds, in the condition.
        at_rows: The reads and writes at the row of the round, with the number of the list.
        made: Lists that the body makes, of as many elements, and adds to a list of rows.
        indices: The lists that the counter is pushed to.
    """

    count: Size
    roles: tuple[Role, ...]
    tests: frozenset[Node]
    at_rows: dict[Node, int]
    made: frozenset[Node]
    indices: frozenset[int]
