"""Numbers of elements of tensors, for a number of samples."""

from __future__ import annotations

import math
from collections.abc import Sequence

from evener.graph.dims import Size, evaluate, symbols_of
from evener.graph.nodes import Tensor


def numbers(sizes: Sequence[Size], num_samples: int) -> tuple[int, ...]:
    """Return what sizes are where all samples are in one part.

    A size that only the data decides counts as 1.
    """
    values = dict.fromkeys((name for size in sizes for name in symbols_of(size)), 1)
    values |= {"B": num_samples, "b": num_samples, "o": 0}
    return tuple(int(evaluate(size, values)) for size in sizes)


def sizes_of(tensor: Tensor, num_samples: int) -> tuple[int, ...]:
    """Return the sizes of a tensor; none if its rank is not known."""
    return numbers(tensor.shape or (), num_samples)


def num_elements(tensor: Tensor, num_samples: int) -> int:
    """Return the elements of a tensor; 1 if its rank is not known."""
    return math.prod(sizes_of(tensor, num_samples))
