"""Decisions: what the parts compute of an operation, and the rules that say it."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from evener._tf_private import operation_types
from evener.graph.dims import BATCH, Size
from evener.graph.nodes import Node, Tensor
from evener.ops.builder import Builder
from evener.ops.known import UnknownError
from evener.ops.states import (
    REPLICATED,
    SUM,
    Numbers,
    Partial,
    Sharded,
    State,
    Unset,
)

Lower: TypeAlias = "Callable[[Builder, Node, Sequence[str]], Sequence[str]]"
"""Adds what a part computes in place of an operation: builder, node, inputs -> outputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Decision on how the parts compute an operation.

    Attributes:
        inputs: State in which a part needs each input, or the numbers it is given instead.
        outputs: The state of every output.
        lower: Adds other operations in its place; None if a part runs the same operation.
        lower_rows: The rows that ``lower`` is right for.
        bodies: Sharding of the bodies of a loop or a condition, by attribute.
        needs_samples: Whether the kernel fails on a part without samples.
        list_lengths: Elements that a part has of the lists that a loop over rows writes, by input;
            they are made for the whole batch.
    """

    inputs: tuple[State | Numbers, ...]
    outputs: tuple[State, ...]
    lower: Lower | None = None
    lower_rows: Size = BATCH
    bodies: Mapping[str, Sharding] = field(default_factory=dict)
    needs_samples: bool = False
    list_lengths: Mapping[int, Size] = field(default_factory=dict)


def rows_of(decision: Decision) -> Size:
    """Return what is split of the tensors of an operation: the batch, or other rows."""
    states = (*decision.inputs, *decision.outputs)
    return next((state.rows for state in states if isinstance(state, Sharded)), BATCH)


@dataclass(slots=True)
class Sharding:
    """The states of a graph's tensors, and which nodes the parts compute.

    Attributes:
        states: State of every tensor.
        decisions: Decision of every node that the parts compute; the others are computed once.
    """

    states: dict[Tensor, State] = field(default_factory=dict)
    decisions: dict[Node, Decision] = field(default_factory=dict)

    def gathers(self, node: Node) -> list[Tensor]:
        """Return the sharded inputs of a node that is computed once."""
        if node in self.decisions:
            return []
        return [t for t in node.inputs if isinstance(self.states[t], Sharded)]


Decide: TypeAlias = Callable[[Node, Sequence[State]], "Decision | None"]
"""Returns what the parts compute of a node with inputs in these states; None: nothing."""


class Takes(enum.Flag):
    """The states of an input that a rule understands, beside replicated.

    An input that is a size, a position, an axis or a count takes ``WHOLE``: whatever the parts hold
    of it, a rule sees it replicated, and the parts are given the value of the whole batch.
    """

    WHOLE = 0
    ROWS = enum.auto()
    """Rows of samples, or a tensor list that is filled with them."""
    SUM = enum.auto()
    """Terms of a sum over the batch."""
    EXTREME = enum.auto()
    """Candidates for another reduction over the batch: a maximum, a product, all, any."""


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
class Rule:
    """A rule and the states of inputs that it may be asked about.

    Attributes:
        decide: Returns what the parts compute.
        inputs: The states that each input of the operation's definition takes; a list of tensors
            is one input of it.
        inexact: Whether the rule holds for floating-point and complex numbers alone: integers
            round in every part.
    """

    decide: Decide
    inputs: tuple[Takes, ...]
    inexact: bool = False

    def __call__(self, node: Node, states: Sequence[State]) -> Decision | None:
        """Return what the parts compute of a node.

        Args:
            node: The operation.
            states: The states of its inputs. What the rule does not take is seen replicated.
        """
        if self.inexact and not all(_is_inexact(tensor) for tensor in node.outputs):
            return None
        takes = self._of_tensors(node)
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

    def _of_tensors(self, node: Node) -> list[Takes]:
        counts = operation_types.input_counts(node.op, node.attrs)
        pairs = zip(self.inputs, counts, strict=True)
        return [taken for taken, count in pairs for _ in range(count)]


def _is_inexact(tensor: Tensor) -> bool:
    return tensor.dtype.is_floating or tensor.dtype.is_complex
