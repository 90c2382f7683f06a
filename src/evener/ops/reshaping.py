"""The same elements in another shape, or with their axes in another order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from evener.graph.dims import Dim, Size, divide, evaluate, product, symbol, symbols_of
from evener.graph.nodes import Node
from evener.graph.symbols import SymbolTable
from evener.ops.axes import without_minus_one
from evener.ops.decision import PARTIALS, ROWS, WHOLE, Decision
from evener.ops.known import axis_of, integers_of, numbers_of, rank_of, shape_of, sharded
from evener.ops.registry import (
    FREE,
    TOTAL,
    VIEW,
    Matrix,
    Shape,
    Shapes,
    Trait,
    equal_sizes_rule,
    index_inputs,
    matrix_rule,
    partial_rule,
    rule,
    shape_rule,
    traits,
    value_rule,
)
from evener.ops.states import (
    REPLICATED,
    Numbers,
    Partial,
    Sharded,
    State,
    is_shardable,
    part_sizes,
    rows_per_sample,
)
from evener.ops.values import LARGEST_VALUE, matrix_of


@shape_rule("Reshape")
def _reshape_shape(table: SymbolTable, node: Node) -> Shapes:
    wanted, shape = numbers_of(node.inputs[1]), node.inputs[0].shape
    wanted = without_minus_one(table, node.outputs[0], wanted, shape)
    if -1 in wanted:
        open_axis = wanted.index(-1)
        rest = None
        if shape is not None:
            known = product(s for s in wanted if s != -1)
            rest = divide(_as_number(table, product(shape)), known)
            rest = divide(product(shape), known) if rest is None else rest
        if rest is None:
            rest = table.new_symbol(node.outputs[0], open_axis)
        wanted = (*wanted[:open_axis], rest, *wanted[open_axis + 1 :])
    return [wanted if shape is None else _with_samples(table, shape, wanted)]


def _as_number(table: SymbolTable, size: Size) -> Size:
    """Return a size as a number, where the step was traced for batches of one size."""
    if table.num_samples is None or symbols_of(size) - {"B"}:
        return size
    return evaluate(size, {"B": table.num_samples})


def _with_samples(table: SymbolTable, before: Shape, after: Shape) -> Shape:
    """Return a shape with the axis that counts samples, where a program gave its size as a number.

    Elements stay in their order, so it is the axis with as many of them in front and behind.
    """
    numbers = [_as_number(table, size) for size in before]
    counting = [axis for axis, size in enumerate(before) if symbols_of(size)]
    is_given = all(isinstance(size, int) for size in (*numbers, *after))
    if table.num_samples is None or len(counting) != 1 or not is_given:
        return after
    (counted,) = counting
    rows = divide(before[counted], symbol("B"))
    front, behind = product(numbers[:counted]), product(numbers[counted + 1 :])
    for axis, size in enumerate(after):
        outer = divide(front, product(after[:axis]))
        inner = None if rows is None else divide(rows * behind, product(after[axis + 1 :]))
        if outer is None or inner is None or size != table.num_samples * outer * inner:
            continue
        return (*after[:axis], symbol("B") * outer * inner, *after[axis + 1 :])
    return after


@value_rule("Reshape")
def _reshape_value(table: SymbolTable, node: Node) -> Shapes:
    source = node.inputs[0]
    if node.outputs[0].rank not in (0, 1) or not source.dtype.is_integer:
        return None
    if source.value is not None:
        return [source.value]
    array = matrix_of(source)
    return [_numbers(array.ravel())] if array.size <= LARGEST_VALUE else None


def _numbers(array: Iterable[Any]) -> Shape:
    return tuple(number if isinstance(number, Dim) else int(number) for number in array)


@value_rule("ExpandDims", "Squeeze")
def _scalar_to_vector(table: SymbolTable, node: Node) -> Shapes:
    return [node.inputs[0].value] if node.outputs[0].rank in (0, 1) else None


@matrix_rule("Reshape", "ExpandDims")
def _reshape_matrix(node: Node) -> Matrix | None:
    array, shape = matrix_of(node.inputs[0]), shape_of(node.outputs[0])
    sizes = [size for size in shape if isinstance(size, int)]
    if len(sizes) < len(shape) or math.prod(sizes) != array.size:
        return None
    return array.reshape(sizes)


@equal_sizes_rule("Reshape")
def _equal_sizes(node: Node) -> Iterator[tuple[Size, Size]]:
    before, after = node.inputs[0].shape, node.inputs[1].value
    if before is not None and after is not None and -1 not in after:
        yield product(before), product(after)


@rule("Reshape", inputs=(ROWS, WHOLE))
def _reshape(node: Node, states: Sequence[State]) -> Decision | None:
    before, after, state = shape_of(node.inputs[0]), shape_of(node.outputs[0]), sharded(states[0])
    target = reshaped(before, after, state)
    if target is None:
        return None
    return Decision(inputs=(state, Numbers(part_sizes(after, target))), outputs=(target,))


def reshaped(before: Shape, after: Shape, state: Sharded) -> Sharded | None:
    """Return where the samples are after a reshape, or None if no axis holds them by itself.

    ::

        before   P , [outer, B, inner] , Q        product of the axes before and behind: P, Q
        after    P', [outer', B, inner'] , Q'     the same axis if P*outer = P'*outer'
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


@shape_rule("ExpandDims")
def _expand_dims_shape(table: SymbolTable, node: Node) -> Shapes:
    shape = shape_of(node.inputs[0])
    axis = axis_of(node.inputs[1], len(shape) + 1)
    return [(*shape[:axis], 1, *shape[axis:])]


@rule("ExpandDims", inputs=(ROWS, WHOLE))
def _expand_dims(node: Node, states: Sequence[State]) -> Decision | None:
    state, axis = sharded(states[0]), axis_of(node.inputs[1], rank_of(node.inputs[0]) + 1)
    target = state.at(state.axis + (axis <= state.axis))
    return Decision(inputs=(state, REPLICATED), outputs=(target,))


@shape_rule("Squeeze")
def _squeeze_shape(table: SymbolTable, node: Node) -> Shapes:
    shape, gone = shape_of(node.inputs[0]), _squeezed(node)
    return [tuple(size for k, size in enumerate(shape) if k not in gone)] if gone else None


@rule("Squeeze", inputs=ROWS)
def _squeeze(node: Node, states: Sequence[State]) -> Decision | None:
    state, gone = sharded(states[0]), _squeezed(node)
    if not gone or state.axis in gone:
        return None
    axis = state.axis - sum(k < state.axis for k in gone)
    return Decision(inputs=(state,), outputs=(state.at(axis),))


def _squeezed(node: Node) -> set[int]:
    """Return the axes that a node names to vanish; those of size 1 that it does not are not."""
    rank = rank_of(node.inputs[0])
    return {axis % rank for axis in node.ints_attr("squeeze_dims")}


@shape_rule("Transpose", "ConjugateTranspose")
def _transpose_shape(table: SymbolTable, node: Node) -> Shapes:
    shape = shape_of(node.inputs[0])
    return [tuple(shape[k] for k in integers_of(node.inputs[1]))]


@matrix_rule("Transpose")
def _transpose_matrix(node: Node) -> Matrix | None:
    return matrix_of(node.inputs[0]).transpose(integers_of(node.inputs[1]))


@rule("Transpose", "ConjugateTranspose", inputs=(ROWS, WHOLE))
def _transpose(node: Node, states: Sequence[State]) -> Decision | None:
    order, state = numbers_of(node.inputs[1]), sharded(states[0])
    if state.axis not in order:
        return None
    target = state.at(order.index(state.axis))
    return Decision(inputs=(state, REPLICATED), outputs=(target,))


@partial_rule("Reshape", "ExpandDims", "Transpose", inputs=(PARTIALS, WHOLE))
@partial_rule("Squeeze", inputs=PARTIALS)
def _view_of_partial(node: Node, states: Sequence[State]) -> Decision | None:
    if isinstance(states[0], Partial):
        return Decision(inputs=tuple(states), outputs=(states[0],))
    return None


traits("Reshape ExpandDims Squeeze", VIEW | FREE | TOTAL | Trait.RESHAPES)
traits("Transpose", FREE | TOTAL)
index_inputs("ExpandDims Reshape Squeeze Transpose", slice(1))
