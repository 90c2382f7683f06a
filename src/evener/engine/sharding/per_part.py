"""Statistics of the samples of one part: ``batch_norm="per_device"``.

These are not in the tables of rules: what they say is not the same as on one device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from evener._tf_private.batch_norm import PER_PART_SCOPE
from evener.graph.dims import Size
from evener.graph.nodes import Node
from evener.ops.axes import reduced_axes
from evener.ops.decision import Decision
from evener.ops.elementwise import elementwise
from evener.ops.registry import operation
from evener.ops.states import (
    PER_PART,
    REPLICATED,
    Partial,
    Sharded,
    State,
    is_shardable,
)


def mean_per_part(node: Node, states: Sequence[State]) -> Decision | None:
    """The mean over the samples of a part, where a layer asks for it; of its rows, if need be."""
    scopes = node.name.split("/")[:-1]
    if node.op != "Mean" or not any(name.startswith(PER_PART_SCOPE) for name in scopes):
        return None
    shape, state = node.inputs[0].shape, states[0]
    gone = None if shape is None else reduced_axes(shape, node.inputs[1].value)
    rows = state if isinstance(state, Sharded) else _rows(shape, gone or ())
    if rows is None or rows.axis not in (gone or ()) or states[1] != REPLICATED:
        return None
    return Decision(inputs=(rows, REPLICATED), outputs=(PER_PART,))


def _rows(shape: tuple[Size, ...] | None, axes: Iterable[int]) -> Sharded | None:
    """Return the first axis that counts samples."""
    return next((Sharded(k) for k in axes if is_shardable(shape, Sharded(k))), None)


def _is_elementwise(node: Node) -> bool:
    rule = operation(node.op).rule
    return rule is not None and rule.decide is elementwise


def elementwise_per_part(node: Node, states: Sequence[State]) -> Decision | None:
    """Operations on statistics, alone or with the samples of the part."""
    if PER_PART not in states or not _is_elementwise(node):
        return None
    if any(isinstance(state, Partial) for state in states):
        return None
    if not any(isinstance(state, Sharded) for state in states):
        return Decision(inputs=tuple(states), outputs=(PER_PART,))
    decision = elementwise(node, [REPLICATED if s == PER_PART else s for s in states])
    if decision is None:
        return None
    pairs = list(zip(states, decision.inputs, strict=True))
    # A statistic that is wanted as rows would be that of other samples.
    if any(state == PER_PART and wanted != REPLICATED for state, wanted in pairs):
        return None
    inputs = tuple(state if state == PER_PART else wanted for state, wanted in pairs)
    return Decision(inputs=inputs, outputs=decision.outputs)
