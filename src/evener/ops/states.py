"""States: what the parts of a partitioned step hold of a tensor.

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

Other rows than the samples of the batch may be split too, in the proportions of the shares: 64 rows
of noise, the 12 samples of a second data set, the ``B + 64`` rows of real and generated images. Of
such tensors ``rows`` is that size. What is split by one size never meets what is split by another,
unless it is joined before.

Source: Y. Xu et al., GSPMD (2021), section 3.1, for tiled, replicated and partial tensors. There
all tiles are equal; here the shares are uneven, and a tile is the rows of whole samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from evener.graph.dims import (
    BATCH,
    Dim,
    PartSymbol,
    Size,
    divide,
    symbol,
    symbols_of,
)


def _part_symbol(kind: str, rows: Size) -> Dim:
    return symbol(PartSymbol(kind, rows))


@dataclass(frozen=True, slots=True)
class Replicated:
    """One value, the same for all parts."""


@dataclass(frozen=True, slots=True)
class Sharded:
    """Every part holds the rows of its samples.

    Attributes:
        axis: The axis that counts samples. Of a tensor list: of the stacked list.
        outer: Number of blocks of the whole batch along the axis.
        rows: The size that is split: that of the batch, or the rows of other tensors.
    """

    axis: int
    outer: Size = 1
    rows: Size = BATCH

    def at(self, axis: int) -> Sharded:
        """Return the state of the same rows along another axis."""
        return Sharded(axis, self.outer, self.rows)

    def with_blocks(self, axis: int, outer: Size) -> Sharded:
        """Return the state of the same rows along an axis of so many blocks."""
        return Sharded(axis, outer, self.rows)

    @property
    def in_part(self) -> Dim:
        """Number of the rows of a part."""
        return PART_BATCH if self.rows == BATCH else _part_symbol("b", self.rows)

    @property
    def before_part(self) -> Dim:
        """Number of the rows of the parts before."""
        return PART_OFFSET if self.rows == BATCH else _part_symbol("o", self.rows)


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
    """A value of every part's own, without rows.

    A tensor list without elements yet, which becomes what is written to it first; what an
    operation keeps for its gradient alone.
    """


@dataclass(frozen=True, slots=True)
class Numbers:
    """Sizes that a part is given in place of a tensor of sizes: its own.

    Attributes:
        sizes: Sizes in the symbols of the step, in ``b`` (the samples of the part) and in ``o``
            (the samples of the parts before it), or the same of other rows.
    """

    sizes: tuple[Size, ...]


State: TypeAlias = Replicated | Sharded | Partial | PerPart | Unset

REPLICATED = Replicated()
SUM = Partial("sum")
PER_PART = PerPart()
UNSET = Unset()
FIRST = Sharded(0)
PART_BATCH: Dim = _part_symbol("b", BATCH)
PART_OFFSET: Dim = _part_symbol("o", BATCH)


def is_first(state: State) -> bool:
    """Return whether the first axis counts samples."""
    return isinstance(state, Sharded) and state.axis == 0


def first_of(state: State) -> Sharded | None:
    """Return the state of the same rows in one block, if they are along the first axis."""
    return Sharded(0, 1, state.rows) if isinstance(state, Sharded) and state.axis == 0 else None


def serves(state: State, wanted: State | Numbers) -> bool:
    """Return whether a tensor in a state can be used as it is where another is wanted."""
    return state == wanted or isinstance(state, Unset)


def rows_per_sample(size: Size, state: Sharded = FIRST) -> Size | None:
    """Return the rows of a sample in one block of an axis: the ``inner`` of its factors.

    Args:
        size: The size of the axis for all parts together.
        state: Says what is split, and how many blocks of it the axis has.

    Returns:
        The rows, or None if the axis does not count samples in such blocks. An axis that is known
        to have size 1 counts none: it is broadcast, and a part without rows would not have it.
    """
    if size == 1:
        return None
    rows = divide(size, state.rows * state.outer)
    is_known = rows is not None and rows != 0 and not symbols_of(rows) & symbols_of(state.rows)
    return rows if is_known else None


def is_shardable(shape: tuple[Size, ...] | None, state: Sharded) -> bool:
    """Return whether a tensor of a shape can be in a state."""
    if shape is None or not 0 <= state.axis < len(shape):
        return False
    return rows_per_sample(shape[state.axis], state) is not None


def part_sizes(shape: tuple[Size, ...], state: Sharded) -> tuple[Size, ...]:
    """Return the shape of a part's tensor."""
    rows = rows_per_sample(shape[state.axis], state)
    assert rows is not None
    return (*shape[: state.axis], state.in_part * state.outer * rows, *shape[state.axis + 1 :])
