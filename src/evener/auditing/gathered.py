"""The gathered operations of a partitioned step, stored in its graph for audits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evener.units import format_bytes

if TYPE_CHECKING:
    import tensorflow as tf

_COLLECTION = "evener_gathered"


@dataclass(frozen=True, slots=True, kw_only=True)
class GatheredOperation:
    """An operation that is computed once, for the global batch, instead of in parts.

    Attributes:
        operation: The type of operation, such as ``"Sort"``.
        name: Its name in the traced step.
        line: The line of the program that made it, as ``"file.py:12"``, or an empty string.
        num_bytes: Bytes per sample that are copied to one device for it; None if unknown.
    """

    operation: str
    name: str
    line: str
    num_bytes: int | None

    def __str__(self) -> str:
        where = f" at {self.line}" if self.line else ""
        size = "" if self.num_bytes is None else f": {format_bytes(self.num_bytes)} per sample"
        return f"{self.operation}{where}{size}"


def write_gathered(operations: Iterable[GatheredOperation]) -> None:
    """Store the gathered operations of a step in the current graph."""
    # Reading an audit does not import TensorFlow.
    import tensorflow as tf

    graph = tf.compat.v1.get_default_graph()
    for operation in operations:
        graph.add_to_collection(_COLLECTION, operation)


def read_gathered(graphs: Iterable[tf.Graph]) -> tuple[GatheredOperation, ...]:
    """Return the operations stored in graphs, each once: functions of a graph share its store."""
    found = (stored for graph in graphs for stored in graph.get_collection(_COLLECTION))
    return tuple(dict.fromkeys(found))
