"""What the parts of a partitioned step hold of a tensor.

::

    Replicated      one value, the same for all parts
    Sharded(axis)   part r holds its rows of an axis: uneven, contiguous blocks in the order of
                    the parts
    Partial(sum)    every part holds a tensor of the full shape; their sum is the value
    PerPart         every part holds a value of its own, and goes on with it; the value is their
                    mean, weighted by samples

The batch may be an inner factor of an axis: of ``concat([a, b], 0)`` every part holds its rows
of ``a``, then its rows of ``b``. Then the axis is seen as ``[outer, batch, inner]``, and
``outer`` is 2.

Source: Y. Xu et al., GSPMD (2021), section 3.1, for tiled, replicated and partial tensors. There
all tiles are equal; here the shares are uneven, and a tile is the rows of whole samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from evener.engine.trace.dims import BATCH, Dim, Size, divide, has_batch, symbol


@dataclass(frozen=True, slots=True)
class Replicated:
    """One value, the same for all parts."""


@dataclass(frozen=True, slots=True)
class Sharded:
    """Every part holds the rows of its samples.

    Attributes:
        axis: The axis that counts samples. Of a tensor list: of the stacked list.
        outer: How many blocks of the whole batch the axis has.
    """

    axis: int
    outer: Size = 1


@dataclass(frozen=True, slots=True)
class Partial:
    """Every part holds a tensor of the full shape, which have to be combined.

    Attributes:
        combine: ``"sum"``, ``"max"``, ``"min"``, ``"prod"``, ``"all"`` or ``"any"``.
    """

    combine: str = "sum"


@dataclass(frozen=True, slots=True)
class PerPart:
    """Every part holds a statistic of its own samples, and goes on with it.

    The one state that is not exact: only ``batch_norm="per_device"`` makes it. What is computed
    once gets the mean, weighted by samples.
    """


@dataclass(frozen=True, slots=True)
class Unset:
    """What every part has of its own, without rows.

    A tensor list without elements yet, which becomes what is written to it first; what an
    operation keeps for its gradient alone.
    """


@dataclass(frozen=True, slots=True)
class Numbers:
    """What a part is given in place of a tensor of sizes: its own sizes.

    Attributes:
        sizes: Sizes in the symbols of the step, in ``b`` (the samples of the part) and in ``o``
            (the samples of the parts before it).
    """

    sizes: tuple[Size, ...]


State: TypeAlias = Replicated | Sharded | Partial | PerPart | Unset

REPLICATED = Replicated()
SUM = Partial("sum")
PER_PART = PerPart()
UNSET = Unset()
FIRST = Sharded(0)
PART_BATCH: Dim = symbol("b")
PART_OFFSET: Dim = symbol("o")


def is_first(state: State) -> bool:
    """Return whether the first axis counts samples."""
    return isinstance(state, Sharded) and state.axis == 0


def serves(state: State, wanted: State | Numbers) -> bool:
    """Return whether a tensor in a state can be used as it is where another is wanted."""
    return state == wanted or isinstance(state, Unset)


def rows_per_sample(size: Size, outer: Size = 1) -> Size | None:
    """Return the rows of a sample in one block of an axis: the ``inner`` of its factors.

    Args:
        size: The size of the axis for the whole batch.
        outer: How many blocks of the batch it has.

    Returns:
        The rows, or None if the axis does not count samples in such blocks.
    """
    rows = divide(size, BATCH * outer)
    return None if rows is None or rows == 0 or has_batch(rows) else rows


def is_shardable(shape: tuple[Size, ...] | None, state: Sharded) -> bool:
    """Return whether a tensor of a shape can be in a state."""
    if shape is None or not 0 <= state.axis < len(shape):
        return False
    return rows_per_sample(shape[state.axis], state.outer) is not None


def part_sizes(shape: tuple[Size, ...], state: Sharded) -> tuple[Size, ...]:
    """Return the shape of a part's tensor."""
    rows = rows_per_sample(shape[state.axis], state.outer)
    assert rows is not None
    return (*shape[: state.axis], PART_BATCH * state.outer * rows, *shape[state.axis + 1 :])
