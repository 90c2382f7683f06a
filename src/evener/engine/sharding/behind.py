"""Operations behind a gathered one: what is heavy goes back to the parts.

::

    x  sharded --> reverse  once --> + 1  once --> matmul  rows of its result again sharded
                                                   weights

A sort or a permutation of the samples is computed once, and its result is replicated. All that
follows would be computed once, too. Every part can take its rows of the result instead. That pays
for matrix products and convolutions; elementwise operations on the way cost less than a transfer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from evener.engine.sharding.decision import Decision
from evener.engine.sharding.rules.shapes import first_batch_axis
from evener.engine.sharding.states import REPLICATED, Sharded, State
from evener.engine.trace.graph import Node, Tensor

HEAVY = frozenset(
    """
    MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 Einsum Conv2D Conv3D DepthwiseConv2dNative
    """.split()
)


@dataclass(slots=True)
class RowsBehind:
    """The rows of samples in tensors that are computed once, behind gathered operations.

    Attributes:
        rows: The state that a part could take of each.
    """

    rows: dict[Tensor, Sharded] = field(default_factory=dict)

    def decide(
        self,
        node: Node,
        states: Sequence[State],
        decide: Callable[[Sequence[State]], Decision | None],
    ) -> Decision | None:
        """Return what the parts compute of a node that would be computed once, or None.

        Args:
            node: The operation.
            states: The states of its inputs.
            decide: Asks the rules, for inputs in given states.
        """
        pairs = list(zip(node.inputs, states, strict=True))
        seen = [self.rows.get(t, s) if s == REPLICATED else s for t, s in pairs]
        found = decide(seen) if seen != list(states) else None
        if found is not None:
            if node.op in HEAVY:
                return found
            outputs = zip(node.outputs, found.outputs, strict=True)
            self.rows |= {t: state for t, state in outputs if isinstance(state, Sharded)}
        elif any(isinstance(state, Sharded) for state in seen):
            for tensor in node.outputs:
                state = None if tensor.shape is None else first_batch_axis(tensor.shape)
                if state is not None and not tensor.is_sizes:
                    self.rows[tensor] = state
        return None
