"""States: what the parts of a partitioned step hold of a tensor; decisions: what they compute.

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

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from evener._tf_private import graphs
from evener.graph.dims import BATCH, Dim, PartSymbol, Size, divide, symbol, symbols_of
from evener.graph.nodes import Node, Tensor


@dataclass(frozen=True, slots=True)
class Replicated:
    """One value, the same for all parts."""


@dataclass(frozen=True, slots=True)
class Sharded:
    """Every part holds the rows of its samples."""

    axis: int  # The axis that counts samples. Of a tensor list: of the stacked list
    outer: Size = 1  # Number of blocks of the whole batch along the axis
    rows: Size = BATCH  # The size that is split: that of the batch, or the rows of other tensors

    def at(self, axis: int) -> Sharded:
        return Sharded(axis, self.outer, self.rows)

    def in_blocks(self, axis: int, outer: Size) -> Sharded:
        return Sharded(axis, outer, self.rows)

    @property
    def in_part(self) -> Dim:
        return symbol(PartSymbol("b", self.rows))

    @property
    def before_part(self) -> Dim:
        return symbol(PartSymbol("o", self.rows))


@dataclass(frozen=True, slots=True)
class Partial:
    combine: str = "sum"  # ``"sum"``, ``"max"``, ``"min"``, ``"prod"``, ``"all"`` or ``"any"``


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
    """Sizes that a part is given in place of a tensor of sizes: its own."""

    # Sizes in the symbols of the step, in ``b`` (the samples of the part) and in ``o`` (the samples
    # of the parts before it), or the same of other rows
    sizes: tuple[Size, ...]


State: TypeAlias = Replicated | Sharded | Partial | PerPart | Unset

REPLICATED = Replicated()
SUM = Partial("sum")
PER_PART = PerPart()
UNSET = Unset()
FIRST = Sharded(0)
PART_BATCH: Dim = symbol(PartSymbol("b", BATCH))
PART_OFFSET: Dim = symbol(PartSymbol("o", BATCH))


def is_first(state: State) -> bool:
    return isinstance(state, Sharded) and state.axis == 0


def serves(state: State, wanted: State | Numbers) -> bool:
    return state == wanted or isinstance(state, Unset)


def rows_per_sample(size: Size, state: Sharded = FIRST) -> Size | None:
    """Return the rows of a sample in one block of an axis: the ``inner`` of its factors."""
    if size == 1:
        return None
    rows = divide(size, state.rows * state.outer)
    is_known = rows is not None and rows != 0 and not symbols_of(rows) & symbols_of(state.rows)
    return rows if is_known else None


def is_shardable(shape: tuple[Size, ...] | None, state: Sharded) -> bool:
    if shape is None or not 0 <= state.axis < len(shape):
        return False
    return rows_per_sample(shape[state.axis], state) is not None


def part_sizes(shape: tuple[Size, ...], state: Sharded) -> tuple[Size, ...]:
    rows = rows_per_sample(shape[state.axis], state)
    assert rows is not None
    return (*shape[: state.axis], state.in_part * state.outer * rows, *shape[state.axis + 1 :])


T = TypeVar("T")


class UnknownError(Exception):
    """Something that a rule needs is not known before the step runs, or is not so."""


def require(condition: bool) -> None:
    """Leave a rule that holds under a condition alone."""
    if not condition:
        raise UnknownError


def known(value: T | None) -> T:
    if value is None:
        raise UnknownError
    return value


def shape_of(tensor: Tensor) -> tuple[Size, ...]:
    return known(tensor.shape)


def rank_of(tensor: Tensor) -> int:
    return len(shape_of(tensor))


def numbers_of(tensor: Tensor) -> tuple[Size, ...]:
    return known(tensor.value)


def integers_of(tensor: Tensor) -> tuple[int, ...]:
    """Return the numbers in a tensor, if they are the same in every step."""
    return tuple(map(integer, numbers_of(tensor)))


def integer(size: Size | None) -> int:
    if not isinstance(size, int):
        raise UnknownError
    return size


def axis_of(tensor: Tensor, rank: int) -> int:
    axes = integers_of(tensor)
    require(len(axes) == 1)
    return axes[0] % rank


def sharded(state: State) -> Sharded:
    if not isinstance(state, Sharded):
        raise UnknownError
    return state


def first_of(state: State) -> Sharded:
    rows = sharded(state)
    require(rows.axis == 0)
    return Sharded(0, 1, rows.rows)


def first_sharded(states: Sequence[State]) -> Sharded:
    return sharded(next((state for state in states if isinstance(state, Sharded)), UNSET))


# The builder is a `FunctionBuilder`, which knows the states of its arguments.
# Adds what a part computes in place of an operation: builder, node, inputs -> outputs.
Lower: TypeAlias = Callable[[Any, Node, Sequence[str]], Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    # State in which a part needs each input, or the numbers it is given instead
    inputs: tuple[State | Numbers, ...]
    outputs: tuple[State, ...]  # The state of every output
    # Adds other operations in its place; None if a part runs the same operation
    lower: Lower | None = None
    lower_rows: Size = BATCH  # The rows that ``lower`` is right for
    # Sharding of the bodies of a loop or a condition, by attribute
    bodies: Mapping[str, Sharding] = field(default_factory=dict)
    needs_samples: bool = False  # Whether the kernel fails on a part without samples
    # Elements that a part has of the lists that a loop over rows writes, by input; they are made
    # for the whole batch
    list_lengths: Mapping[int, Size] = field(default_factory=dict)


def by_rows(
    node: Node, state: State | Numbers, target: State, *, needs_samples: bool = False
) -> Decision:
    """Return a decision with the first input in a state, the others whole, and one for outputs."""
    inputs = (state, *[REPLICATED] * (len(node.inputs) - 1))
    outputs = (target,) * len(node.outputs)
    return Decision(inputs=inputs, outputs=outputs, needs_samples=needs_samples)


def rows_of(decision: Decision) -> Size:
    """Return what is split of the tensors of an operation: the batch, or other rows."""
    states = (*decision.inputs, *decision.outputs)
    return next((state.rows for state in states if isinstance(state, Sharded)), BATCH)


@dataclass(slots=True)
class Sharding:
    """The states of a graph's tensors, and which nodes the parts compute."""

    states: dict[Tensor, State] = field(default_factory=dict)  # State of every tensor
    # Decision of every node that the parts compute; the others are computed once
    decisions: dict[Node, Decision] = field(default_factory=dict)


# Returns what the parts compute of a node with inputs in these states; None: nothing.
Decide: TypeAlias = Callable[[Node, Sequence[State]], "Decision | None"]


class Takes(enum.Flag):
    """The states of an input that a rule understands, beside replicated.

    An input that is a size, a position, an axis or a count takes ``WHOLE``: whatever the parts hold
    of it, a rule sees it replicated, and the parts are given the value of the whole batch.
    """

    WHOLE = 0
    ROWS = enum.auto()  # Rows of samples, or a tensor list that is filled with them
    SUM = enum.auto()  # Terms of a sum over the batch
    # Candidates for another reduction over the batch: a maximum, a product, all, any.
    EXTREME = enum.auto()


WHOLE, ROWS, SUMS, EXTREMES = Takes.WHOLE, Takes.ROWS, Takes.SUM, Takes.EXTREME
PARTIALS = SUMS | EXTREMES


def kind_of(state: State) -> Takes:
    """Return what an input has to take to be in a state."""
    if isinstance(state, Sharded | Unset):
        return ROWS
    if isinstance(state, Partial):
        return SUMS if state == SUM else EXTREMES
    return WHOLE


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingRule:
    """A rule and the states of inputs that it may be asked about."""

    decide: Decide  # Returns what the parts compute
    # The states that each input of the operation's definition takes; a list of tensors is one input
    # of it
    inputs: tuple[Takes, ...]
    # Whether the rule holds for floating-point and complex numbers alone: integers round in every
    # part
    inexact: bool = False

    def __call__(self, node: Node, states: Sequence[State]) -> Decision | None:
        if self.inexact and not all(map(is_inexact, node.outputs)):
            return None
        pairs = zip(self.inputs, graphs.input_counts(node.op, node.attrs), strict=True)
        takes = [taken for taken, count in pairs for _ in range(count)]
        seen = [
            state if kind_of(state) & ~taken == WHOLE else REPLICATED
            for state, taken in zip(states, takes, strict=True)
        ]
        try:
            decision = self.decide(node, seen)
        except UnknownError:
            return None
        if decision is not None:
            wanted = zip(decision.inputs, takes, strict=True)
            assert all(isinstance(w, Numbers) or not kind_of(w) & ~t for w, t in wanted), node
        return decision


def is_inexact(tensor: Tensor) -> bool:
    return tensor.dtype.is_floating or tensor.dtype.is_complex
