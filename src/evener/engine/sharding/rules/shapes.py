"""Operations that change shapes, join, split and take slices."""

from __future__ import annotations

from collections.abc import Sequence

from evener.engine.sharding.rules.own_rows import gather_from_own, gather_nd_from_own
from evener.engine.trace.matrices import matrix_of
from evener.engine.trace.shape_rules import TakenSlice, slices
from evener.graph.dims import BATCH, Size, divide, has_batch, product
from evener.graph.nodes import Node
from evener.ops.builder import Builder
from evener.ops.decision import (
    PARTIALS,
    ROWS,
    WHOLE,
    Decision,
    Lower,
    partial_rule,
    rule,
)
from evener.ops.states import (
    PART_BATCH,
    PART_OFFSET,
    REPLICATED,
    Numbers,
    Partial,
    Sharded,
    State,
    is_shardable,
    part_sizes,
    rows_per_sample,
)

Shape = tuple[Size, ...]


@rule("Reshape", inputs=(ROWS, WHOLE))
def _reshape(node: Node, states: Sequence[State]) -> Decision | None:
    before, after, state = node.inputs[0].shape, node.outputs[0].shape, states[0]
    if before is None or after is None or not isinstance(state, Sharded):
        return None
    target = reshaped(before, after, state)
    if target is None:
        return None
    return Decision(inputs=(state, Numbers(part_sizes(after, target))), outputs=(target,))


def reshaped(before: Shape, after: Shape, state: Sharded) -> Sharded | None:
    """Return where the samples are after a reshape, or None if no axis holds them by itself.

    ::

        before   P , [outer, B, inner] , Q        product of the axes before and behind: P, Q
        after    P', [outer', B, inner'] , Q'     the same place if P*outer = P'*outer'
                                                            and inner*Q = inner'*Q'
    """
    rows = rows_per_sample(before[state.axis], state)
    if rows is None:
        return None
    front = product(before[: state.axis]) * state.outer
    behind = rows * product(before[state.axis + 1 :])
    for axis, size in enumerate(after):
        outer = divide(front, product(after[:axis]))
        inner = divide(behind, product(after[axis + 1 :]))
        if outer is None or inner is None or size != state.rows * outer * inner:
            continue
        target = state.with_blocks(axis, outer)
        if is_shardable(after, target):
            return target
    return None


@rule("Transpose", "ConjugateTranspose", inputs=(ROWS, WHOLE))
def _transpose(node: Node, states: Sequence[State]) -> Decision | None:
    order, state = node.inputs[1].value, states[0]
    if order is None or not isinstance(state, Sharded) or state.axis not in order:
        return None
    target = state.at(order.index(state.axis))
    return Decision(inputs=(state, REPLICATED), outputs=(target,))


@rule("ExpandDims", inputs=(ROWS, WHOLE))
def _expand_dims(node: Node, states: Sequence[State]) -> Decision | None:
    shape, where, state = node.inputs[0].shape, node.inputs[1].value, states[0]
    if shape is None or not isinstance(state, Sharded) or not _is_number(where):
        return None
    assert where is not None and isinstance(where[0], int)
    axis = where[0] % (len(shape) + 1)
    target = state.at(state.axis + (axis <= state.axis))
    return Decision(inputs=(state, REPLICATED), outputs=(target,))


@rule("Squeeze", inputs=ROWS)
def _squeeze(node: Node, states: Sequence[State]) -> Decision | None:
    shape, state, axes = node.inputs[0].shape, states[0], node.ints_attr("squeeze_dims")
    if shape is None or not isinstance(state, Sharded) or not axes:
        return None
    gone = {axis % len(shape) for axis in axes}
    if state.axis in gone:
        return None
    axis = state.axis - sum(k < state.axis for k in gone)
    return Decision(inputs=(state,), outputs=(state.at(axis),))


@partial_rule("Reshape", "ExpandDims", "Transpose", inputs=(PARTIALS, WHOLE))
@partial_rule("Squeeze", inputs=PARTIALS)
def _view_of_partial(node: Node, states: Sequence[State]) -> Decision | None:
    if isinstance(states[0], Partial):
        return Decision(inputs=tuple(states), outputs=(states[0],))
    return None


@partial_rule("Pack", "Unpack", inputs=PARTIALS)
@partial_rule("ConcatV2", "ReverseV2", inputs=(PARTIALS, WHOLE))
@partial_rule("Split", inputs=(WHOLE, PARTIALS))
@partial_rule("SplitV", "Slice", inputs=(PARTIALS, WHOLE, WHOLE))
@partial_rule("StridedSlice", inputs=(PARTIALS, WHOLE, WHOLE, WHOLE))
def _rearranged_partial(node: Node, states: Sequence[State]) -> Decision | None:
    """Elements in other places: all tensors are partial, and positions are those of the whole."""
    found = set(states[_TENSORS.get(node.op, slice(1))])
    if len(found) != 1 or not isinstance(state := found.pop(), Partial):
        return None
    return Decision(inputs=tuple(states), outputs=(state,) * len(node.outputs))


_TENSORS = {"Pack": slice(None), "ConcatV2": slice(-1), "Split": slice(1, None)}
"""Of the inputs those that are rearranged; of other operations the first."""


@rule("Pack", inputs=ROWS)
def _pack(node: Node, states: Sequence[State]) -> Decision | None:
    first = next((s for s in states if isinstance(s, Sharded)), None)
    rank = node.inputs[0].rank
    if first is None or rank is None:
        return None
    if not all(is_shardable(t.shape, first) for t in node.inputs):
        return None
    axis = node.int_attr("axis") % (rank + 1)
    target = first.at(first.axis + (axis <= first.axis))
    return Decision(inputs=(first,) * len(states), outputs=(target,))


@rule("Unpack", inputs=ROWS)
def _unpack(node: Node, states: Sequence[State]) -> Decision | None:
    state, rank = states[0], node.inputs[0].rank
    if rank is None or not isinstance(state, Sharded):
        return None
    axis = node.int_attr("axis") % rank
    if axis == state.axis:
        return None
    target = state.at(state.axis - (axis < state.axis))
    return Decision(inputs=(state,), outputs=(target,) * len(node.outputs))


@rule("ConcatV2", inputs=(ROWS, WHOLE))
def _concat(node: Node, states: Sequence[State]) -> Decision | None:
    where, tensors = node.inputs[-1].value, node.inputs[:-1]
    first = next((s for s in states[:-1] if isinstance(s, Sharded)), None)
    rank = tensors[0].rank
    if first is None or rank is None or not _is_number(where):
        return None
    assert where is not None and isinstance(where[0], int)
    axis = where[0] % rank
    if axis != first.axis:
        if not all(is_shardable(t.shape, first) for t in tensors):
            return None
        return Decision(inputs=(*[first] * len(tensors), REPLICATED), outputs=(first,))
    return _concat_samples(node, states, axis)


def _concat_samples(node: Node, states: Sequence[State], axis: int) -> Decision | None:
    """Blocks of the batch behind one another: all with the same rows per sample."""
    wanted: list[State] = []
    blocks: Size = 0
    alone = next(s.with_blocks(axis, 1) for s in states if isinstance(s, Sharded))
    rows = set()
    for tensor, state in zip(node.inputs[:-1], states, strict=False):
        assert tensor.shape is not None
        one = state if isinstance(state, Sharded) and state.axis == axis else alone
        per_sample = rows_per_sample(tensor.shape[axis], one)
        if per_sample is None:
            return None
        rows.add(per_sample)
        wanted.append(one)
        blocks = one.outer + blocks
    if len(rows) != 1:
        return None
    return Decision(inputs=(*wanted, REPLICATED), outputs=(alone.with_blocks(axis, blocks),))


@rule("Split", inputs=(WHOLE, ROWS))
@rule("SplitV", inputs=(ROWS, WHOLE, WHOLE))
def _split(node: Node, states: Sequence[State]) -> Decision | None:
    data = 1 if node.op == "Split" else 0
    where = node.inputs[0 if node.op == "Split" else 2].value
    state, shape = states[data], node.inputs[data].shape
    if shape is None or not isinstance(state, Sharded) or not _is_number(where):
        return None
    assert where is not None and isinstance(where[0], int)
    axis = where[0] % len(shape)
    if axis != state.axis:
        inputs = [REPLICATED if k != data else state for k in range(len(states))]
        return Decision(inputs=tuple(inputs), outputs=(state,) * len(node.outputs))
    rows = rows_per_sample(shape[axis], state)
    if rows is None:
        return None
    targets = []
    for tensor in node.outputs:
        assert tensor.shape is not None
        blocks = divide(tensor.shape[axis], state.rows * rows)
        if blocks is None or has_batch(blocks):
            return None
        targets.append(state.with_blocks(axis, blocks))
    if node.op == "Split":
        return Decision(inputs=(REPLICATED, state), outputs=tuple(targets))
    parts = Numbers(tuple(state.in_part * rows * target.outer for target in targets))
    return Decision(inputs=(state, parts, REPLICATED), outputs=tuple(targets))


@rule("Slice", inputs=(ROWS, WHOLE, WHOLE))
def _slice(node: Node, states: Sequence[State]) -> Decision | None:
    shape, state, result = node.inputs[0].shape, states[0], node.outputs[0].shape
    begin, size = node.inputs[1].value, node.inputs[2].value
    if shape is None or result is None or not isinstance(state, Sharded):
        return None
    if begin is None or size is None:
        return None
    one = TakenSlice(state.axis)
    one.begin, one.length = begin[state.axis], result[state.axis]
    target = _blocks(one, shape[state.axis], state, state.axis)
    if target is None or not is_shardable(result, target):
        return None
    axis, rows = state.axis, part_sizes(result, target)[state.axis]
    begins = (*begin[:axis], _in_part(begin[axis], state), *begin[axis + 1 :])
    sizes = (*size[:axis], rows, *size[axis + 1 :])
    return Decision(inputs=(state, Numbers(begins), Numbers(sizes)), outputs=(target,))


@rule("StridedSlice", inputs=(ROWS, WHOLE, WHOLE, WHOLE))
def _strided_slice(node: Node, states: Sequence[State]) -> Decision | None:
    shape, state, result = node.inputs[0].shape, states[0], node.outputs[0].shape
    taken = None if shape is None else slices(node, shape)
    if taken is None or shape is None or result is None or not isinstance(state, Sharded):
        return None
    axis = 0
    for one in taken:
        if one is not None and one.axis == state.axis:
            break
        axis += one is None or not one.is_index
    samples = next(one for one in taken if one is not None and one.axis == state.axis)
    if samples.is_whole:
        target: Sharded | None = state.at(axis)
    else:
        target = _blocks(samples, shape[state.axis], state, axis)
    if target is None or not is_shardable(result, target):
        return None
    if any(one is not None and not _is_certain(one) for one in taken):
        # Places of other axes are in the data. All rows of the whole are all rows of a part, too:
        # an end behind the last row is the last row.
        whole = Decision(inputs=(state, *[REPLICATED] * 3), outputs=(target,))
        return whole if samples.is_whole else None
    numbers = [Numbers(one) for one in _part_slices(taken, state)]
    return Decision(
        inputs=(state, *numbers),
        outputs=(target,),
        lower=_with_plain_masks(taken, "StridedSlice"),
        lower_rows=state.rows,
    )


def _is_certain(one: TakenSlice) -> bool:
    return one.begin is not None and one.length is not None


def _blocks(samples: TakenSlice, size: Size, state: Sharded, axis: int) -> Sharded | None:
    """Whole blocks of an axis ``[outer, B, inner]``, such as ``x[:n]`` of ``concat([a, b])``."""
    rows = rows_per_sample(size, state)
    if samples.is_index or samples.stride != 1 or samples.begin is None or rows is None:
        return None
    if samples.length is None:
        return None
    first = divide(samples.begin, state.rows * rows) if samples.begin != 0 else 0
    blocks = divide(samples.length, state.rows * rows)
    if not isinstance(first, int) or not isinstance(blocks, int):
        return None
    return state.with_blocks(axis, blocks)


def _part_slices(
    taken: Sequence[TakenSlice | None], state: Sharded
) -> tuple[tuple[Size, ...], tuple[Size, ...], tuple[Size, ...]]:
    """Return begins, ends and strides with the numbers of the part, without negative places."""
    begins: list[Size] = []
    ends: list[Size] = []
    strides: list[Size] = []
    for one in taken:
        if one is None:
            begins, ends, strides = [*begins, 0], [*ends, 1], [*strides, 1]
            continue
        assert one.begin is not None and one.length is not None
        begin, length = one.begin, one.length
        if one.axis == state.axis:
            begin, length = _in_part(begin, state), _in_part(length, state)
        end = begin + length
        if one.stride != 1 and not one.is_index:
            assert isinstance(begin, int) and isinstance(length, int)
            end = begin + length * one.stride
            # A negative end would count from the back.
            end = end if end >= 0 else -(2**30)
        begins, ends = [*begins, begin], [*ends, end]
        strides.append(1 if one.is_index else one.stride)
    return tuple(begins), tuple(ends), tuple(strides)


def _with_plain_masks(taken: Sequence[TakenSlice | None], op: str) -> Lower:
    """The same operation with all places said in numbers."""

    def lower(builder: Builder, node: Node, inputs: Sequence[str]) -> Sequence[str]:
        shrink = sum(1 << k for k, one in enumerate(taken) if one is not None and one.is_index)
        new = sum(1 << k for k, one in enumerate(taken) if one is None)
        masks = {"begin_mask": 0, "end_mask": 0, "ellipsis_mask": 0}
        masks |= {"shrink_axis_mask": shrink, "new_axis_mask": new}
        return builder.op(op, inputs, {"T": node.attrs["T"], "Index": node.attrs["Index"], **masks})

    return lower


@rule("StridedSliceGrad", inputs=(WHOLE, WHOLE, WHOLE, WHOLE, ROWS))
def _gradient_of_strided_slice(node: Node, states: Sequence[State]) -> Decision | None:
    """Zeros of the shape that was sliced, with the gradient in the places of the slice."""
    result, gradient, state = node.outputs[0].shape, node.inputs[4].shape, states[4]
    taken = None if result is None else slices(node, result)
    if taken is None or result is None or gradient is None or not isinstance(state, Sharded):
        return None
    if any(one is not None and not _is_certain(one) for one in taken):
        return None
    kept = [one for one in taken if one is None or not one.is_index]
    if len(kept) != len(gradient) or kept[state.axis] is None:
        return None
    samples = kept[state.axis]
    assert samples is not None
    target = state.at(samples.axis)
    if not samples.is_whole:
        rows = rows_per_sample(gradient[state.axis], state)
        blocks = None if rows is None else divide(result[samples.axis], state.rows * rows)
        if blocks is None or has_batch(blocks):
            return None
        target = state.with_blocks(samples.axis, blocks)
        if _blocks(samples, result[samples.axis], target, state.axis) != state:
            return None
    if not is_shardable(result, target):
        return None
    numbers = [Numbers(one) for one in _part_slices(taken, target)]
    return Decision(
        inputs=(Numbers(part_sizes(result, target)), *numbers, state),
        outputs=(target,),
        lower=_with_plain_masks(taken, "StridedSliceGrad"),
        lower_rows=state.rows,
    )


def _in_part(size: Size, state: Sharded) -> Size:
    """Return in a part a place or a length that is whole blocks of the rows."""
    rows = 0 if size == 0 else divide(size, state.rows)
    assert rows is not None
    return state.in_part * rows


@rule("BroadcastTo", inputs=(ROWS, WHOLE))
def _broadcast_to(node: Node, states: Sequence[State]) -> Decision | None:
    result, shape, state = node.outputs[0].shape, node.inputs[0].shape, states[0]
    if result is None or shape is None:
        return None
    if isinstance(state, Sharded):
        axis = state.axis + len(result) - len(shape)
        target = state.at(axis)
        if result[axis] != shape[state.axis] or not is_shardable(result, target):
            return None
    else:
        found = first_batch_axis(result)
        if found is None:
            return None
        target = found
        axis = target.axis - (len(result) - len(shape))
        if axis >= 0 and shape[axis] != 1:
            return None
    return Decision(inputs=(state, Numbers(part_sizes(result, target))), outputs=(target,))


def first_batch_axis(shape: Shape) -> Sharded | None:
    """Return the state by the first axis that counts samples, or None if there is none."""
    for axis in range(len(shape)):
        if is_shardable(shape, Sharded(axis)):
            return Sharded(axis)
    return None


@rule("Fill", inputs=WHOLE)
def _fill(node: Node, states: Sequence[State]) -> Decision | None:
    shape = node.outputs[0].shape
    target = None if shape is None else first_batch_axis(shape)
    if shape is None or target is None:
        return None
    return Decision(inputs=(Numbers(part_sizes(shape, target)), REPLICATED), outputs=(target,))


@rule("Range", inputs=WHOLE)
def _range(node: Node, states: Sequence[State]) -> Decision | None:
    start, _, step = (t.value for t in node.inputs)
    shape = node.outputs[0].shape
    if shape is None or start is None or step is None or not isinstance(step[0], int):
        return None
    if has_batch(start[0]) or not is_shardable(shape, Sharded(0)):
        return None
    rows = rows_per_sample(shape[0])
    assert rows is not None
    begin = PART_OFFSET * rows * step[0] + start[0]
    return Decision(
        inputs=(Numbers((begin,)), Numbers((begin + PART_BATCH * rows * step[0],)), REPLICATED),
        outputs=(Sharded(0),),
    )


@rule("Tile", inputs=(ROWS, WHOLE))
def _tile(node: Node, states: Sequence[State]) -> Decision | None:
    shape, times, state = node.inputs[0].shape, node.inputs[1].value, states[0]
    result = node.outputs[0].shape
    if shape is None or result is None or times is None:
        return None
    if isinstance(state, Sharded):
        # [a, b] tiled by 2 is [a, b, a, b]: twice as many blocks.
        if has_batch(times[state.axis]):
            return None
        target = state.with_blocks(state.axis, state.outer * times[state.axis])
        return Decision(inputs=(state, Numbers(times)), outputs=(target,))
    for axis, count in enumerate(times):
        if has_batch(count) and shape[axis] == 1 and is_shardable(result, Sharded(axis)):
            rows = rows_per_sample(count)
            assert rows is not None
            local = (*times[:axis], PART_BATCH * rows, *times[axis + 1 :])
            return Decision(inputs=(REPLICATED, Numbers(local)), outputs=(Sharded(axis),))
    return None


@rule("Pad", "MirrorPad", inputs=(ROWS, WHOLE))
@rule("PadV2", inputs=(ROWS, WHOLE, WHOLE))
def _pad(node: Node, states: Sequence[State]) -> Decision | None:
    shape, result, state = node.inputs[0].shape, node.outputs[0].shape, states[0]
    if shape is None or result is None or not isinstance(state, Sharded):
        return None
    if result[state.axis] != shape[state.axis] or not _pads_nothing(node, state.axis):
        return None
    others = [REPLICATED] * (len(states) - 1)
    is_mirrored = node.op == "MirrorPad"
    return Decision(inputs=(state, *others), outputs=(state,), needs_samples=is_mirrored)


def _pads_nothing(node: Node, axis: int) -> bool:
    pads = matrix_of(node.inputs[1])
    return pads is not None and all(isinstance(pad, int) and pad == 0 for pad in pads[axis])


@rule("MirrorPadGrad", inputs=(ROWS, WHOLE))
def _pad_gradient(node: Node, states: Sequence[State]) -> Decision | None:
    state = states[0]
    if not isinstance(state, Sharded) or not _pads_nothing(node, state.axis):
        return None
    if not is_shardable(node.outputs[0].shape, state):
        return None
    return Decision(inputs=(state, REPLICATED), outputs=(state,), needs_samples=True)


@rule("ReverseV2", inputs=(ROWS, WHOLE))
def _reverse(node: Node, states: Sequence[State]) -> Decision | None:
    axes, state, rank = node.inputs[1].value, states[0], node.inputs[0].rank
    if rank is None or axes is None or not isinstance(state, Sharded):
        return None
    if any(not isinstance(k, int) or k % rank == state.axis for k in axes):
        return None
    return Decision(inputs=(state, REPLICATED), outputs=(state,))


@rule("Roll", inputs=(ROWS, WHOLE, WHOLE))
def _roll(node: Node, states: Sequence[State]) -> Decision | None:
    axes, state, rank = node.inputs[2].value, states[0], node.inputs[0].rank
    if rank is None or axes is None or not isinstance(state, Sharded):
        return None
    if any(not isinstance(k, int) or k % rank == state.axis for k in axes):
        return None
    return Decision(inputs=(state, REPLICATED, REPLICATED), outputs=(state,))


@rule("ReverseSequence", inputs=ROWS)
def _reverse_sequence(node: Node, states: Sequence[State]) -> Decision | None:
    axis = node.int_attr("batch_dim")
    state = Sharded(axis)
    shape = node.inputs[0].shape
    if not is_shardable(shape, state) or node.int_attr("seq_dim") == axis:
        return None
    return Decision(inputs=(state, Sharded(0)), outputs=(state,))


@rule("Cumsum", "Cumprod", "CumulativeLogsumexp", inputs=(ROWS, WHOLE))
def _cumulative(node: Node, states: Sequence[State]) -> Decision | None:
    axes, state, rank = node.inputs[1].value, states[0], node.inputs[0].rank
    if rank is None or not isinstance(state, Sharded) or not _is_number(axes):
        return None
    assert axes is not None and isinstance(axes[0], int)
    if axes[0] % rank == state.axis:
        return None
    return Decision(inputs=(state, REPLICATED), outputs=(state,))


@rule("TopKV2", inputs=(ROWS, WHOLE))
@rule("TopK", inputs=ROWS)
def _top_k(node: Node, states: Sequence[State]) -> Decision | None:
    state, rank = states[0], node.inputs[0].rank
    if rank is None or not isinstance(state, Sharded) or state.axis == rank - 1:
        return None
    others = (REPLICATED,) * (len(states) - 1)
    return Decision(inputs=(state, *others), outputs=(state, state))


@rule("OneHot", inputs=(ROWS, WHOLE, WHOLE, WHOLE))
def _one_hot(node: Node, states: Sequence[State]) -> Decision | None:
    state, rank = states[0], node.inputs[0].rank
    if rank is None or not isinstance(state, Sharded):
        return None
    axis = node.int_attr("axis") % (rank + 1)
    target = state.at(state.axis + (axis <= state.axis))
    return Decision(inputs=(state, *[REPLICATED] * 3), outputs=(target,))


@rule("GatherV2", inputs=(ROWS, ROWS, WHOLE))
@rule("Gather", inputs=ROWS)
def _gather(node: Node, states: Sequence[State]) -> Decision | None:
    """Rows of a table that all parts have, or of every sample's own table."""
    data, indices = states[0], states[1]
    shape, places = node.inputs[0].shape, node.inputs[1].shape
    axes = node.inputs[2].value if node.op == "GatherV2" else (0,)
    if shape is None or places is None or not _is_number(axes):
        return None
    assert axes is not None and isinstance(axes[0], int)
    axis = axes[0] % len(shape)
    shared = node.int_attr("batch_dims") if node.op == "GatherV2" else 0
    others = (REPLICATED,) * (len(states) - 2)
    for state in (data, indices):
        if isinstance(state, Sharded) and state.axis < shared:
            if is_shardable(shape, state) and is_shardable(places, state):
                return Decision(inputs=(state, state, *others), outputs=(state,))
            return None
    if isinstance(indices, Sharded):
        is_by_rows = node.op == "GatherV2" and axis == shared == 0 and indices.rows == BATCH
        own = gather_from_own(node) if is_by_rows else None
        if own is not None:
            return own
        target = indices.at(axis + indices.axis - shared)
        return Decision(inputs=(REPLICATED, indices, *others), outputs=(target,))
    if isinstance(data, Sharded) and data.axis != axis:
        moved = data.axis if data.axis < axis else data.axis + len(places) - shared - 1
        return Decision(inputs=(data, REPLICATED, *others), outputs=(data.at(moved),))
    return None


@rule("GatherNd", inputs=ROWS)
def _gather_nd(node: Node, states: Sequence[State]) -> Decision | None:
    indices, places = states[1], node.inputs[1].rank
    if places is None or not isinstance(indices, Sharded) or indices.axis == places - 1:
        return None
    own = gather_nd_from_own(node) if indices.rows == BATCH else None
    return own or Decision(inputs=(REPLICATED, indices), outputs=(indices,))


@rule("SpaceToDepth", "DepthToSpace", inputs=ROWS)
def _blocks_of_space(node: Node, states: Sequence[State]) -> Decision | None:
    state = states[0]
    if not isinstance(state, Sharded) or state.axis != 0:
        return None
    return Decision(inputs=(state,), outputs=(state,))


def _is_number(value: tuple[Size, ...] | None) -> bool:
    return value is not None and len(value) == 1 and isinstance(value[0], int)
