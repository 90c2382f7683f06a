"""Operations of TensorFlow: one file per family, with all that is known of each operation."""

from evener.graph.ops import (  # they fill the table of operations
    arithmetic,
    elementwise,
    filling,
    gathering,
    layers,
    lists,
    random,
    reshaping,
    slicing,
)
from evener.graph.ops.registry import OPERATIONS, KnownOperation, operation

__all__ = [
    "OPERATIONS",
    "KnownOperation",
    "arithmetic",
    "elementwise",
    "filling",
    "gathering",
    "layers",
    "lists",
    "operation",
    "random",
    "reshaping",
    "slicing",
]
