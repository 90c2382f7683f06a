"""Predication: conditional updates of variables, as updates that are always made.

A condition whose branches write variables of several owners, such as that of a loss-scaling or
accumulating optimizer, would run as one operation on one device, and XLA could not compile it.
Instead, both branches are computed, and the predicate selects what is written::

    if finite:  v -= step(g)       ->    d = step(g)
    else:       scale = scale / 2        v -= finite ? d : 0
                                         scale = finite ? scale : scale / 2

So each update runs on the owner of its variable. It is done where the branches hold nothing but
elementwise operations and reductions on tensors of static shape: those cannot fail in the branch
that is not taken, and take little time.

Source: J. R. Allen, K. Kennedy, C. Porterfield, J. Warren, Conversion of Control Dependence to
Data Dependence (1983), for branches without jumps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from evener._tf_private import graphs
from evener.graph.constants import constant_array
from evener.graph.nodes import Graph, Node, Tensor
from evener.ops.registry import TOTAL, Trait, has_trait

NEUTRAL = {"AssignAddVariableOp": -0.0, "AssignSubVariableOp": 0.0}
"""What an operation writes that leaves a variable as it is, bit by bit."""
WRITES = frozenset({*NEUTRAL, "AssignVariableOp"})
_STATEFUL = frozenset({*WRITES, "ReadVariableOp"})


def can_be_predicated(node: Node, bodies: Mapping[str, Graph]) -> bool:
    """Return whether both branches of a condition can be computed.

    Args:
        node: The condition.
        bodies: Its branches, whose own conditions are predicated where they can be.
    """
    if list(bodies) != ["then_branch", "else_branch"]:
        return False
    choice = node.inputs[0]
    if choice.dtype != tf.bool or _shape(choice) != ():
        return False
    if not all(map(_can_be_selected, node.outputs)):
        return False
    return all(_is_total(inner, body) for body in bodies.values() for inner in body)


def predicate(
    node: Node, bodies: Mapping[str, Graph]
) -> tuple[list[Node], dict[Tensor, Tensor], frozenset[Node]]:
    """Replace a condition by the nodes of its branches.

    Args:
        node: The condition.
        bodies: Its branches, which are changed.

    Returns:
        The nodes, in an order in which they can run; what replaces the results of the condition;
        and the nodes that read or write variables.
    """
    nodes: list[Node] = []
    results: list[list[Tensor]] = []
    touched: dict[Tensor, set[Node]] = {}
    for name, body in bodies.items():
        before = {handle: frozenset(users) for handle, users in touched.items()}
        branch = _Branch(node, name, body, before)
        nodes += branch.nodes
        results.append([branch.given(tensor) for tensor in body.outputs])
        for inner in branch.nodes:
            if inner.op in _STATEFUL:
                touched.setdefault(inner.inputs[0], set()).add(inner)
    instead: dict[Tensor, Tensor] = {}
    for tensor, taken, other in zip(node.outputs, *results, strict=True):
        chosen = _select(node, f"result_{tensor.index}", [node.inputs[0], taken, other])
        nodes.append(chosen)
        instead[tensor] = chosen.outputs[0]
    return nodes, instead, frozenset(inner for inner in nodes if inner.op in _STATEFUL)


class _Branch:
    """The nodes of one branch, outside of the condition.

    Args:
        condition: The condition.
        name: The attribute that names the branch.
        body: The branch.
        before: Nodes of the other branch that come first, by handle. Only one branch
            changes anything, but a read must not come between a read and a write of the other.
    """

    def __init__(
        self, condition: Node, name: str, body: Graph, before: Mapping[Tensor, frozenset[Node]]
    ) -> None:
        self._condition = condition
        self._prefix = f"{condition.name}/{name}"
        self._is_taken = name == "then_branch"
        self._before = before
        self._given = dict(zip(body.inputs, condition.inputs[1:], strict=True))
        arguments = {tensor.node for tensor in body.inputs}
        self.nodes: list[Node] = []
        for node in body:
            if node not in arguments:
                self.nodes.extend(self._taken_out(node))

    def given(self, tensor: Tensor) -> Tensor:
        """Return a tensor of the branch as it is called outside."""
        return self._given.get(tensor, tensor)

    def _taken_out(self, node: Node) -> Iterator[Node]:
        node.name = f"{self._prefix}/{node.name}"
        node.inputs = [self.given(tensor) for tensor in node.inputs]
        node.after = node.after | self._condition.after
        if node.op in _STATEFUL:
            node.after |= self._before.get(node.inputs[0], frozenset())
        if node.op in WRITES:
            yield from self._guard(node)
        else:
            node.after = _writes(node.after)
        yield node

    def _guard(self, node: Node) -> Iterator[Node]:
        """Let a write change nothing unless the branch is taken."""
        handle, value = node.inputs
        if node.op == "AssignVariableOp":
            dtype = graphs.AttrValue(type=value.dtype.as_datatype_enum)
            kept = made_beside(
                "ReadVariableOp", node, "kept", [handle], {"dtype": dtype}, like=value
            )
        else:
            kept = constant_beside(node, "neutral", NEUTRAL[node.op], like=value)
        kept.after = _writes(node.after)
        yield kept
        pair = (value, kept.outputs[0]) if self._is_taken else (kept.outputs[0], value)
        chosen = _select(node, "chosen", [self._condition.inputs[0], *pair])
        yield chosen
        node.inputs = [handle, chosen.outputs[0]]
        if kept.op == "ReadVariableOp":
            node.after = node.after | {kept}


def _writes(after: frozenset[Node]) -> frozenset[Node]:
    """Return what a read has to wait for: writes, and not other reads, with which it may merge."""
    reads = [before for before in after if not before.has_side_effect]
    waits = after.union(*(before.after for before in reads))
    return frozenset(before for before in waits if before.has_side_effect)


def _select(node: Node, name: str, inputs: Sequence[Tensor]) -> Node:
    like = max(inputs[1:], key=lambda tensor: len(_shape(tensor) or ()))
    attrs = {"T": graphs.AttrValue(type=like.dtype.as_datatype_enum)}
    return made_beside("SelectV2", node, name, inputs, attrs, like=like)


def constant_beside(node: Node, name: str, number: float, *, like: Tensor) -> Node:
    """Return a constant of the dtype of a tensor that belongs to a node of the traced step."""
    array = np.asarray(number, like.dtype.as_numpy_dtype)
    attrs = {
        "dtype": graphs.AttrValue(type=like.dtype.as_datatype_enum),
        "value": graphs.AttrValue(tensor=tf.make_tensor_proto(array, dtype=like.dtype)),
    }
    return made_beside("Const", node, name, [], attrs, like=like, shape=())


def made_beside(
    op: str,
    node: Node,
    name: str,
    inputs: Sequence[Tensor],
    attrs: Mapping[str, Any],
    *,
    like: Tensor,
    shape: tuple[int | None, ...] | None = None,
) -> Node:
    """Return a node that belongs to a node of the traced step."""
    made = Node(
        f"{node.name}/{name}",
        op,
        inputs,
        attrs,
        dtypes=[like.dtype],
        device=node.device if op == "ReadVariableOp" else "",
        static_shapes=[_shape(like) if shape is None else shape],
        source=node.source,
        xla=node.xla,
    )
    made.after = node.after
    return made


def _is_total(node: Node, body: Graph) -> bool:
    """Return whether a node cannot fail in a branch that is not taken."""
    if node.op == "Placeholder" and node.outputs[0] in body.inputs:
        return (
            node.outputs[0].dtype in (tf.resource, tf.bool) or _shape(node.outputs[0]) is not None
        )
    if node.op in _STATEFUL:
        handle = node.inputs[0] in body.inputs
        return handle and all(_shape(t) is not None for t in _numbers(node))
    if not all(map(_can_be_selected, (*node.inputs, *node.outputs))):
        return False
    if has_trait(node, Trait.TOTAL_ON_FLOATS):
        return node.inputs[0].dtype.is_floating or _divides_by_constant(node)
    if node.op == "StridedSlice":
        return all(constant_array(index) is not None for index in node.inputs[1:])
    return has_trait(node, TOTAL)


def _divides_by_constant(node: Node) -> bool:
    divisor = constant_array(node.inputs[1]) if has_trait(node, Trait.DIVISION) else None
    return divisor is not None and bool(np.all(divisor > 0))


def _numbers(node: Node) -> Iterable[Tensor]:
    return (tensor for tensor in (*node.inputs, *node.outputs) if tensor.dtype != tf.resource)


def _can_be_selected(tensor: Tensor) -> bool:
    is_number = tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_complex
    return (is_number or tensor.dtype == tf.bool) and _shape(tensor) is not None


def _shape(tensor: Tensor) -> tuple[int, ...] | None:
    """Return the static shape, or None if a size is not known."""
    shape = tensor.node.static_shapes[tensor.index]
    if shape is None or any(size is None for size in shape):
        return None
    return tuple(size for size in shape if size is not None)
