"""Tensor lists: what loops collect, and what their gradients take from.

A list is seen as the tensor that stacking it gives: elements that are sharded along axis 0 make a
list that is sharded along axis 1. A list without elements yet becomes what is written to it.

A list that is sharded along axis 0 has the rows of a batch as its elements: every part has a list
of its own rows. Only loops over rows read and write it; elsewhere it is joined.
"""

from __future__ import annotations

from collections.abc import Sequence

from evener.graph.dims import BATCH, Dim, Size, has_batch, symbols_of
from evener.graph.functions import FunctionBuilder
from evener.graph.nodes import Node, SymbolTable, Tensor, constant_array
from evener.graph.ops.registry import (
    Shape,
    Shapes,
    Trait,
    has_trait,
    rule,
    shape_rule,
    traits,
    value_rule,
)
from evener.graph.ops.states import (
    REPLICATED,
    ROWS,
    UNSET,
    WHOLE,
    Decision,
    Numbers,
    Sharded,
    State,
    Unset,
    is_shardable,
    known,
    require,
    shape_of,
    sharded,
)

# The shape of a tensor list whose elements have different shapes; other lists have one axis more
# than their elements.
UNLIKE_ELEMENTS: Shape = ()


def any_length(shape: Shape | None) -> Shape | None:
    return (1, *shape[1:]) if shape else shape


def list_length(tensor: Tensor) -> Size | None:
    """Return how many elements a tensor list has; None if that is not known, or is a number."""
    source = origin(tensor).node
    if source.op == "TensorListReserve":
        value = source.inputs[1].value
        return value[0] if value and isinstance(value[0], Dim) else None
    return tensor.shape[0] if tensor.shape and isinstance(tensor.shape[0], Dim) else None


def origin(tensor: Tensor) -> Tensor:
    while has_trait(tensor.node, Trait.COPY):
        tensor = tensor.node.inputs[0]
    return tensor


def _asked_shape(table: SymbolTable, tensor: Tensor) -> Shape | None:
    """Return the shape that an ``element_shape`` argument asks for, if it is complete.

    Where a step is traced for one size of batches, it is a constant with that size in it. What is
    as large, or a multiple, may count samples, and is left open in the parts: nothing is lost by
    that. Of the multiples, most are numbers of features.
    """
    value, array = tensor.value, constant_array(tensor)
    if table.num_samples is not None and array is not None and tensor.rank == 1:
        sizes, count = [int(size) for size in array], table.num_samples
        tensor.value = tuple(
            BATCH * (size // count) if size > 0 and size % count == 0 else size for size in sizes
        )
        value = tuple(BATCH if size == count else size for size in sizes)
    if tensor.rank == 0 or value is None or any(size == -1 for size in value):
        return None
    return value


shape_rule.table(
    {
        "TensorListResize": lambda table, node: [any_length(node.inputs[0].shape)],
        "TensorListGetItem": lambda table, node: [_taken_out(table, node, node.inputs[2])],
        "TensorListPopBack": lambda table, node: [
            any_length(node.inputs[0].shape),
            _taken_out(table, node, node.inputs[1], index=1),
        ],
    }
)
value_rule.table(
    {
        "TensorListPopBack": lambda table, node: [node.inputs[0].value] * 2,
        "TensorListElementShape": lambda table, node: [shape_of(node.inputs[0])[1:]],
        "TensorListLength": lambda table, node: [(known(list_length(node.inputs[0])),)],
    }
)


@shape_rule("EmptyTensorList", "TensorListReserve")
def _new_list_shape(table: SymbolTable, node: Node) -> Shapes:
    """Nothing is known of a list before the first element is in it."""
    _asked_shape(table, node.inputs[0])
    return [None]


@shape_rule("TensorListFromTensor")
def _list_of_rows_shape(table: SymbolTable, node: Node) -> Shapes:
    shape = node.inputs[0].shape
    _asked_shape(table, node.inputs[1])
    if shape is None:
        return [None]
    return [shape if isinstance(shape[0], Dim) else any_length(shape)]


def _taken_out(
    table: SymbolTable,
    node: Node,
    element_shape: Tensor,
    *,
    index: int = 0,
    is_stacked: bool = False,
) -> Shape | None:
    """Return the shape of an element; what only the list knows of it gets a symbol there."""
    known, asked = node.inputs[0].shape, _asked_shape(table, element_shape)
    if known is None or known == UNLIKE_ELEMENTS:
        return asked
    taken = node.outputs[index]
    return tuple(
        table.new_symbol(taken, axis) if table.is_of_list(size) else size
        for axis, size in enumerate(known[1:], start=int(is_stacked))
    )


@shape_rule("TensorListPushBack", "TensorListSetItem")
def _write_shape(table: SymbolTable, node: Node) -> Shapes:
    """The elements of a list have one shape, or nothing is known of them."""
    known, item = node.inputs[0].shape, node.inputs[-1].shape
    if item is None or (known is not None and known[1:] != item) or known == UNLIKE_ELEMENTS:
        return [UNLIKE_ELEMENTS]
    keeps = node.op == "TensorListSetItem" and not node.bool_attr("resize_if_index_out_of_bounds")
    length = _known_length(table, node.inputs[0]) if keeps else None
    return [(length or 1, *item)]


def _known_length(table: SymbolTable, tensor: Tensor) -> Size | None:
    """Return the length of a list; of a number from data only the list itself is a size."""
    length = list_length(tensor)
    return length if length is not None and table.is_made_of_sizes(length) else None


@shape_rule("TensorListStack")
def _stacked(table: SymbolTable, node: Node) -> Shapes:
    static = node.static_shapes[0]
    element = known(_taken_out(table, node, node.inputs[1], is_stacked=True))
    length = static[0] if static else None
    if length is None:
        length = _known_length(table, node.inputs[0]) or table.new_symbol(node.outputs[0], 0)
    return [(length, *element)]


@value_rule("TensorListPushBack", "TensorListSetItem")
def _into_list(table: SymbolTable, node: Node) -> Shapes:
    """A list of equal numbers, such as the shapes that the gradient of a loop asks for."""
    known, item = node.inputs[0], node.inputs[-1]
    is_new = known.value is None and known.shape is None
    return [item.value if is_new or known.value == item.value else None]


def _element_shape(tensor: Tensor) -> Numbers | State:
    """Return how a part needs an ``element_shape``: sizes that count samples stay open."""
    value = tensor.value or ()
    if tensor.rank == 0 or not any(map(has_batch, value)):
        return REPLICATED
    return Numbers(tuple(-1 if has_batch(size) else size for size in value))


def _of_elements(state: State) -> Sharded:
    """Return the state of the elements of a list, each with rows of samples and not one itself."""
    lists = sharded(state)
    require(lists.axis > 0)
    return lists.at(lists.axis - 1)


@rule("TensorListFromTensor", inputs=(ROWS, WHOLE))
def _list_of_rows(node: Node, states: Sequence[State]) -> Decision | None:
    state = sharded(states[0])
    require(state.axis != 0 or (state.outer == 1 and (not node.xla)))
    return Decision(inputs=(state, _element_shape(node.inputs[1])), outputs=(state,))


@rule("TensorListPushBack", inputs=ROWS)
@rule("TensorListSetItem", inputs=(ROWS, WHOLE, ROWS))
def _write(node: Node, states: Sequence[State]) -> Decision | None:
    lists, item, shape = states[0], states[-1], node.inputs[-1].shape
    index = (REPLICATED,) * (len(states) - 2)
    if isinstance(lists, Sharded):
        wanted = _of_elements(lists)
        require(is_shardable(shape, wanted))
        return Decision(inputs=(lists, *index, wanted), outputs=(lists,))
    require(isinstance(lists, Unset) and (item == REPLICATED or isinstance(item, Sharded)))
    written = item.at(item.axis + 1) if isinstance(item, Sharded) else REPLICATED
    return Decision(inputs=(UNSET, *index, item), outputs=(written,))


@rule("TensorListGetItem", inputs=(ROWS, WHOLE, WHOLE))
@rule("TensorListPopBack", inputs=(ROWS, WHOLE))
def _read(node: Node, states: Sequence[State]) -> Decision | None:
    element, shape = _of_elements(states[0]), _element_shape(node.inputs[-1])
    if node.op == "TensorListPopBack":
        return Decision(inputs=(states[0], shape), outputs=(states[0], element))
    return Decision(inputs=(states[0], REPLICATED, shape), outputs=(element,))


@rule("TensorListStack", inputs=(ROWS, WHOLE))
def _stack(node: Node, states: Sequence[State]) -> Decision | None:
    state = sharded(states[0])
    if state.axis > 0:
        return Decision(inputs=(state, _element_shape(node.inputs[1])), outputs=(state,))
    # Rows of the part: without any, only a known shape of a row can say what has none.
    lists, row = shape_of(node.inputs[0]), shape_of(node.outputs[0])[1:]
    asked = node.inputs[1].value if node.inputs[1].rank == 1 else None
    names = symbols_of(*lists, *(asked or ()))
    require(len(lists) > 0 and not node.xla and all(symbols_of(size) <= names for size in row))

    def lower(builder: FunctionBuilder, node: Node, inputs: Sequence[str]) -> Sequence[str]:
        shape = builder.vector(row, node.inputs[1].dtype)
        attrs = {"element_dtype": node.outputs[0].dtype, "num_elements": -1}
        return builder.op("TensorListStack", [inputs[0], shape], attrs)

    return Decision(
        inputs=(state, REPLICATED), outputs=(state,), lower=lower, lower_rows=state.rows
    )


@rule("TensorListResize", inputs=(ROWS, WHOLE))
@rule("TensorListLength", inputs=ROWS)
def _length(node: Node, states: Sequence[State]) -> Decision | None:
    """The parts have as many elements as the whole, unless these are rows."""
    require(isinstance(states[0], Unset) or sharded(states[0]).axis > 0)
    is_resized = node.op == "TensorListResize"
    others = [REPLICATED] * (len(states) - 1)
    return Decision(inputs=(states[0], *others), outputs=(states[0] if is_resized else REPLICATED,))


rule("EmptyTensorList", "TensorListReserve", inputs=WHOLE)(
    lambda node, states: Decision(
        inputs=(_element_shape(node.inputs[0]), REPLICATED), outputs=(UNSET,)
    )
)
traits("TensorListFromTensor", Trait.COSTLY)
