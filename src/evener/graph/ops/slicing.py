"""Slices, their gradients, and updates of slices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evener.graph.dims import Dim, Size, divide, has_batch, is_at_least
from evener.graph.functions import FunctionBuilder
from evener.graph.nodes import Node, SymbolTable
from evener.graph.ops.registry import (
    Matrix,
    Shape,
    Shapes,
    Trait,
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
    Decision,
    Lower,
    Numbers,
    Sharded,
    State,
    first_sharded,
    integer,
    integers_of,
    is_shardable,
    known,
    numbers_of,
    part_sizes,
    require,
    rows_per_sample,
    shape_of,
    sharded,
)


@dataclass(slots=True)
class TakenSlice:
    """Rows that a strided slice takes of one axis."""

    axis: int  # The axis of the input
    begin: Size | None = None  # The first row, or None if it is not known
    stride: int = 1  # The step from row to row
    length: Size | None = None  # Number of rows, or None if that is not known
    is_index: bool = False  # Whether the axis vanishes
    is_whole: bool = False  # Whether it takes all rows in their order

    @property
    def is_known(self) -> bool:
        return self.begin is not None and self.length is not None


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
    names = ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    masks = [node.int_attr(f"{name}_mask") for name in names]
    # For each position: no begin, no end, an ellipsis, a new axis, an index.
    flags = [[bool(mask >> k & 1) for mask in masks] for k in range(count)]
    num_axes = sum(not (is_ellipsis or is_new) for _, _, is_ellipsis, is_new, _ in flags)
    taken: list[TakenSlice | None] = []
    axis = 0
    for k, (no_begin, no_end, is_ellipsis, is_new, is_index) in enumerate(flags):
        if is_ellipsis:
            whole = range(axis, axis + len(shape) - num_axes)
            taken += [_whole(other, shape) for other in whole]
            axis += len(whole)
        elif is_new:
            taken.append(None)
        else:
            stride = strides[k]
            if axis >= len(shape) or not isinstance(stride, int):
                return None
            begin, end = None if no_begin else (begins[k],), None if no_end else (ends[k],)
            taken.append(_taken(axis, shape[axis], begin, end, stride, is_index=is_index))
            axis += 1
    return taken + [_whole(other, shape) for other in range(axis, len(shape))]


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
    """Return what is taken of an axis; a begin or an end in brackets is given, maybe not known."""
    span = TakenSlice(axis, stride=stride, is_index=is_index)
    if is_index:
        span.length = 1
        span.begin = None if begin is None else _from_front(begin[0], size)
    elif begin is None and end is None and stride == 1:
        span.begin, span.length, span.is_whole = 0, size, True
    elif stride == 1:
        start = 0 if begin is None else _from_front(begin[0], size)
        stop = size if end is None else _from_front(end[0], size)
        span.begin = start
        if start is not None and stop is not None:
            if isinstance(size, int):
                if isinstance(start, int) and isinstance(stop, int):
                    span.begin = min(max(start, 0), size)
                    span.length = max(0, min(max(stop, 0), size) - span.begin)
            elif _is_within(start, size) and _is_within(stop, size):
                # What ends before it begins has no rows.
                span.length = stop - start if is_at_least(stop - start, 0) else None
            span.is_whole = start == 0 and stop == size
    elif isinstance(size, int):
        first, last = begin and begin[0], end and end[0]
        # A bound in brackets is None if it is not known, and then so is what is taken.
        if isinstance(first, int | None) and isinstance(last, int | None):
            if begin != (None,) and end != (None,):
                rows = range(size)[slice(first, last, stride)]
                span.begin, span.length = rows.start, len(rows)
    return span


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
    if isinstance(inverse, int) and inverse >= 1:
        return True
    if not isinstance(position, Dim) or not isinstance(size, Dim):
        return False
    if len(position.terms) != 1 or len(size.terms) != 1:
        return False
    ((monomial, k),), ((other, n),) = position.terms.items(), size.terms.items()
    return monomial == other and 0 <= k <= n


@shape_rule("Slice")
def _slice_shape(table: SymbolTable, node: Node) -> Shapes:
    shape, begin = shape_of(node.inputs[0]), numbers_of(node.inputs[1])
    lengths = without_minus_one(table, node.outputs[0], numbers_of(node.inputs[2]), shape)
    triples = zip(shape, begin, lengths, strict=True)
    return [tuple(n - start if length == -1 else length for n, start, length in triples)]


@value_rule("Slice")
def _slice_value(table: SymbolTable, node: Node) -> Shapes:
    require(node.inputs[0].rank == 1)
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
    begin, size, axis = numbers_of(node.inputs[1]), numbers_of(node.inputs[2]), state.axis
    span = TakenSlice(axis, begin=begin[axis], length=result[axis])
    target = _blocks(span, shape[axis], state, axis)
    require(is_shardable(result, target))
    rows = part_sizes(result, target)[axis]
    begins = (*begin[:axis], _in_part(begin[axis], state), *begin[axis + 1 :])
    sizes = (*size[:axis], rows, *size[axis + 1 :])
    return Decision(inputs=(state, Numbers(begins), Numbers(sizes)), outputs=(target,))


@shape_rule("StridedSlice")
def _strided_slice_shape(table: SymbolTable, node: Node) -> Shapes:
    sizes: list[Size] = []
    for span in known(slices(node, shape_of(node.inputs[0]))):
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
    taken = known(slices(node, shape))
    require(len(shape) == len(taken) == 1)
    span = known(taken[0])
    begin, length = integer(span.begin), integer(span.length)
    require(not span.is_index or 0 <= begin < len(value))
    return [tuple(value[begin + k * span.stride] for k in range(length))]


@rule("StridedSlice", inputs=(ROWS, WHOLE, WHOLE, WHOLE))
def _strided_slice(node: Node, states: Sequence[State]) -> Decision | None:
    shape, state, result = shape_of(node.inputs[0]), sharded(states[0]), shape_of(node.outputs[0])
    taken = known(slices(node, shape))
    at, samples = next(
        (k, span) for k, span in enumerate(taken) if span is not None and span.axis == state.axis
    )
    axis = sum(span is None or not span.is_index for span in taken[:at])
    if samples.is_whole:
        target = state.at(axis)
    else:
        target = _blocks(samples, shape[state.axis], state, axis)
    require(is_shardable(result, target))
    if not all(span is None or span.is_known for span in taken):
        # Places of other axes are in the data. All rows of the whole are all rows of a part, too:
        # an end behind the last row is the last row.
        require(samples.is_whole)
        return Decision(inputs=(state, *[REPLICATED] * 3), outputs=(target,))
    return Decision(
        inputs=(state, *[Numbers(span) for span in _part_slices(taken, state)]),
        outputs=(target,),
        lower=_with_plain_masks(taken, "StridedSlice"),
        lower_rows=state.rows,
    )


def _blocks(samples: TakenSlice, size: Size, state: Sharded, axis: int) -> Sharded:
    """Whole blocks of an axis ``[outer, B, inner]``, such as ``x[:n]`` of ``concat([a, b])``."""
    require(not samples.is_index and samples.stride == 1)
    block = state.rows * known(rows_per_sample(size, state))
    first = divide(known(samples.begin), block) if samples.begin != 0 else 0
    blocks = divide(known(samples.length), block)
    require(isinstance(first, int))
    return state.in_blocks(axis, integer(blocks))


def _part_slices(
    taken: Sequence[TakenSlice | None], state: Sharded
) -> tuple[tuple[Size, ...], tuple[Size, ...], tuple[Size, ...]]:
    """Return begins, ends and strides with the numbers of the part, none of them negative."""
    triples: list[tuple[Size, Size, Size]] = []
    for span in taken:
        if span is None:
            triples.append((0, 1, 1))
            continue
        begin, length = known(span.begin), known(span.length)
        stride = 1 if span.is_index else span.stride
        if span.axis == state.axis:
            begin, length = _in_part(begin, state), _in_part(length, state)
        end = begin + length * stride
        if stride != 1 and integer(end) < 0:
            end = -(2**30)  # A negative end would count from the back.
        triples.append((begin, end, stride))
    begins, ends, strides = zip(*triples, strict=True)
    return begins, ends, strides


def _with_plain_masks(taken: Sequence[TakenSlice | None], op: str) -> Lower:
    """The same operation with all positions in numbers."""

    def lower(builder: FunctionBuilder, node: Node, inputs: Sequence[str]) -> Sequence[str]:
        shrink = sum(1 << k for k, span in enumerate(taken) if span is not None and span.is_index)
        new = sum(1 << k for k, span in enumerate(taken) if span is None)
        masks = {"begin_mask": 0, "end_mask": 0, "ellipsis_mask": 0}
        masks |= {"shrink_axis_mask": shrink, "new_axis_mask": new}
        return builder.op(op, inputs, {"T": node.attrs["T"], "Index": node.attrs["Index"], **masks})

    return lower


@rule("StridedSliceGrad", inputs=(WHOLE, WHOLE, WHOLE, WHOLE, ROWS))
def _gradient_of_strided_slice(node: Node, states: Sequence[State]) -> Decision | None:
    """Zeros of the shape that was sliced, with the gradient in the rows of the slice."""
    result, gradient = shape_of(node.outputs[0]), shape_of(node.inputs[4])
    state = sharded(states[4])
    taken = known(slices(node, result))
    axes = [span for span in taken if span is None or not span.is_index]
    require(all(span is None or span.is_known for span in taken) and len(axes) == len(gradient))
    samples = known(axes[state.axis])
    target = state.at(samples.axis)
    if not samples.is_whole:
        rows = known(rows_per_sample(gradient[state.axis], state))
        blocks = known(divide(result[samples.axis], state.rows * rows))
        require(not has_batch(blocks))
        target = state.in_blocks(samples.axis, blocks)
        require(_blocks(samples, result[samples.axis], target, state.axis) == state)
    require(is_shardable(result, target))
    numbers = [Numbers(span) for span in _part_slices(taken, target)]
    return Decision(
        inputs=(Numbers(part_sizes(result, target)), *numbers, state),
        outputs=(target,),
        lower=_with_plain_masks(taken, "StridedSliceGrad"),
        lower_rows=state.rows,
    )


def _in_part(size: Size, state: Sharded) -> Size:
    """Return a position or a length in a part that is whole blocks of the rows."""
    return state.in_part * (0 if size == 0 else known(divide(size, state.rows)))


@rule("XlaDynamicUpdateSlice", inputs=(ROWS, ROWS, WHOLE))
def _update_slice(node: Node, states: Sequence[State]) -> Decision | None:
    """All samples get an update, at the same positions of the other axes."""
    shape, update = map(shape_of, node.inputs[:2])
    begin, state = numbers_of(node.inputs[2]), first_sharded(states[:2])
    require(begin[state.axis] == 0 and shape[state.axis] == update[state.axis])
    return Decision(inputs=(state, state, REPLICATED), outputs=(state,))


shape_rule("StridedSliceGrad")(given_by_input(0))
shape_rule("XlaDynamicUpdateSlice")(like_input(0))
partial_rule("Slice", inputs=(PARTIALS, WHOLE, WHOLE))(rearranged_partial)
partial_rule("StridedSlice", inputs=(PARTIALS, WHOLE, WHOLE, WHOLE))(rearranged_partial)
traits("Slice StridedSlice", Trait.FREE)
