"""Positions that are certain to be within the rows of their own sample.

A program often counts the samples to say which row it means::

    tf.gather_nd(x, tf.stack([tf.range(batch), label], 1))      row k of x for sample k
    flat index = k * width + position, position < width         the gradient of top_k

Such positions need no rows of other samples. What comes from the data is not certain to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from evener.graph.dims import BATCH, Size, divide, product
from evener.graph.nodes import Node, Tensor
from evener.ops.builder import Builder
from evener.ops.decision import Decision, Lower
from evener.ops.registry import COPY, Trait, has_trait
from evener.ops.states import (
    FIRST,
    PART_OFFSET,
    REPLICATED,
    Numbers,
    Sharded,
    State,
    is_shardable,
    part_sizes,
)
from evener.ops.strided_slices import slices


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRows:
    """Integers between ``k * step`` and ``k * step + slack`` for sample k.

    Attributes:
        axis: The axis of the tensor that counts samples, with all rows of a sample together.
        step: The distance from sample to sample.
        slack: The largest distance from the first position of the sample.
    """

    axis: int
    step: int
    slack: int

    @property
    def is_within(self) -> bool:
        """Whether no position reaches into the rows of the next sample."""
        return self.slack < self.step


def in_own_rows(tensor: Tensor) -> bool:
    """Return whether the numbers along the first axis are those of the samples."""
    own = own_rows(tensor)
    return own is not None and own.axis == 0 and own.step == 1 and own.slack == 0


def own_rows(tensor: Tensor) -> OwnRows | None:
    """Return within which rows of their samples the numbers of a tensor are, if it is certain."""
    node = tensor.node
    if node.op == "Range":
        return _of_range(node)
    if has_trait(node, COPY):
        return own_rows(node.inputs[0])
    if node.op == "Cast":
        return own_rows(node.inputs[0]) if tensor.dtype.size >= 4 else None
    if has_trait(node, Trait.RESHAPES) or node.op in ("Tile", "BroadcastTo"):
        return _moved(node)
    if (node.op == "StridedSlice" and _takes_all(node)) or _packs_one(node):
        return _moved(node)
    if node.op == "Transpose":
        return _transposed(node)
    if node.op in ("Add", "AddV2"):
        return _sum(node, *node.inputs) or _sum(node, *reversed(node.inputs))
    if node.op == "Mul":
        return _product(node, *node.inputs) or _product(node, *reversed(node.inputs))
    if node.op == "SelectV2" and _has_samples_beside(node.inputs[0]):
        # As `tf.vectorized_map` makes them: the first row where it is the only one.
        return _moved(node, node.inputs[1]) if node.inputs[2].value == (0,) else None
    return None


def _has_samples_beside(condition: Tensor) -> bool:
    """Return whether a condition is that there is more than one sample."""
    node = condition.node
    return node.op == "Greater" and [t.value for t in node.inputs] == [(BATCH,), (1,)]


def first_of_positions(positions: Tensor) -> OwnRows | None:
    """Return the rows of the first number of every position, along the last axis."""
    node, rank = positions.node, positions.rank
    if rank is None or positions.shape is None:
        return None
    while has_trait(node, COPY) or (node.op == "Cast" and positions.dtype.size >= 4):
        positions = node.inputs[0]
        node = positions.node
    if node.op == "Pack" and node.int_attr("axis") in (-1, rank - 1):
        found = own_rows(node.inputs[0])
    elif node.op == "ConcatV2" and node.inputs[-1].value in ((-1,), (rank - 1,)):
        first = node.inputs[0].shape
        found = own_rows(node.inputs[0]) if first is not None and first[-1] == 1 else None
    else:
        found = own_rows(positions) if (positions.shape or ())[-1:] == (1,) else None
    return found if found is not None and found.axis < rank - 1 else None


def _of_range(node: Node) -> OwnRows | None:
    start, limit, step = (t.value for t in node.inputs)
    if start != (0,) or limit is None or step is None or not isinstance(step[0], int):
        return None
    if step[0] < 1 or limit[0] != BATCH * step[0]:
        return None
    return OwnRows(axis=0, step=step[0], slack=0)


def _moved(node: Node, source: Tensor | None = None) -> OwnRows | None:
    """Copies of the same numbers, with the rows of every sample still together."""
    source = node.inputs[0] if source is None else source
    before, after, own = source.shape, node.outputs[0].shape, own_rows(source)
    if own is None or before is None or after is None:
        return None
    if has_trait(node, Trait.RESHAPES) or node.op in ("StridedSlice", "Pack"):
        axis = _axis_after(before, after, own.axis)
        return None if axis is None else replace(own, axis=axis)
    axis = own.axis + len(after) - len(before)
    return replace(own, axis=axis) if after[axis] == before[own.axis] else None


def _packs_one(node: Node) -> bool:
    """Return whether a node adds an axis of size 1 to one tensor."""
    return node.op == "Pack" and len(node.inputs) == 1


def _transposed(node: Node) -> OwnRows | None:
    own, axes = own_rows(node.inputs[0]), node.inputs[1].value
    if own is None or axes is None or own.axis not in axes:
        return None
    return replace(own, axis=axes.index(own.axis))


def _takes_all(node: Node) -> bool:
    """Return whether a slice takes all rows of all axes, and adds axes of size 1 at most."""
    shape = node.inputs[0].shape
    taken = None if shape is None else slices(node, shape)
    return taken is not None and all(rows is None or rows.is_whole for rows in taken)


def _axis_after(before: tuple[Size, ...], after: tuple[Size, ...], axis: int) -> int | None:
    """Return which axis counts samples after a reshape that leaves as many in front of it."""
    front, total = product(before[:axis]), divide(product(before), BATCH)
    for found, size in enumerate(after):
        if divide(size, BATCH) is None or product(after[:found]) != front:
            continue
        behind = divide(product(after), BATCH)
        return found if behind == total else None
    return None


def _sum(node: Node, own: Tensor, other: Tensor) -> OwnRows | None:
    rows, bound = _broadcast(node, own), largest(other)
    if rows is None or bound is None:
        return None
    return replace(rows, slack=rows.slack + bound)


def _product(node: Node, own: Tensor, factor: Tensor) -> OwnRows | None:
    rows, times = _broadcast(node, own), _everywhere(factor)
    if rows is None or not isinstance(times, int) or times < 1:
        return None
    return replace(rows, step=rows.step * times, slack=rows.slack * times)


def _broadcast(node: Node, own: Tensor) -> OwnRows | None:
    """Return the rows of an input along the axes of the result, if it is not repeated there."""
    rows, result = own_rows(own), node.outputs[0].shape
    if rows is None or result is None or own.shape is None:
        return None
    axis = rows.axis + len(result) - len(own.shape)
    return replace(rows, axis=axis) if result[axis] == own.shape[rows.axis] else None


_LIKE = {"OnesLike": 1, "ZerosLike": 0}


def _everywhere(tensor: Tensor) -> Size | None:
    """Return the number that all elements of a tensor are, if it is certain."""
    if tensor.node.op in _LIKE:
        return _LIKE[tensor.node.op]
    if tensor.node.op == "Fill":
        return _everywhere(tensor.node.inputs[1])
    numbers = set(tensor.value or ())
    return numbers.pop() if len(numbers) == 1 else None


_OF_THE_SAME_NUMBERS = frozenset({"BroadcastTo", "Slice", "StridedSlice", "Tile", "Transpose"})
"""Operations that repeat, move and leave out numbers of their first input."""


def largest(tensor: Tensor) -> int | None:
    """Return the largest number that may be in a tensor without negative ones, if it is certain."""
    node = tensor.node
    if tensor.value:
        numbers = [number for number in tensor.value if isinstance(number, int) and number >= 0]
        return max(numbers) if len(numbers) == len(tensor.value) else None
    if node.op in _LIKE:
        return _LIKE[node.op]
    if node.op == "Fill":
        return largest(node.inputs[1])
    if has_trait(node, COPY | Trait.RESHAPES) or node.op in _OF_THE_SAME_NUMBERS:
        return largest(node.inputs[0])
    if node.op == "Cast":
        is_integer = node.inputs[0].dtype.is_integer and tensor.dtype.size >= 4
        return largest(node.inputs[0]) if is_integer else None
    shape = node.inputs[0].shape if node.inputs else None
    if node.op in ("TopKV2", "TopK") and tensor.index == 1 and shape:
        return shape[-1] - 1 if isinstance(shape[-1], int) else None
    if node.op in ("ArgMax", "ArgMin") and shape and node.inputs[1].value is not None:
        axis = node.inputs[1].value[0]
        size = shape[axis] if isinstance(axis, int) else None
        return size - 1 if isinstance(size, int) else None
    return None


def with_own_rows(index: int, *, step: int = 1, depth: int = 0) -> Lower:
    """Return the operation with positions that count from the part's first row.

    Args:
        index: Index of the input that holds the positions.
        step: The rows of a sample.
        depth: Numbers of a position, along the last axis; 0 if it is a number itself.
    """

    def lower(builder: Builder, node: Node, inputs: Sequence[str]) -> Sequence[str]:
        dtype = node.inputs[index].dtype
        before = PART_OFFSET * step
        if depth > 1:
            first = builder.vector([before, *[0] * (depth - 1)], dtype)
        else:
            first = builder.number(before, dtype)
        local = builder.op("Sub", [inputs[index], first], {"T": dtype})[0]
        given = [local if k == index else given for k, given in enumerate(inputs)]
        return builder.copy(node.op, node.name, given, node.attrs)

    return lower


def is_of_batch(state: State) -> bool:
    """Return whether a state has rows of the samples of the batch."""
    return isinstance(state, Sharded) and state.rows == BATCH


def gather_from_own(node: Node) -> Decision | None:
    """Return what the parts compute of a GatherV2 of rows along the first axis, or None."""
    data, indices = node.inputs[:2]
    if not in_own_rows(indices) or not is_shardable(data.shape, FIRST) or data.shape is None:
        return None
    if data.shape[0] != BATCH or not is_shardable(indices.shape, FIRST):
        return None
    return Decision(inputs=(FIRST, FIRST, REPLICATED), outputs=(FIRST,), lower=with_own_rows(1))


def gather_nd_from_own(node: Node) -> Decision | None:
    """Return what the parts compute of a GatherNd whose first numbers are rows of the sample."""
    found = _at_own(node, 1, table=node.inputs[0])
    if found is None:
        return None
    state, lower = found
    return Decision(inputs=(FIRST, state), outputs=(state,), lower=lower)


def scatter_to_own(node: Node) -> Decision | None:
    """Return what the parts compute of a ScatterNd to rows of the samples, or None."""
    result = node.outputs[0]
    found = _at_own(node, 0, node.inputs[1], table=result)
    if found is None or result.shape is None:
        return None
    state, lower = found
    sizes = Numbers(part_sizes(result.shape, FIRST))
    return Decision(inputs=(state, state, sizes), outputs=(FIRST,), lower=lower)


def scatter_in_own(node: Node) -> Decision | None:
    """Return what the parts compute of a tensor changed in rows of the samples, or None."""
    found = _at_own(node, 1, node.inputs[2], table=node.inputs[0])
    if found is None:
        return None
    state, lower = found
    return Decision(inputs=(FIRST, state, state), outputs=(FIRST,), lower=lower)


def segments_of_own(node: Node) -> Decision | None:
    """Return what the parts compute of sums by labels that are rows of the samples, or None."""
    data, ids = node.inputs[:2]
    own, result = own_rows(ids), node.outputs[0]
    if own is None or not own.is_within or result.shape is None or not _has_rows(result, own):
        return None
    state = Sharded(own.axis)
    if not is_shardable(ids.shape, state) or not is_shardable(data.shape, state):
        return None
    count = part_sizes(result.shape, FIRST)[:1]
    return Decision(
        inputs=(state, state, Numbers(count)),
        outputs=(FIRST,),
        lower=with_own_rows(1, step=own.step),
    )


def _at_own(
    node: Node, index: int, *updates: Tensor, table: Tensor
) -> tuple[Sharded, Lower] | None:
    """Return the state of positions in rows of the samples, and how the parts compute the node.

    Args:
        node: An operation at positions of several numbers each.
        index: Index of the input that holds the positions.
        *updates: Tensors that are written there.
        table: The tensor that has the rows.
    """
    positions = node.inputs[index]
    own, depth = first_of_positions(positions), (positions.shape or (None,))[-1]
    if own is None or not own.is_within or not isinstance(depth, int) or not _has_rows(table, own):
        return None
    state = Sharded(own.axis)
    if not all(is_shardable(tensor.shape, state) for tensor in (positions, *updates)):
        return None
    return state, with_own_rows(index, step=own.step, depth=depth)


def _has_rows(table: Tensor, own: OwnRows) -> bool:
    """Return whether a table has as many rows for every sample as the positions say."""
    return table.shape is not None and bool(table.shape) and table.shape[0] == BATCH * own.step
