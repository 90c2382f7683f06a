"""Rewrites of a traced graph, none of which changes what it computes.

bodies of loops and conditions     reads of variables are taken out of them
conditional updates of variables   predication: updates that are always made
conditions with a known answer     the branch that is taken, in their place
equal reads of a variable          one read
work on broadcast tensors          is done before they are broadcast
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from evener._tf_private import graphs
from evener.graph.functions import attribute
from evener.graph.nodes import Graph, Node, Tensor, constant_array
from evener.graph.ops.registry import (
    Shape,
    Trait,
    broadcast,
    has_trait,
    truth_of,
)
from evener.graph.ops.states import is_inexact

# Predication: conditional updates of variables, as updates that are always made.
#
# A condition whose branches write variables of several owners, such as that of a loss-scaling or
# accumulating optimizer, would run as one operation on one device, and XLA could not compile it.
# Instead, both branches are computed, and the predicate selects what is written::
#
#     if finite:  v -= step(g)       ->    d = step(g)
#     else:       scale = scale / 2        v -= finite ? d : 0
#                                          scale = finite ? scale : scale / 2
#
# So each update runs on the owner of its variable. It is done where the branches hold nothing but
# elementwise operations and reductions on tensors of static shape: those cannot fail in the branch
# that is not taken, and take little time.
#
# Source: J. R. Allen, K. Kennedy, C. Porterfield, J. Warren, Conversion of Control Dependence to
# Data Dependence (1983), for branches without jumps.

# What an operation writes that leaves a variable as it is, bit by bit.
NEUTRAL = {"AssignAddVariableOp": -0.0, "AssignSubVariableOp": 0.0}
WRITES = frozenset({*NEUTRAL, "AssignVariableOp"})
_STATEFUL = frozenset({*WRITES, "ReadVariableOp"})


def can_be_predicated(node: Node, bodies: Mapping[str, Graph]) -> bool:
    return (
        list(bodies) == ["then_branch", "else_branch"]
        and node.inputs[0].dtype == tf.bool
        and _shape(node.inputs[0]) == ()
        and all(map(_can_be_selected, node.outputs))
        and all(_is_total(inner, body) for body in bodies.values() for inner in body)
    )


def predicate(
    node: Node, bodies: Mapping[str, Graph]
) -> tuple[list[Node], dict[Tensor, Tensor], frozenset[Node]]:
    nodes: list[Node] = []
    results: list[list[Tensor]] = []
    touched: dict[Tensor, set[Node]] = defaultdict(set)
    for name, body in bodies.items():
        # Nodes of the other branch come first. Only one branch changes anything, but a read must
        # not come between a read and a write of the other.
        before = {handle: frozenset(users) for handle, users in touched.items()}
        outside = dict(zip(body.inputs, node.inputs[1:], strict=True))
        branch: list[Node] = []
        for inner in body.operations():
            inner.name = f"{node.name}/{name}/{inner.name}"
            inner.inputs = [outside.get(tensor, tensor) for tensor in inner.inputs]
            inner.after = inner.after | node.after
            if inner.op in _STATEFUL:
                inner.after |= before.get(inner.inputs[0], frozenset())
            if inner.op in WRITES:
                branch += _guard(node, inner, is_taken=name == "then_branch")
            else:
                inner.after = _writes(inner.after)
            branch.append(inner)
        nodes += branch
        results.append([outside.get(tensor, tensor) for tensor in body.outputs])
        for inner in branch:
            if inner.op in _STATEFUL:
                touched[inner.inputs[0]].add(inner)
    instead: dict[Tensor, Tensor] = {}
    for tensor, taken, other in zip(node.outputs, *results, strict=True):
        chosen = _select(node, f"result_{tensor.index}", [node.inputs[0], taken, other])
        nodes.append(chosen)
        instead[tensor] = chosen.outputs[0]
    return nodes, instead, frozenset(inner for inner in nodes if inner.op in _STATEFUL)


def _guard(condition: Node, node: Node, *, is_taken: bool) -> list[Node]:
    """Let a write of a branch change nothing unless the branch is taken."""
    handle, value = node.inputs
    if node.op == "AssignVariableOp":
        attrs = {"dtype": value.dtype}
        neutral = _node_beside("ReadVariableOp", node, "kept", [handle], attrs, like=value)
    else:
        neutral = _constant_beside(node, "neutral", NEUTRAL[node.op], like=value)
    neutral.after = _writes(node.after)
    pair = (value, neutral.outputs[0]) if is_taken else (neutral.outputs[0], value)
    chosen = _select(node, "chosen", [condition.inputs[0], *pair])
    node.inputs = [handle, chosen.outputs[0]]
    if neutral.op == "ReadVariableOp":
        node.after = node.after | {neutral}
    return [neutral, chosen]


def _writes(after: frozenset[Node]) -> frozenset[Node]:
    """Return what a read has to wait for: writes, and not other reads, with which it may merge."""
    reads = [before for before in after if not before.has_side_effect]
    waits = after.union(*(before.after for before in reads))
    return frozenset(before for before in waits if before.has_side_effect)


def _select(node: Node, name: str, inputs: Sequence[Tensor]) -> Node:
    like = max(inputs[1:], key=lambda tensor: len(_shape(tensor) or ()))
    return _node_beside("SelectV2", node, name, inputs, {"T": like.dtype}, like=like)


def _constant_beside(node: Node, name: str, number: float, *, like: Tensor) -> Node:
    array = np.asarray(number, like.dtype.as_numpy_dtype)
    value = graphs.AttrValue(tensor=tf.make_tensor_proto(array, dtype=like.dtype))
    attrs = {"dtype": like.dtype, "value": value}
    return _node_beside("Const", node, name, [], attrs, like=like, shape=())


def _node_beside(
    op: str,
    node: Node,
    name: str,
    inputs: Sequence[Tensor],
    attrs: Mapping[str, Any],
    *,
    like: Tensor,
    shape: tuple[int | None, ...] | None = None,
) -> Node:
    beside = Node(
        f"{node.name}/{name}",
        op,
        list(inputs),
        {key: attribute(value) for key, value in attrs.items()},
        dtypes=[like.dtype],
        device=node.device if op == "ReadVariableOp" else "",
        static_shapes=(_shape(like) if shape is None else shape,),
        source=node.source,
        xla=node.xla,
    )
    beside.after = node.after
    return beside


def _is_total(node: Node, body: Graph) -> bool:
    """Return whether a node cannot fail in a branch that is not taken."""
    if node.op == "Placeholder" and node.outputs[0] in body.inputs:
        return (
            node.outputs[0].dtype in (tf.resource, tf.bool) or _shape(node.outputs[0]) is not None
        )
    if node.op in _STATEFUL:
        numbers = (t for t in (*node.inputs, *node.outputs) if t.dtype != tf.resource)
        return node.inputs[0] in body.inputs and all(_shape(t) is not None for t in numbers)
    if not all(map(_can_be_selected, (*node.inputs, *node.outputs))):
        return False
    if has_trait(node, Trait.TOTAL_ON_FLOATS):
        divisor = constant_array(node.inputs[1]) if has_trait(node, Trait.DIVISION) else None
        divides = divisor is not None and bool(np.all(divisor > 0))
        return node.inputs[0].dtype.is_floating or divides
    if node.op == "StridedSlice":
        return all(constant_array(index) is not None for index in node.inputs[1:])
    return has_trait(node, Trait.TOTAL)


def _can_be_selected(tensor: Tensor) -> bool:
    is_number = tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_complex
    return (is_number or tensor.dtype == tf.bool) and _shape(tensor) is not None


def _shape(tensor: Tensor) -> tuple[int, ...] | None:
    shape = tensor.node.static_shapes[tensor.index]
    if shape is None or any(size is None for size in shape):
        return None
    return tuple(size for size in shape if size is not None)


LOOPS = frozenset({"While", "StatelessWhile"})
CONDITIONS = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})
_STATELESS = {"While": "StatelessWhile", "If": "StatelessIf", "Case": "StatelessCase"}
_GATHERS = {"ResourceGather": "GatherV2", "ResourceGatherNd": "GatherNd"}
# Bytes of a variable above which its owner gathers, and sends the rows; in loops the parts do.
LARGEST_TABLE = 2**24


def open_functions(graph: Graph, *, is_body: bool = False) -> None:
    _gather_from_reads(graph, math.inf if is_body else LARGEST_TABLE)
    instead: dict[Tensor, Tensor] = {}
    later: dict[Node, frozenset[Node]] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        node.inputs = [instead.get(t, t) for t in node.inputs]
        if node.op in LOOPS or node.op in CONDITIONS:
            bodies = bodies_of(node, graph)
            for body in bodies.values():
                open_functions(body, is_body=True)
            if all(_only_reads(body, node) for body in bodies.values()):
                node.bodies = bodies
                if node.op in LOOPS:
                    # Results that a loop hands through unchanged are what it was given.
                    body = bodies["body"]
                    for index, tensor in enumerate(node.outputs):
                        is_same = body.outputs[index] is body.inputs[index]
                        if tensor.dtype == tf.resource and is_same:
                            instead[tensor] = node.inputs[index]
                reads = list(_take_reads_out(node))
                later[node] = frozenset(reads)
                nodes.extend(reads)
                node.op = _STATELESS.get(node.op, node.op)
            elif can_be_predicated(node, bodies):
                taken_out, results, later[node] = predicate(node, bodies)
                nodes.extend(taken_out)
                instead.update(results)
                continue
        nodes.append(node)
    graph.nodes[:] = nodes
    # What waited for a loop, because the loop read a variable, waits for the read.
    for node in nodes:
        for loop in [before for before in node.after if before in later]:
            node.after = node.after - {loop} | later[loop] | loop.after
    graph.outputs = [instead.get(t, t) for t in graph.outputs]


def _gather_from_reads(graph: Graph, most_bytes: float) -> None:
    """Replace gathers from variables by gathers from reads of them."""
    reads: dict[Node, Node] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        table = None
        if node.op in _GATHERS and node.inputs[0].node.source is not None:
            table = graphs.shape_of_variable(*node.inputs[0].node.source, node.inputs[0].index)
        if table is not None and math.prod(table) * node.outputs[0].dtype.size <= most_bytes:
            dtype = {"dtype": node.attrs["dtype"]}
            handle, indices = node.inputs
            read = _node_beside(
                "ReadVariableOp", node, "read", [handle], dtype, like=node.outputs[0], shape=table
            )
            node.inputs = [read.outputs[0], indices]
            attrs = {"Tparams": dtype["dtype"], "Tindices": node.attrs["Tindices"]}
            if node.op == "ResourceGather":
                # The first axis behind those of the batch, where TensorFlow's kernel gathers too.
                axis = _constant_beside(node, "axis", node.int_attr("batch_dims"), like=indices)
                attrs |= {"batch_dims": node.attrs["batch_dims"], "Taxis": axis.attrs["dtype"]}
                node.inputs.append(axis.outputs[0])
                nodes.append(axis)
            node.op, node.attrs, reads[node] = _GATHERS[node.op], attrs, read
            nodes.append(read)
        nodes.append(node)
    graph.nodes[:] = nodes
    # What waits for a gather, such as a write of the variable, waits for the read.
    for node in nodes if reads else ():
        node.after = frozenset(reads.get(before, before) for before in node.after)


def bodies_of(node: Node, graph: Graph) -> dict[str, Graph]:
    if node.op not in LOOPS and "then_branch" not in node.attrs:
        functions = node.attrs["branches"].list.func
        return {f"branch_{k}": graph.body(function.name) for k, function in enumerate(functions)}
    names = ("cond", "body") if node.op in LOOPS else ("then_branch", "else_branch")
    return {name: graph.body(node.attrs[name].func.name) for name in names}


def num_leading(node: Node) -> int:
    """Return how many inputs come before the arguments of the bodies."""
    return 1 if node.op in CONDITIONS else 0


def _only_reads(body: Graph, node: Node) -> bool:
    """Return whether all state of a body is variables that it is given and only reads."""
    handles = [t for t in body.inputs if t.dtype == tf.resource]
    if node.op in LOOPS and len(body.outputs) == len(body.inputs):
        pairs = zip(body.inputs, body.outputs, strict=True)
        handles = [t for t, after in pairs if t.dtype == tf.resource and t is after]
    reads = {read for handle in handles for read in _reads_of(handle, body) or ()}
    return all(node in reads or node.bodies or not node.is_stateful for node in body.operations())


def _take_reads_out(node: Node) -> Iterator[Node]:
    """Change handles among the inputs into values; yield the reads, for before the operation."""
    first = num_leading(node)
    for index in range(first, len(node.inputs)):
        if node.inputs[index].dtype != tf.resource:
            continue
        reads = [_reads_of(body.inputs[index - first], body) for body in node.bodies.values()]
        flat = [read for nodes in reads for read in nodes or ()]
        if None not in reads and len({read.outputs[0].dtype for read in flat}) == 1:
            yield _give_value(node, index, flat)


def _reads_of(handle: Tensor, body: Graph) -> list[Node] | None:
    """Return the reads of a handle in a body, or None if it is used in another way."""
    users = [node for node in body if handle in node.inputs]
    if any(user.op != "ReadVariableOp" for user in users):
        return None
    positions = [k for k, tensor in enumerate(body.inputs) if tensor is handle]
    if any(t is handle for k, t in enumerate(body.outputs) if k not in positions):
        return None
    return users


def _give_value(node: Node, index: int, reads: Sequence[Node]) -> Node:
    """Let a loop or condition have a value for a handle; return the read of it."""
    handle, sample = node.inputs[index], reads[0]
    result, shape = sample.outputs[0], sample.static_shapes[0]
    read = _node_beside(
        "ReadVariableOp", node, f"read_{index}", [handle], sample.attrs, like=result, shape=shape
    )
    node.inputs[index] = read.outputs[0]
    for body in node.bodies.values():
        argument = body.inputs[index - num_leading(node)]
        argument.dtype = result.dtype
        argument.node.static_shapes = sample.static_shapes
        replaced = {read.outputs[0]: argument for read in reads}
        body.nodes[:] = [node for node in body.nodes if node not in reads]
        for other in body.nodes:
            other.inputs = [replaced.get(t, t) for t in other.inputs]
            other.after = other.after.difference(reads)
        body.outputs = [replaced.get(t, t) for t in body.outputs]
    if node.op in LOOPS:
        node.outputs[index].dtype = result.dtype
        shapes = list(node.static_shapes)
        shapes[index] = sample.static_shapes[0]
        node.static_shapes = tuple(shapes)
    return read


def take_known_branches(graph: Graph) -> bool:
    instead: dict[Tensor, Tensor] = {}
    nodes: list[Node] = []
    was_known = False
    for node in graph.nodes:
        node.inputs = [instead.get(t, t) for t in node.inputs]
        known = truth_of(node.inputs[0]) if "then_branch" in node.bodies else None
        if known is not None:
            was_known = True
            nodes.extend(_branch(node, "then_branch" if known else "else_branch", instead))
            continue
        value = _kept(node)
        if value is not None:
            instead[node.outputs[0]] = value
            continue
        nodes.append(node)
    graph.nodes[:] = nodes
    graph.outputs = [instead.get(t, t) for t in graph.outputs]
    return was_known


def _branch(node: Node, name: str, instead: dict[Tensor, Tensor]) -> list[Node]:
    body = node.bodies[name]
    outside = dict(zip(body.inputs, node.inputs[1:], strict=True))
    nodes: list[Node] = []
    for inner in body.operations():
        inner.inputs = [outside.get(t, t) for t in inner.inputs]
        inner.name = f"{node.name}/{inner.name}"
        value = _kept(inner)
        if value is None:
            nodes.append(inner)
        else:
            outside[inner.outputs[0]] = value
    results = [outside.get(tensor, tensor) for tensor in body.outputs]
    instead |= dict(zip(node.outputs, results, strict=True))
    return nodes


def _kept(node: Node) -> Tensor | None:
    """Return the tensor that a node takes out of an optional; None if that is not known."""
    if node.op != "OptionalGetValue" or len(node.outputs) != 1:
        return None
    source = node.inputs[0].node
    while source.op == "Identity":
        source = source.inputs[0].node
    is_there = source.op == "OptionalFromValue" and len(source.inputs) == 1
    return source.inputs[0] if is_there else None


def merge_reads(graph: Graph) -> None:
    first: dict[object, Node] = {}
    instead: dict[Tensor, Tensor] = {}
    kept: list[Node] = []
    for node in graph.nodes:
        node.inputs = [instead.get(t, t) for t in node.inputs]
        if node.op == "ReadVariableOp":
            writes = frozenset(n for n in node.after if n.has_side_effect)
            known = first.setdefault((node.inputs[0], writes, node.device), node)
            if known is not node:
                instead[node.outputs[0]] = known.outputs[0]
                known.after = known.after | {n for n in node.after if not n.has_side_effect}
                continue
        kept.append(node)
    graph.nodes[:] = kept
    graph.outputs = [instead.get(t, t) for t in graph.outputs]
    replaced = {old.node: new.node for old, new in instead.items()}
    for node in graph.nodes:
        if not node.after.isdisjoint(replaced):
            node.after = frozenset(replaced.get(before, before) for before in node.after)


_BROADCASTS = ("BroadcastTo", "Tile")


def delay_broadcasts(graph: Graph) -> None:
    """Let elementwise operations read small tensors in place of their broadcasts."""
    nodes: list[Node] = []
    for node in graph.nodes:
        # XLA broadcasts within the loop that reads the result.
        is_alone = not node.xla and len(node.outputs) == 1 and is_inexact(node.outputs[0])
        if is_alone and any(map(_small, node.inputs)):
            if node.op == "AddN":
                nodes.extend(_delay_in_sum(node))
            elif has_trait(node, Trait.EVERY_ELEMENT) and not has_trait(node, Trait.FREE):
                nodes.extend(_delay_elementwise(node))
        nodes.append(node)
    graph.nodes[:] = nodes


def _delay_elementwise(node: Node) -> Iterator[Node]:
    """Change a node that reads broadcast tensors; yield the nodes that it needs in addition."""
    is_pair = has_trait(node, Trait.BROADCASTS)
    if len(node.inputs) != 1 + is_pair or not all(map(is_inexact, node.inputs)):
        return
    inputs = [_small(tensor) or tensor for tensor in node.inputs]
    shape, whole = broadcast([tensor.shape for tensor in inputs]), node.outputs[0].shape
    if shape is None:
        return
    if shape == whole and is_pair:
        node.inputs = inputs
        return
    kind = next((t.node for t in node.inputs if _small(t) is not None and t.shape == whole), None)
    if kind is None or (kind.op == "Tile" and shape != kind.inputs[0].shape):
        return
    small = _node_of_shape(node, "small", node.op, inputs, node.attrs, shape)
    yield small
    node.op, node.inputs = kind.op, [small.outputs[0], kind.inputs[1]]
    node.attrs = {**kind.attrs, "T": attribute(node.outputs[0].dtype)}


def _delay_in_sum(node: Node) -> Iterator[Node]:
    """Add the tensors with all elements, the small ones, and both sums."""
    large = [tensor for tensor in node.inputs if _small(tensor) is None]
    small = [source for source in map(_small, node.inputs) if source is not None]
    shapes = [broadcast([tensor.shape for tensor in small[:k]]) for k in range(2, len(small) + 1)]
    if not large or None in shapes:
        return
    kind = {"T": attribute(node.outputs[0].dtype)}
    total, least = large[0], small[0]
    if len(large) > 1:
        attrs = {**kind, "N": attribute(len(large))}
        added = _node_of_shape(node, "large", "AddN", large, attrs, total.shape)
        yield added
        total = added.outputs[0]
    for number, (tensor, shape) in enumerate(zip(small[1:], shapes, strict=True)):
        added = _node_of_shape(node, f"small_{number}", "AddV2", [least, tensor], kind, shape)
        yield added
        least = added.outputs[0]
    node.op, node.inputs, node.attrs = "AddV2", [total, least], kind


def _small(tensor: Tensor) -> Tensor | None:
    """Return what a tensor was broadcast of, if its sizes are 1 or those of the result for sure."""
    node = tensor.node
    if node.op not in _BROADCASTS or node.xla or tensor.shape is None:
        return None
    small = node.inputs[0]
    if small.shape is None or len(small.shape) > len(tensor.shape):
        return None
    pairs = zip(reversed(small.shape), reversed(tensor.shape), strict=False)
    return small if all(size in (1, whole) for size, whole in pairs) else None


def _node_of_shape(
    node: Node,
    name: str,
    op: str,
    inputs: Sequence[Tensor],
    attrs: Mapping[str, Any],
    shape: Shape | None,
) -> Node:
    sizes = None if shape is None else tuple(s if isinstance(s, int) else None for s in shape)
    beside = _node_beside(op, node, name, inputs, attrs, like=node.outputs[0])
    beside.static_shapes, beside.device = (sizes,), node.device
    beside.outputs[0].shape = shape
    return beside
