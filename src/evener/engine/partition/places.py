"""Place of each node: the device and the stage in which its task runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import tensorflow as tf

from evener.devices.names import tf_device
from evener.engine.partition.homes import find_homes
from evener.engine.pipeline.layout import Stages
from evener.engine.pipeline.passes import WEIGHTS
from evener.engine.pipeline.staged_step import StagedStep
from evener.engine.trace.draws import DRAWS, draws
from evener.graph.dims import BATCH, Size
from evener.graph.nodes import Node, Tensor
from evener.ops.convolutions import is_grouped
from evener.ops.decision import Sharding, rows_of

_RESHAPES = frozenset({"ExpandDims", "Identity", "Reshape", "Squeeze"})
_FREE = _RESHAPES | {"Const", "IdentityN", "NoOp", "ReadVariableOp", "Shape", "ShapeN"}
"""Operations that cost nothing."""
PARTS = "parts"
PARTS_WITH_SAMPLES = "parts with samples"
"""Parts without samples skip these tasks; a separate task if others have counters of loops."""


class Place(NamedTuple):
    """Place that the nodes of one task have in common.

    Attributes:
        where: Device, or ``PARTS`` for a call on every part.
        stages: Stage of the parts in each replica; empty without a schedule.
        role: Pass of the parts, if passes are separate tasks.
        by_xla: Whether it belongs to a function with ``jit_compile=True``.
        rows: Rows that the parts split. A part may have samples and no row of another kind, and
            kernels that fail on no rows are not called then.
    """

    where: str
    stages: Stages = ()
    role: str = ""
    by_xla: bool = False
    rows: Size = BATCH

    @property
    def is_parts(self) -> bool:
        """Whether it is on every part, and not on one device."""
        return self.where in (PARTS, PARTS_WITH_SAMPLES)


def find_places(staged: StagedStep, owner_of: Callable[[Tensor], str]) -> dict[Node, Place]:
    """Return the place of every node of a step.

    Args:
        staged: Step.
        owner_of: Returns the device of a variable, by the argument that is its handle.
    """
    sharding, layout = staged.sharded.sharding, staged.layout
    first_device = layout.device(0, layout.first_stages)
    roles = _roles(staged)
    with_samples = PARTS_WITH_SAMPLES if _has_lists(sharding) else PARTS
    compiles = frozenset(tf_device(name) for name in layout.devices)
    homes = find_homes(
        staged.nodes,
        sharding,
        owner_of=owner_of,
        default=first_device,
        obeys_program=layout.group is None,
    )

    views = _views(staged.nodes)
    only_grouped = _only_grouped(staged.nodes, sharding) if layout.by_xla else frozenset()

    def is_for_xla(node: Node) -> bool:
        return layout.by_xla and _is_for_xla(node) and node.xla not in only_grouped

    def place_of(node: Node) -> Place:
        decision = sharding.decisions.get(node)
        if decision is None:
            # Nodes on the host beside other devices are small, or text, which XLA does not know.
            home = homes[node]
            if layout.group is not None and draws(node):
                return Place(home, role=DRAWS)
            by_xla = home in compiles and is_for_xla(node) and node not in views
            return Place(home, by_xla=by_xla)
        role = staged.passes.get(node, "")
        return Place(
            with_samples if decision.needs_samples else PARTS,
            staged.stages.get(node, ()),
            role if role in roles else "",
            by_xla=is_for_xla(node),
            rows=rows_of(decision),
        )

    return {node: place_of(node) for node in staged.nodes}


def _roles(staged: StagedStep) -> Collection[str]:
    """Return the passes that are separate tasks; fused passes hand over less."""
    return set(staged.passes.values()) if staged.layout.recompute else (WEIGHTS,)


def _has_lists(sharding: Sharding) -> bool:
    return any(
        decision.bodies or any(tensor.dtype == tf.variant for tensor in node.outputs)
        for node, decision in sharding.decisions.items()
    )


def _views(nodes: Sequence[Node]) -> set[Node]:
    """Return the nodes that hand memory over as it is, where XLA would copy it.

    They are the reads of variables that nothing has written yet, and their reshapes.
    """
    found: set[Node] = set()
    for node in nodes:
        is_unwritten = node.op == "ReadVariableOp" and not any(
            before.has_side_effect for before in node.after
        )
        if is_unwritten or (node.op in _RESHAPES and node.inputs[0].node in found):
            found.add(node)
    return found


def _only_grouped(nodes: Sequence[Node], sharding: Sharding) -> Collection[str]:
    """Return the compiled functions that compute a convolution of several groups and nothing else.

    Keras asks XLA for them, as TensorFlow lacks kernels that the rules of the parts do without.
    """
    found: set[str] = set()
    others: set[str] = set()
    for node in nodes:
        if not node.xla or node.op in _FREE:
            continue
        decision = sharding.decisions.get(node)
        has_kernel = node.op == "Conv2D" or (decision is not None and decision.lower is not None)
        is_split = decision is not None and is_grouped(node) and has_kernel
        (found if is_split else others).add(node.xla)
    return found - others


def _is_for_xla(node: Node) -> bool:
    """Return whether XLA is asked to compile a node and can. It knows no text."""
    if not node.xla:
        return False
    return not any(tensor.dtype == tf.string for tensor in (*node.inputs, *node.outputs))
