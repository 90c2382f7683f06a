"""Operations of TensorFlow: one file per family, with all that is known of each operation."""

from evener.graph.ops import (  # they fill the table of operations
    arithmetic,
    elementwise,
    filling,
    gathering,
    images,
    layers,
    lists,
    products,
    random,
    reshaping,
    slicing,
)
from evener.graph.ops.registry import OPERATIONS, Operation, operation

__all__ = [
    "OPERATIONS",
    "Operation",
    "arithmetic",
    "elementwise",
    "filling",
    "gathering",
    "images",
    "layers",
    "lists",
    "operation",
    "products",
    "random",
    "reshaping",
    "slicing",
]
