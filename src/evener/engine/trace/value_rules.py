"""The numbers in small integer tensors, as far as they follow from sizes and constants."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from evener.engine.trace.conditions import truth_of
from evener.engine.trace.inference import LARGEST_VALUE, VALUE_RULES, Inference, Shape, ValueRule
from evener.engine.trace.matrices import matrix_of
from evener.engine.trace.row_loops import list_length
from evener.engine.trace.shape_rules import broadcast, slices
from evener.graph.dims import Dim, Size, product
from evener.graph.nodes import Node

Values = Sequence["Shape | None"] | None


def value_rule(*ops: str) -> Callable[[ValueRule], ValueRule]:
    """Register a rule for types of operations."""

    def register(rule: ValueRule) -> ValueRule:
        for op in ops:
            VALUE_RULES[op] = rule
        return rule

    return register


@value_rule("Const")
def _const(inference: Inference, node: Node) -> Values:
    proto = node.attrs["value"].tensor
    rank = len(proto.tensor_shape.dim)
    if rank > 1 or (rank == 1 and proto.tensor_shape.dim[0].size > LARGEST_VALUE):
        return None
    return [tuple(int(n) for n in tf.make_ndarray(proto).ravel())]


@value_rule("Identity", "StopGradient", "Snapshot", "PreventGradient", "EnsureShape", "Reshape")
def _same(inference: Inference, node: Node) -> Values:
    value = node.inputs[0].value
    if node.op == "Reshape" and node.outputs[0].rank not in (0, 1):
        return None
    if node.op == "Reshape" and value is None and node.inputs[0].dtype.is_integer:
        # Of a matrix of sizes.
        array = matrix_of(node.inputs[0])
        value = None if array is None or array.size > LARGEST_VALUE else _numbers(array.ravel())
    return [value]


def _numbers(array: Iterable[Any]) -> Shape:
    return tuple(number if isinstance(number, Dim) else int(number) for number in array)


@value_rule("IdentityN")
def _each(inference: Inference, node: Node) -> Values:
    return [t.value for t in node.inputs]


@value_rule("Cast")
def _cast(inference: Inference, node: Node) -> Values:
    source, target = node.inputs[0].dtype, node.outputs[0].dtype
    wide = target in (tf.int32, tf.int64)
    return [node.inputs[0].value] if source.is_integer and wide else None


@value_rule("Shape", "ShapeN")
def _shape(inference: Inference, node: Node) -> Values:
    return [t.shape for t in node.inputs]


@value_rule("Size")
def _size(inference: Inference, node: Node) -> Values:
    shape = node.inputs[0].shape
    return None if shape is None else [(product(shape),)]


@value_rule("Rank")
def _rank(inference: Inference, node: Node) -> Values:
    rank = node.inputs[0].rank
    return None if rank is None else [(rank,)]


@value_rule("Pack")
def _pack(inference: Inference, node: Node) -> Values:
    values = [t.value for t in node.inputs]
    if any(t.rank != 0 for t in node.inputs) or any(value is None for value in values):
        return None
    return [tuple(value[0] for value in values if value is not None)]


@value_rule("Unpack")
def _unpack(inference: Inference, node: Node) -> Values:
    value = node.inputs[0].value
    if value is None or node.inputs[0].rank != 1:
        return None
    return [(number,) for number in value]


@value_rule("ConcatV2")
def _concat(inference: Inference, node: Node) -> Values:
    values = [t.value for t in node.inputs[:-1]]
    if any(t.rank != 1 for t in node.inputs[:-1]) or any(value is None for value in values):
        return None
    return [tuple(number for value in values if value is not None for number in value)]


@value_rule("ExpandDims", "Squeeze")
def _scalar_to_vector(inference: Inference, node: Node) -> Values:
    return [node.inputs[0].value] if node.outputs[0].rank in (0, 1) else None


@value_rule("StridedSlice")
def _strided_slice(inference: Inference, node: Node) -> Values:
    value, shape = node.inputs[0].value, node.inputs[0].shape
    if value is None or shape is None or len(shape) != 1:
        return None
    taken = slices(node, shape)
    if taken is None or len(taken) != 1 or taken[0] is None:
        return None
    one = taken[0]
    if not isinstance(one.begin, int) or not isinstance(one.length, int):
        return None
    if one.is_index and not 0 <= one.begin < len(value):
        return None
    return [tuple(value[one.begin + k * one.stride] for k in range(one.length))]


@value_rule("Slice")
def _slice(inference: Inference, node: Node) -> Values:
    value, begin, size = (t.value for t in node.inputs)
    if value is None or begin is None or size is None or node.inputs[0].rank != 1:
        return None
    if not isinstance(begin[0], int) or not isinstance(size[0], int):
        return None
    end = len(value) if size[0] == -1 else begin[0] + size[0]
    return [value[begin[0] : end]]


@value_rule("GatherV2")
def _gather(inference: Inference, node: Node) -> Values:
    value, places = node.inputs[0].value, node.inputs[1].value
    if value is None or places is None or node.inputs[0].rank != 1:
        return None
    if not all(isinstance(k, int) and 0 <= k < len(value) for k in places):
        return None
    return [tuple(value[k] for k in places if isinstance(k, int))]


@value_rule("Fill")
def _fill(inference: Inference, node: Node) -> Values:
    shape, value = node.outputs[0].shape, node.inputs[1].value
    if value is None or shape is None or len(shape) > 1:
        return None
    if shape and (not isinstance(shape[0], int) or shape[0] > LARGEST_VALUE):
        return None
    return [value * int(shape[0])] if shape else [value]  # pyright: ignore[reportArgumentType]


@value_rule("ZerosLike", "OnesLike")
def _like(inference: Inference, node: Node) -> Values:
    shape = node.outputs[0].shape
    number = int(node.op == "OnesLike")
    if shape is None or len(shape) > 1:
        return None
    if not shape:
        return [(number,)]
    return [(number,) * shape[0]] if isinstance(shape[0], int) else None


@value_rule("Range")
def _range(inference: Inference, node: Node) -> Values:
    numbers = [t.value for t in node.inputs]
    if any(n is None or not isinstance(n[0], int) for n in numbers):
        return None
    start, limit, step = (n[0] for n in numbers if n is not None)
    span = range(start, limit, step)  # pyright: ignore[reportArgumentType]
    return [tuple(span)] if len(span) <= LARGEST_VALUE else None


@value_rule("ConcatOffset")
def _concat_offset(inference: Inference, node: Node) -> Values:
    """Where each of several shapes begins when they are joined along an axis."""
    where, shapes = node.inputs[0].value, [t.value for t in node.inputs[1:]]
    known = [shape for shape in shapes if shape is not None]
    if where is None or len(known) < len(shapes) or not isinstance(where[0], int):
        return None
    axis = where[0] % len(known[0])
    begin: Size = 0
    offsets: list[Shape | None] = []
    for shape in known:
        offsets.append(tuple(begin if k == axis else 0 for k in range(len(shape))))
        begin = shape[axis] + begin
    return offsets


@value_rule("DynamicStitch", "ParallelDynamicStitch")
def _stitch(inference: Inference, node: Node) -> Values:
    """Numbers at given places, the later ones last; with it a sum's gradient finds its shape."""
    count = len(node.inputs) // 2
    places, data = node.inputs[:count], node.inputs[count:]
    found: dict[int, Size] = {}
    for where, numbers in zip(places, data, strict=True):
        if where.value is None or numbers.value is None or where.rank != numbers.rank:
            return None
        for place, number in zip(where.value, numbers.value, strict=True):
            if not isinstance(place, int):
                return None
            found[place] = number
    if sorted(found) != list(range(len(found))):
        return None
    return [tuple(found[k] for k in range(len(found)))]


@value_rule("InvertPermutation")
def _invert(inference: Inference, node: Node) -> Values:
    order = node.inputs[0].value
    if order is None or not all(isinstance(k, int) for k in order):
        return None
    return [tuple(order.index(k) for k in range(len(order)))]


@value_rule("Split", "SplitV")
def _split(inference: Inference, node: Node) -> Values:
    data = node.inputs[1 if node.op == "Split" else 0]
    if data.value is None or data.rank != 1:
        return None
    lengths = [None if t.shape is None else t.shape[0] for t in node.outputs]
    parts: list[Shape | None] = []
    begin = 0
    for length in lengths:
        if not isinstance(length, int) or begin + length > len(data.value):
            return None
        parts.append(data.value[begin : begin + length])
        begin += length
    return parts


@value_rule("Tile")
def _tile(inference: Inference, node: Node) -> Values:
    value, times = (t.value for t in node.inputs)
    if value is None or times is None or node.inputs[0].rank != 1:
        return None
    if not isinstance(times[0], int) or len(value) * times[0] > LARGEST_VALUE:
        return None
    return [value * times[0]]


@value_rule("ListDiff")
def _list_difference(inference: Inference, node: Node) -> Values:
    """The numbers of the first list that are not in the second, and their places."""
    numbers, without = (t.value for t in node.inputs)
    if numbers is None or without is None:
        return None
    if not all(isinstance(number, int) for number in (*numbers, *without)):
        return None
    kept = [place for place, number in enumerate(numbers) if number not in without]
    return [tuple(numbers[place] for place in kept), tuple(kept)]


@value_rule("Pad", "PadV2")
def _pad(inference: Inference, node: Node) -> Values:
    value, pads = node.inputs[0].value, matrix_of(node.inputs[1])
    fill = node.inputs[2].value if node.op == "PadV2" else (0,)
    if value is None or fill is None or pads is None or node.inputs[0].rank != 1:
        return None
    before, behind = pads[0]
    if not isinstance(before, int) or not isinstance(behind, int):
        return None
    if before + len(value) + behind > LARGEST_VALUE:
        return None
    return [fill * before + value + fill * behind]


@value_rule("BroadcastArgs")
def _broadcast_args(inference: Inference, node: Node) -> Values:
    return [broadcast([t.value for t in node.inputs])]


@value_rule("BroadcastGradientArgs")
def _broadcast_gradient_args(inference: Inference, node: Node) -> Values:
    """Over which axes the gradient of each operand is summed.

    An axis counts where an operand has size 1 and the other has not. Where both are the same
    symbol, neither was broadcast. Where the sizes cannot be compared, nothing is known.
    """
    a, b = (t.value for t in node.inputs)
    if a is None or b is None:
        return None
    rank = max(len(a), len(b))
    full_a = (None,) * (rank - len(a)) + a
    full_b = (None,) * (rank - len(b)) + b
    over_a: list[Size] = []
    over_b: list[Size] = []
    for axis, (one, other) in enumerate(zip(full_a, full_b, strict=True)):
        if one == other:
            if one == 1:
                over_a.append(axis)
                over_b.append(axis)
            continue
        if one in (None, 1):
            over_a.append(axis)
        elif other in (None, 1):
            over_b.append(axis)
        else:
            # 8 and B: B is 8, or it is 1 and its gradient is summed.
            return None
    return [tuple(over_a), tuple(over_b)]


@value_rule("SelectV2")
def _select(inference: Inference, node: Node) -> Values:
    condition, (a, b) = node.inputs[0], (t.value for t in node.inputs[1:])
    if condition.rank != 0:
        return None
    chosen = truth_of(condition)
    if chosen is not None:
        return [a if chosen else b] if node.inputs[1].rank == node.inputs[2].rank else None
    return [a] if a is not None and a == b else None


@value_rule("TensorListPushBack", "TensorListSetItem")
def _into_list(inference: Inference, node: Node) -> Values:
    """A list of equal numbers, such as the shapes that the gradient of a loop asks for."""
    known, item = node.inputs[0], node.inputs[-1]
    is_new = known.value is None and known.shape is None
    return [item.value if is_new or known.value == item.value else None]


@value_rule("TensorListPopBack")
def _from_list(inference: Inference, node: Node) -> Values:
    return [node.inputs[0].value, node.inputs[0].value]


@value_rule("TensorListElementShape")
def _element_shape(inference: Inference, node: Node) -> Values:
    shape = node.inputs[0].shape
    return None if shape is None else [shape[1:]]


@value_rule("TensorListLength")
def _list_length(inference: Inference, node: Node) -> Values:
    length = list_length(node.inputs[0])
    return None if length is None else [(length,)]
