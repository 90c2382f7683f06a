"""Slices, their gradients, and updates of slices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evener.graph.dims import Dim, Size, divide, has_batch, is_at_least
from evener.graph.nodes import Node, SymbolTable
from evener.graph.ops.registry import (
    FREE,
    Matrix,
    Shape,
    Shapes,
    given_by_input,
    like_input,
    matrix_of,
    matrix_rule,
    partial_rule,
    rule,
    shape_rule,
    traits,
    value_rule,
    without_minus_one,
)
from evener.graph.ops.reshaping import rearranged_partial
from evener.graph.ops.states import (
    PARTIALS,
    REPLICATED,
    ROWS,
    WHOLE,
    Builder,
    Decision,
    Lower,
    Numbers,
    Sharded,
    State,
    first_sharded,
    integers_of,
    is_shardable,
    numbers_of,
    part_sizes,
    rows_per_sample,
    shape_of,
    sharded,
)

# Strided slices, read: the rows that they take of every axis.


@dataclass(slots=True)
class TakenSlice:
    """Rows that a strided slice takes of one axis."""

    axis: int  # The axis of the input
    begin: Size | None = None  # The first row, or None if it is not known
    stride: int = 1  # The step from row to row
    length: Size | None = None  # Number of rows, or None if that is not known
    is_index: bool = False  # Whether the axis vanishes
    is_whole: bool = False  # Whether it takes all rows in their order


def slices(node: Node, shape: Shape) -> list[TakenSlice | None] | None:
    """Return what a StridedSlice takes of every axis in order; None for a new axis of size 1."""
    begins, ends, strides = (t.value for t in node.inputs[1:4])
    if strides is None or (begins is None and ends is None):
        return None
    count = len(strides)
    begins = begins or (None,) * count
    ends = ends or (None,) * count
    if len(begins) != count or len(ends) != count:
        return None
    masks = {k: node.int_attr(f"{k}_mask") for k in ("begin", "end", "ellipsis", "new_axis")}
    shrink = node.int_attr("shrink_axis_mask")
    used = sum(not (masks["new_axis"] >> k & 1 or masks["ellipsis"] >> k & 1) for k in range(count))
    taken: list[TakenSlice | None] = []
    axis = 0
    for k in range(count):
        bit = 1 << k
        if masks["ellipsis"] & bit:
            for _ in range(len(shape) - used):
                taken.append(_whole(axis, shape))
                axis += 1
        elif masks["new_axis"] & bit:
            taken.append(None)
        else:
            if axis >= len(shape) or not isinstance(strides[k], int):
                return None
            taken.append(
                _taken(
                    axis,
                    shape[axis],
                    None if masks["begin"] & bit else (begins[k],),
                    None if masks["end"] & bit else (ends[k],),
                    int(strides[k]),  # pyright: ignore[reportArgumentType]
                    is_index=bool(shrink & bit),
                )
            )
            axis += 1
    while axis < len(shape):
        taken.append(_whole(axis, shape))
        axis += 1
    return taken


def _whole(axis: int, shape: Shape) -> TakenSlice:
    return TakenSlice(axis, begin=0, length=shape[axis], is_whole=True)


def _taken(
    axis: int,
    size: Size,
    begin: tuple[Size | None] | None,
    end: tuple[Size | None] | None,
    stride: int,
    *,
    is_index: bool,
) -> TakenSlice:
    found = TakenSlice(axis, stride=stride, is_index=is_index)
    if is_index:
        found.length = 1
        found.begin = None if begin is None else _from_front(begin[0], size)
        return found
    if begin is None and end is None and stride == 1:
        found.begin, found.length, found.is_whole = 0, size, True
        return found
    if stride == 1:
        start = 0 if begin is None else _from_front(begin[0], size)
        stop = size if end is None else _from_front(end[0], size)
        found.begin = start
        if start is not None and stop is not None:
            if isinstance(size, int):
                if isinstance(start, int) and isinstance(stop, int):
                    found.begin = min(max(start, 0), size)
                    found.length = max(0, min(max(stop, 0), size) - found.begin)
            elif _is_within(start, size) and _is_within(stop, size):
                length = stop - start
                # What ends before it begins has no rows.
                found.length = length if is_at_least(length, 0) else None
            found.is_whole = start == 0 and stop == size
        return found
    if isinstance(size, int):
        first = None if begin is None else begin[0]
        last = None if end is None else end[0]
        if not (first is None or isinstance(first, int)) or not (
            last is None or isinstance(last, int)
        ):
            return found
        span = range(size)[slice(first, last, stride)]
        found.length = len(span)
        found.begin = span.start
    return found


def _from_front(position: Size | None, size: Size) -> Size | None:
    if isinstance(position, int) and position < 0:
        return size + position
    return position


def _is_within(position: Size, size: Size) -> bool:
    """Return whether a position is in an axis of symbolic size for certain: not behind its end."""
    if position == 0 or position == size:
        return True
    # k*B of n*B rows.
    quotient = divide(position, size) if position != 0 else 0
    if isinstance(quotient, int):
        return 0 <= quotient <= 1
    inverse = divide(size, position)
    return (isinstance(inverse, int) and inverse >= 1) or _is_fraction(position, size)


def _is_fraction(position: Size, size: Size) -> bool:
    if not isinstance(position, Dim) or not isinstance(size, Dim):
        return False
    if len(position.terms) != 1 or len(size.terms) != 1:
        return False
    ((monomial, k),), ((other, n),) = position.terms.items(), size.terms.items()
    return monomial == other and 0 <= k <= n


# Slices, their gradients, and updates of slices.


@shape_rule("Slice")
def _slice_shape(table: SymbolTable, node: Node) -> Shapes:
    shape, begin, size = (
        shape_of(node.inputs[0]),
        numbers_of(node.inputs[1]),
        numbers_of(node.inputs[2]),
    )
    size = without_minus_one(table, node.outputs[0], size, shape)
    return [
        tuple(
            n - start if length == -1 else length
            for n, start, length in zip(shape, begin, size, strict=True)
        )
    ]


@value_rule("Slice")
def _slice_value(table: SymbolTable, node: Node) -> Shapes:
    if node.inputs[0].rank != 1:
        return None
    value, (begin,), (size,) = numbers_of(node.inputs[0]), *map(integers_of, node.inputs[1:])
    return [value[begin : len(value) if size == -1 else begin + size]]


@matrix_rule("Slice")
def _slice_matrix(node: Node) -> Matrix | None:
    array, begin, size = matrix_of(node.inputs[0]), *map(integers_of, node.inputs[1:])
    pairs = zip(begin, size, strict=True)
    taken = tuple(slice(k, None if count == -1 else k + count) for k, count in pairs)
    return array[taken] if min(begin, default=0) >= 0 else None


@rule("Slice", inputs=(ROWS, WHOLE, WHOLE))
def _slice(node: Node, states: Sequence[State]) -> Decision | None:
    shape, state, result = shape_of(node.inputs[0]), sharded(states[0]), shape_of(node.outputs[0])
    begin, size = node.inputs[1].value, node.inputs[2].value
    if begin is None or size is None:
        return None
    span = TakenSlice(state.axis, begin=begin[state.axis], length=result[state.axis])
    target = _blocks(span, shape[state.axis], state, state.axis)
    if target is None or not is_shardable(result, target):
        return None
    axis, rows = state.axis, part_sizes(result, target)[state.axis]
    begins = (*begin[:axis], _in_part(begin[axis], state), *begin[axis + 1 :])
    sizes = (*size[:axis], rows, *size[axis + 1 :])
    return Decision(inputs=(state, Numbers(begins), Numbers(sizes)), outputs=(target,))


@shape_rule("StridedSlice")
def _strided_slice_shape(table: SymbolTable, node: Node) -> Shapes:
    shape = node.inputs[0].shape
    taken = None if shape is None else slices(node, shape)
    if taken is None:
        return None
    sizes: list[Size] = []
    for span in taken:
        if span is None:
            sizes.append(1)
        elif span.length is None:
            sizes.append(table.new_symbol(node.outputs[0], len(sizes)))
        elif not span.is_index:
            sizes.append(span.length)
    return [tuple(sizes)]


@value_rule("StridedSlice")
def _strided_slice_value(table: SymbolTable, node: Node) -> Shapes:
    value, shape = numbers_of(node.inputs[0]), shape_of(node.inputs[0])
    if len(shape) != 1:
        return None
    taken = slices(node, shape)
    if taken is None or len(taken) != 1 or taken[0] is None:
        return None
    span = taken[0]
    if not isinstance(span.begin, int) or not isinstance(span.length, int):
        return None
    if span.is_index and not 0 <= span.begin < len(value):
        return None
    return [tuple(value[span.begin + k * span.stride] for k in range(span.length))]


@rule("StridedSlice", inputs=(ROWS, WHOLE, WHOLE, WHOLE))
def _strided_slice(node: Node, states: Sequence[State]) -> Decision | None:
    shape, state, result = shape_of(node.inputs[0]), sharded(states[0]), shape_of(node.outputs[0])
    taken = None if shape is None else slices(node, shape)
    if taken is None:
        return None
    axis = 0
    for span in taken:
        if span is not None and span.axis == state.axis:
            break
        axis += span is None or not span.is_index
    samples = next(span for span in taken if span is not None and span.axis == state.axis)
    if samples.is_whole:
        target: Sharded | None = state.at(axis)
    else:
        target = _blocks(samples, shape[state.axis], state, axis)
    if target is None or not is_shardable(result, target):
        return None
    if any(span is not None and not _is_certain(span) for span in taken):
        # Places of other axes are in the data. All rows of the whole are all rows of a part, too:
        # an end behind the last row is the last row.
        whole = Decision(inputs=(state, *[REPLICATED] * 3), outputs=(target,))
        return whole if samples.is_whole else None
    numbers = [Numbers(span) for span in _part_slices(taken, state)]
    return Decision(
        inputs=(state, *numbers),
        outputs=(target,),
        lower=_with_plain_masks(taken, "StridedSlice"),
        lower_rows=state.rows,
    )


def _is_certain(span: TakenSlice) -> bool:
    return span.begin is not None and span.length is not None


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
    """Return begins, ends and strides with the numbers of the part, none of them negative."""
    begins: list[Size] = []
    ends: list[Size] = []
    strides: list[Size] = []
    for span in taken:
        if span is None:
            begins, ends, strides = [*begins, 0], [*ends, 1], [*strides, 1]
            continue
        assert span.begin is not None and span.length is not None
        begin, length = span.begin, span.length
        if span.axis == state.axis:
            begin, length = _in_part(begin, state), _in_part(length, state)
        end = begin + length
        if span.stride != 1 and not span.is_index:
            assert isinstance(begin, int) and isinstance(length, int)
            end = begin + length * span.stride
            # A negative end would count from the back.
            end = end if end >= 0 else -(2**30)
        begins, ends = [*begins, begin], [*ends, end]
        strides.append(1 if span.is_index else span.stride)
    return tuple(begins), tuple(ends), tuple(strides)


def _with_plain_masks(taken: Sequence[TakenSlice | None], op: str) -> Lower:
    """The same operation with all positions in numbers."""

    def lower(builder: Builder, node: Node, inputs: Sequence[str]) -> Sequence[str]:
        shrink = sum(1 << k for k, span in enumerate(taken) if span is not None and span.is_index)
        new = sum(1 << k for k, span in enumerate(taken) if span is None)
        masks = {"begin_mask": 0, "end_mask": 0, "ellipsis_mask": 0}
        masks |= {"shrink_axis_mask": shrink, "new_axis_mask": new}
        return builder.op(op, inputs, {"T": node.attrs["T"], "Index": node.attrs["Index"], **masks})

    return lower


@rule("StridedSliceGrad", inputs=(WHOLE, WHOLE, WHOLE, WHOLE, ROWS))
def _gradient_of_strided_slice(node: Node, states: Sequence[State]) -> Decision | None:
    """Zeros of the shape that was sliced, with the gradient in the rows of the slice."""
    result, gradient, state = (
        shape_of(node.outputs[0]),
        shape_of(node.inputs[4]),
        sharded(states[4]),
    )
    taken = None if result is None else slices(node, result)
    if taken is None:
        return None
    if any(span is not None and not _is_certain(span) for span in taken):
        return None
    kept = [span for span in taken if span is None or not span.is_index]
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
    numbers = [Numbers(span) for span in _part_slices(taken, target)]
    return Decision(
        inputs=(Numbers(part_sizes(result, target)), *numbers, state),
        outputs=(target,),
        lower=_with_plain_masks(taken, "StridedSliceGrad"),
        lower_rows=state.rows,
    )


def _in_part(size: Size, state: Sharded) -> Size:
    """Return a position or a length in a part that is whole blocks of the rows."""
    rows = 0 if size == 0 else divide(size, state.rows)
    assert rows is not None
    return state.in_part * rows


@rule("XlaDynamicUpdateSlice", inputs=(ROWS, ROWS, WHOLE))
def _update_slice(node: Node, states: Sequence[State]) -> Decision | None:
    """All samples get an update, at the same positions of the other axes."""
    shape, update = map(shape_of, node.inputs[:2])
    begin, state = numbers_of(node.inputs[2]), first_sharded(states[:2])
    if begin[state.axis] != 0 or shape[state.axis] != update[state.axis]:
        return None
    return Decision(inputs=(state, state, REPLICATED), outputs=(state,))


shape_rule("StridedSliceGrad")(given_by_input(0))
shape_rule("XlaDynamicUpdateSlice")(like_input(0))
partial_rule("Slice", inputs=(PARTIALS, WHOLE, WHOLE))(rearranged_partial)
partial_rule("StridedSlice", inputs=(PARTIALS, WHOLE, WHOLE, WHOLE))(rearranged_partial)
traits("Slice StridedSlice", FREE)
