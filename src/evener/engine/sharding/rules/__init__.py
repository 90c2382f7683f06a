"""One rule per family of operations: what the parts compute, given what they hold.

A rule may only say what is the same as on one device. It returns None where it does not know, and
then the operation is gathered and computed once.
"""

from evener.engine.sharding.rules import (
    convolutions,
    cudnn,
    elementwise,
    images,
    lists,
    matmul,
    nn,
    random,
    reductions,
    rows,
    segments,
    shapes,
)

__all__ = [
    "convolutions",
    "cudnn",
    "elementwise",
    "images",
    "lists",
    "matmul",
    "nn",
    "random",
    "reductions",
    "rows",
    "segments",
    "shapes",
]
