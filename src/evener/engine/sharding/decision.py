"""What a rule says of one operation, and the table of rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from evener.engine.sharding.states import Numbers, Sharded, State
from evener.engine.trace.graph import Node, Tensor

if TYPE_CHECKING:
    from evener.engine.partition.functions import FunctionBuilder

Lower: TypeAlias = "Callable[[FunctionBuilder, Node, Sequence[str]], Sequence[str]]"
"""Adds what a part computes in place of an operation: builder, node, inputs -> outputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """How the parts compute an operation.

    Attributes:
        inputs: For every input the state in which a part needs it, or the numbers it is given
            instead.
        outputs: The state of every output.
        lower: Adds other operations in its place; None if a part runs the same operation.
        bodies: Of a loop or a condition: the sharding of its bodies, by attribute.
        needs_samples: Whether the kernel fails on a part without samples.
    """

    inputs: tuple[State | Numbers, ...]
    outputs: tuple[State, ...]
    lower: Lower | None = None
    bodies: Mapping[str, Sharding] = field(default_factory=dict)
    needs_samples: bool = False


@dataclass(slots=True)
class Sharding:
    """The states of a graph's tensors, and which nodes the parts compute.

    Attributes:
        states: Of every tensor.
        decisions: Of every node that the parts compute; the others are computed once.
    """

    states: dict[Tensor, State] = field(default_factory=dict)
    decisions: dict[Node, Decision] = field(default_factory=dict)

    def gathers(self, node: Node) -> list[Tensor]:
        """Return the sharded inputs of a node that is computed once."""
        if node in self.decisions:
            return []
        return [t for t in node.inputs if isinstance(self.states[t], Sharded)]


Rule: TypeAlias = Callable[[Node, Sequence[State]], "Decision | None"]

RULES: dict[str, Rule] = {}
"""By type of operation: for inputs that are replicated or sharded."""

PARTIAL_RULES: dict[str, Rule] = {}
"""By type of operation: for inputs of which some are partial. Without one they are combined."""


INSIDE_RULES: dict[str, Rule] = {}
"""By type of operation: for bodies of loops and conditions, where nothing can be combined."""


def rule(*ops: str) -> Callable[[Rule], Rule]:
    """Register a rule for types of operations."""
    return _register(RULES, ops)


def partial_rule(*ops: str) -> Callable[[Rule], Rule]:
    """Register a rule for types of operations with partial inputs."""
    return _register(PARTIAL_RULES, ops)


def inside_rule(*ops: str) -> Callable[[Rule], Rule]:
    """Register a rule for types of operations in bodies of loops and conditions."""
    return _register(INSIDE_RULES, ops)


def _register(table: dict[str, Rule], ops: Sequence[str]) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        for op in ops:
            assert op not in table, op
            table[op] = function
        return function

    return register
