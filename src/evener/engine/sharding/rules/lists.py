"""Tensor lists: what loops collect, and what their gradients take from.

A list is seen as the tensor that stacking it gives: elements that are sharded along axis 0 make a
list that is sharded along axis 1. A list without elements yet becomes what is written to it.
"""

from __future__ import annotations

from collections.abc import Sequence

from evener.engine.sharding.decision import ROWS, WHOLE, Decision, rule
from evener.engine.sharding.states import (
    REPLICATED,
    UNSET,
    Numbers,
    Sharded,
    State,
    Unset,
    is_shardable,
)
from evener.engine.trace.dims import has_batch
from evener.engine.trace.graph import Node, Tensor


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


@rule("EmptyTensorList", "TensorListReserve", inputs=WHOLE)
def _new_list(node: Node, states: Sequence[State]) -> Decision | None:
    return Decision(inputs=(element_shape(node.inputs[0]), REPLICATED), outputs=(UNSET,))


@rule("TensorListFromTensor", inputs=(ROWS, WHOLE))
def _list_of_rows(node: Node, states: Sequence[State]) -> Decision | None:
    state = states[0]
    if not isinstance(state, Sharded) or state.axis == 0:
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
    if not isinstance(states[0], Sharded):
        return None
    shape = element_shape(node.inputs[2])
    return Decision(inputs=(states[0], REPLICATED, shape), outputs=(as_item(states[0]),))


@rule("TensorListPopBack", inputs=(ROWS, WHOLE))
def _pop(node: Node, states: Sequence[State]) -> Decision | None:
    if not isinstance(states[0], Sharded):
        return None
    shape = element_shape(node.inputs[1])
    return Decision(inputs=(states[0], shape), outputs=(states[0], as_item(states[0])))


@rule("TensorListStack", inputs=(ROWS, WHOLE))
def _stack(node: Node, states: Sequence[State]) -> Decision | None:
    if not isinstance(states[0], Sharded):
        return None
    shape = element_shape(node.inputs[1])
    return Decision(inputs=(states[0], shape), outputs=(states[0],))


@rule("TensorListResize", inputs=(ROWS, WHOLE))
def _resize(node: Node, states: Sequence[State]) -> Decision | None:
    if not isinstance(states[0], Sharded | Unset):
        return None
    return Decision(inputs=(states[0], REPLICATED), outputs=(states[0],))


@rule("TensorListLength", inputs=ROWS)
def _length(node: Node, states: Sequence[State]) -> Decision | None:
    if not isinstance(states[0], Sharded | Unset):
        return None
    return Decision(inputs=(states[0],), outputs=(REPLICATED,))
