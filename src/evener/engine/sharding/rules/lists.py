"""Tensor lists: what loops collect, and what their gradients take from.

A list is seen as the tensor that stacking it gives: elements that are sharded along axis 0 make a
list that is sharded along axis 1. A list without elements yet becomes what is written to it.

A list that is sharded along axis 0 has the rows of a batch as its elements: every part has a list
of its own rows. Only loops over rows read and write it, see `row_loops`; elsewhere it is joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

from evener.graph.dims import has_batch, symbols_of
from evener.graph.nodes import Node, Tensor
from evener.ops.builder import Builder
from evener.ops.decision import ROWS, WHOLE, Decision, rule
from evener.ops.states import (
    REPLICATED,
    UNSET,
    Numbers,
    Sharded,
    State,
    Unset,
    is_shardable,
)


def element_shape(tensor: Tensor) -> Numbers | State:
    """Return how a part needs an ``element_shape``: sizes that count samples stay open."""
    if tensor.value is None or tensor.rank == 0:
        return REPLICATED
    if not any(has_batch(size) for size in tensor.value):
        return REPLICATED
    return Numbers(tuple(-1 if has_batch(size) else size for size in tensor.value))


def as_list(item: Sharded) -> Sharded:
    """Return the state of a list of such elements."""
    return item.at(item.axis + 1)


def as_item(state: Sharded) -> Sharded:
    """Return the state of the elements of such a list."""
    return state.at(state.axis - 1)


def _has_rows_inside(state: State) -> TypeGuard[Sharded]:
    """Return whether every element of a list has rows of samples, and is not one itself."""
    return isinstance(state, Sharded) and state.axis > 0


@rule("EmptyTensorList", "TensorListReserve", inputs=WHOLE)
def _new_list(node: Node, states: Sequence[State]) -> Decision | None:
    return Decision(inputs=(element_shape(node.inputs[0]), REPLICATED), outputs=(UNSET,))


@rule("TensorListFromTensor", inputs=(ROWS, WHOLE))
def _list_of_rows(node: Node, states: Sequence[State]) -> Decision | None:
    state = states[0]
    if not isinstance(state, Sharded) or (state.axis == 0 and (state.outer != 1 or node.xla)):
        return None
    return Decision(inputs=(state, element_shape(node.inputs[1])), outputs=(state,))


@rule("TensorListPushBack", inputs=ROWS)
@rule("TensorListSetItem", inputs=(ROWS, WHOLE, ROWS))
def _write(node: Node, states: Sequence[State]) -> Decision | None:
    known, item, shape = states[0], states[-1], node.inputs[-1].shape
    index = (REPLICATED,) * (len(states) - 2)
    if isinstance(known, Sharded):
        wanted = as_item(known)
        if wanted.axis < 0 or not is_shardable(shape, wanted):
            return None
        return Decision(inputs=(known, *index, wanted), outputs=(known,))
    if isinstance(item, Sharded) and isinstance(known, Unset):
        return Decision(inputs=(UNSET, *index, item), outputs=(as_list(item),))
    if isinstance(known, Unset) and item == REPLICATED:
        return Decision(inputs=(UNSET, *index, REPLICATED), outputs=(REPLICATED,))
    return None


@rule("TensorListGetItem", inputs=(ROWS, WHOLE, WHOLE))
def _read(node: Node, states: Sequence[State]) -> Decision | None:
    if not _has_rows_inside(states[0]):
        return None
    shape = element_shape(node.inputs[2])
    return Decision(inputs=(states[0], REPLICATED, shape), outputs=(as_item(states[0]),))


@rule("TensorListPopBack", inputs=(ROWS, WHOLE))
def _pop(node: Node, states: Sequence[State]) -> Decision | None:
    if not _has_rows_inside(states[0]):
        return None
    shape = element_shape(node.inputs[1])
    return Decision(inputs=(states[0], shape), outputs=(states[0], as_item(states[0])))


@rule("TensorListStack", inputs=(ROWS, WHOLE))
def _stack(node: Node, states: Sequence[State]) -> Decision | None:
    if not isinstance(states[0], Sharded):
        return None
    if states[0].axis == 0:
        return _stack_of_rows(node, states[0])
    shape = element_shape(node.inputs[1])
    return Decision(inputs=(states[0], shape), outputs=(states[0],))


def _stack_of_rows(node: Node, state: Sharded) -> Decision | None:
    """Stack rows of the part; without any, only a known shape of a row can say what has none."""
    given, result = node.inputs[0].shape, node.outputs[0].shape
    if not given or result is None or node.xla:
        return None
    asked = node.inputs[1].value if node.inputs[1].rank == 1 else None
    known = {name for size in (*given, *(asked or ())) for name in symbols_of(size)}
    row = result[1:]
    if not all(symbols_of(size) <= known for size in row):
        return None

    def lower(builder: Builder, node: Node, inputs: Sequence[str]) -> Sequence[str]:
        shape = builder.vector(row, node.inputs[1].dtype)
        attrs = {"element_dtype": node.outputs[0].dtype, "num_elements": -1}
        return builder.op("TensorListStack", [inputs[0], shape], attrs)

    return Decision(
        inputs=(state, REPLICATED), outputs=(state,), lower=lower, lower_rows=state.rows
    )


@rule("TensorListResize", inputs=(ROWS, WHOLE))
def _resize(node: Node, states: Sequence[State]) -> Decision | None:
    if not isinstance(states[0], Unset) and not _has_rows_inside(states[0]):
        return None
    return Decision(inputs=(states[0], REPLICATED), outputs=(states[0],))


@rule("TensorListLength", inputs=ROWS)
def _length(node: Node, states: Sequence[State]) -> Decision | None:
    if not isinstance(states[0], Unset) and not _has_rows_inside(states[0]):
        return None
    return Decision(inputs=(states[0],), outputs=(REPLICATED,))
