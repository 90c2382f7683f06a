"""Table of operations: all that is known of each type, declared in the file of its family.

    @shape_rule("Reshape")
    def _reshape_shape(table, node): ...

    @rule("Reshape", inputs=(ROWS, WHOLE))
    def _reshape(node, states): ...

    shape_rule.table({"ZerosLike OnesLike": like_input(0)})

    traits("Reshape ExpandDims Squeeze", Trait.VIEW | Trait.FREE)
A rule may only say what is certain. Without one TensorFlow's static shape is all that is known, and
the operation is computed once, of the rows of all parts. Below the table: numbers that a program
makes of sizes, and rules that several families share.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np

from evener._tf_private import graphs
from evener.graph.dims import Size, symbols_of
from evener.graph.nodes import Node, SymbolTable, Tensor, constant_array
from evener.graph.ops.states import (
    FIRST,
    REPLICATED,
    Decide,
    Decision,
    Sharded,
    ShardingRule,
    State,
    Takes,
    UnknownError,
    by_rows,
    integer,
    is_first,
    is_shardable,
    known,
    rank_of,
    require,
    shape_of,
    sharded,
)

Shape: TypeAlias = tuple[Size, ...]
# For every output a shape, or the numbers in it; None where nothing is known.
Shapes: TypeAlias = "Sequence[Shape | None] | None"
Matrix: TypeAlias = "np.ndarray[Any, Any]"
InferRule: TypeAlias = Callable[[SymbolTable, Node], Shapes]
MatrixRule: TypeAlias = "Callable[[Node], Matrix | None]"
TruthRule: TypeAlias = "Callable[[Node], tuple[bool, ...] | None]"
# For each axis of a result that of the first input, whose rank is given; None for a new one.
AxesRule: TypeAlias = "Callable[[Node, int], Sequence[Size | None]]"
CountRule: TypeAlias = Callable[[Node, int], float]
PairsRule: TypeAlias = Callable[[Node], Iterator[tuple[Size, Size]]]
IndexLimit: TypeAlias = "tuple[Tensor, Size | None]"
IndexRule: TypeAlias = Callable[[Node, Mapping[Tensor, tuple[int, ...]]], IndexLimit]


class Trait(enum.Flag):
    NONE = 0
    VIEW = enum.auto()  # The result is the memory of the first input
    COPY = enum.auto()  # The result is the first input, element by element
    IN_PLACE = enum.auto()  # The result takes the memory of an input that nothing else reads
    FREE = enum.auto()  # It computes nothing: it makes, moves or views what is there
    TOTAL = enum.auto()  # It cannot fail, whatever the numbers are, once its shapes are known
    TOTAL_ON_FLOATS = enum.auto()  # The same, for floating-point numbers alone
    DIVISION = enum.auto()  # It fails on integers if the second one is 0
    # An element of the result depends on the same one of the operands, which are broadcast.
    EVERY_ELEMENT = enum.auto()
    EQUAL_ELEMENTS = enum.auto()  # All elements of the result are one number
    # Operands of any shapes are broadcast; those of other operations have one shape.
    BROADCASTS = enum.auto()
    RESHAPES = enum.auto()  # The result has the elements of its first input, in their order
    SIZED_BY_DATA = enum.auto()  # The sizes of the result are known when the data is there
    COSTLY = enum.auto()  # What takes most of the time of a model: worth to be split over the parts
    OF_LAYERS = enum.auto()  # Layers that compute something have it, unlike containers of layers
    OTHER_ROWS = enum.auto()  # It makes of some rows another number of rows


@dataclass(slots=True)
class KnownOperation:
    # Finds the symbolic shapes of the outputs, where TensorFlow knows none
    shape: InferRule | None = None
    value: InferRule | None = None  # Finds the numbers in small integer outputs
    # Reads the numbers in small integer outputs of a higher rank than 1
    matrix: MatrixRule | None = None
    truth: TruthRule | None = None  # Finds the answers of conditions on sizes, one for each element
    # Says what the parts compute of inputs that are replicated or sharded
    rule: ShardingRule | None = None
    # The same for inputs of which some are partial; else these are combined
    partial_rule: ShardingRule | None = None
    # The same in bodies of loops and conditions, where nothing can be combined
    inside_rule: ShardingRule | None = None
    # Counts its floating-point operations, for a number of samples; without it, one for each
    # element of the results
    flops: CountRule | None = None
    # Yields sizes of the inputs that its kernel needs to be equal
    equal_sizes: PairsRule | None = None
    index_limit: IndexRule | None = None  # Finds an input with indices, and what they are below
    index_inputs: slice | None = None  # The inputs whose integers are below a limit of the result
    traits: Trait = Trait.NONE  # Facts that hold whatever the inputs are


OPERATIONS: dict[str, KnownOperation] = {}  # By type of operation

_UNKNOWN = KnownOperation()
_Rule = TypeVar("_Rule", bound=Callable[..., Any])


def operation(name: str) -> KnownOperation:
    return OPERATIONS.get(name, _UNKNOWN)


def has_trait(node: Node, trait: Trait) -> bool:
    return bool(operation(node.op).traits & trait)


class _Field(Generic[_Rule]):
    """Decorator that sets one field of the entries of some types of operations."""

    def __init__(self, name: str, certain: Callable[[_Rule], _Rule] = lambda rule: rule) -> None:
        self._name, self._certain = name, certain

    def __call__(self, *ops: str) -> Callable[[_Rule], _Rule]:
        def register(rule: _Rule) -> _Rule:
            for op in ops:
                _set(op, self._name, self._certain(rule))
            return rule

        return register

    def table(self, rules: Mapping[str, _Rule]) -> None:
        """Enter rules by the names of their operations."""
        for ops, rule in rules.items():
            self(*ops.split())(rule)


def or_none(rule: _Rule) -> _Rule:
    """Let a rule return None where it asks for something that is not known."""

    @functools.wraps(rule)
    def asked(*arguments: Any) -> Any:
        try:
            return rule(*arguments)
        except UnknownError:
            return None

    return asked  # pyright: ignore[reportReturnType]


shape_rule: _Field[InferRule] = _Field("shape", or_none)
value_rule: _Field[InferRule] = _Field("value", or_none)
matrix_rule: _Field[MatrixRule] = _Field("matrix", or_none)
truth_rule: _Field[TruthRule] = _Field("truth", or_none)
flops_rule: _Field[CountRule] = _Field("flops")
equal_sizes_rule: _Field[PairsRule] = _Field("equal_sizes")
index_limit_rule: _Field[IndexRule] = _Field("index_limit")


def traits(ops: str, trait: Trait) -> None:
    for op in ops.split():
        OPERATIONS.setdefault(op, KnownOperation()).traits |= trait


def index_inputs(ops: str, inputs: slice) -> None:
    """Say which inputs of types of operations have integers below a limit of their result."""
    for op in ops.split():
        _set(op, "index_inputs", inputs)


def _set(op: str, name: str, value: object) -> None:
    entry = OPERATIONS.setdefault(op, KnownOperation())
    assert not getattr(entry, name), f"{op} has two entries: {name}"
    setattr(entry, name, value)


def _sharding(
    field: str, *ops: str, inputs: Takes | Sequence[Takes], inexact: bool = False
) -> Callable[[Decide], Decide]:
    """Enter what the parts compute, with the states that each input takes; see `ShardingRule`."""

    def register(function: Decide) -> Decide:
        for op in ops:
            names = graphs.input_names(op)
            takes = (inputs,) * len(names) if isinstance(inputs, Takes) else tuple(inputs)
            assert len(takes) == len(names), f"{op} has the inputs {names}, not {takes}"
            _set(op, field, ShardingRule(decide=function, inputs=takes, inexact=inexact))
        return function

    return register


rule = functools.partial(_sharding, "rule")
partial_rule = functools.partial(_sharding, "partial_rule")
inside_rule = functools.partial(_sharding, "inside_rule")


LARGEST_VALUE = 64  # Integer tensors with more elements have no symbolic value
LARGEST = 256  # Matrices with more numbers are not read


def matrix_of(tensor: Tensor) -> Matrix:
    constant = constant_array(tensor)
    if constant is not None:
        require(constant.size <= LARGEST)
        return constant.astype(object)
    if tensor.rank in (0, 1) and tensor.value is not None:
        return matrix_of_numbers(tensor.value, () if tensor.rank == 0 else (len(tensor.value),))
    require(tensor.dtype.is_integer)
    return known(known(operation(tensor.node.op).matrix)(tensor.node))


def matrix_of_numbers(numbers: Sequence[Size], shape: Sequence[int]) -> Matrix:
    matrix = np.empty(len(numbers), dtype=object)
    matrix[:] = list(numbers)
    return matrix.reshape(tuple(shape))


def truths_of(tensor: Tensor) -> tuple[bool, ...] | None:
    """Return which of some conditions hold, or None if it is not known before the step runs."""
    rule = operation(tensor.node.op).truth
    return None if rule is None else rule(tensor.node)


def truth_of(tensor: Tensor) -> bool | None:
    truths = truths_of(tensor)
    return truths[0] if truths and len(truths) == 1 else None


def like_input(index: int) -> InferRule:
    return lambda table, node: [node.inputs[index].shape] * len(node.outputs)


def given_by_input(index: int) -> InferRule:
    return lambda table, node: [node.inputs[index].value]


def batch_first(table: SymbolTable, node: Node) -> Shapes:
    """Return shapes whose first axis is that of the input; TensorFlow knows the others."""
    shape = node.inputs[0].shape
    return [
        behind(table, tensor, shape[:1]) if shape and static and static[0] is None else None
        for tensor, static in zip(node.outputs, node.static_shapes, strict=True)
    ]


def behind_images(table: SymbolTable, node: Node) -> Shapes:
    """Return the first axis of the first input; TensorFlow knows the others."""
    front = shape_of(node.inputs[0])[:1]
    return [behind(table, tensor, front) for tensor in node.outputs] if front else None


def behind(table: SymbolTable, tensor: Tensor, front: Shape) -> Shape | None:
    """Return a shape that begins with the given sizes; TensorFlow knows the others."""
    static = tensor.node.static_shapes[tensor.index]
    if static is None or len(static) < len(front):
        return None
    rest = (
        table.new_symbol(tensor, axis) if size is None else size
        for axis, size in enumerate(static)
        if axis >= len(front)
    )
    return (*front, *rest)


def broadcast(shapes: Sequence[Shape | None]) -> Shape | None:
    """Return the shape of an elementwise result, None if it is not certain."""
    if any(shape is None for shape in shapes):
        return None
    known: list[Shape] = [shape for shape in shapes if shape is not None]
    rank = max(len(shape) for shape in known)
    result: list[Size] = []
    for axis in range(-rank, 0):
        sizes = {shape[axis] for shape in known if len(shape) >= -axis} - {1}
        if len(sizes) > 1:
            # One of two sizes is 1, or they are equal: not known before the step runs, unless
            # one of them is a number.
            numbers = {size for size in sizes if isinstance(size, int)}
            if len(numbers) != 1:
                return None
            sizes = numbers
        result.append(sizes.pop() if sizes else 1)
    return tuple(result)


def reduced_axes(shape: Shape, axes: Shape | None) -> set[int] | None:
    if axes is None or not all(isinstance(axis, int) for axis in axes):
        return None
    return {axis % len(shape) for axis in axes if isinstance(axis, int)} if shape else set()


def with_axis(rank: int, axis: int) -> list[int | None]:
    """Return the axes of a tensor of some rank, and None for a new one."""
    axis %= rank + 1
    return [*range(axis), None, *range(axis, rank)]


def without_axes(rank: int, gone: Container[int]) -> list[int]:
    return [axis for axis in range(rank) if axis not in gone]


def shape_by_axes(axes: AxesRule, new: Callable[[Node], Size] = lambda node: 1) -> InferRule:
    """Return the rule of results with axes of the first input, and a size for new ones."""

    def find(table: SymbolTable, node: Node) -> Shapes:
        shape = shape_of(node.inputs[0])
        sizes = [new(node) if k is None else shape[integer(k)] for k in axes(node, len(shape))]
        return [tuple(sizes)] * len(node.outputs)

    return find


def rows_by_axes(axes: AxesRule) -> Decide:
    """Return the rule of results with axes of the first input: rows stay with their axis."""

    def decide(node: Node, states: Sequence[State]) -> Decision:
        state, order = sharded(states[0]), axes(node, rank_of(node.inputs[0]))
        require(state.axis in order)
        return by_rows(node, state, state.at(order.index(state.axis)))

    return decide


def beside(node: Node, states: Sequence[State], axes: Container[int]) -> Decision:
    """Return the decision of an operation that works along some axes of its first input.

    The rows along other axes are those of the results.
    """
    state = sharded(states[0])
    require(state.axis not in axes)
    return by_rows(node, state, state)


def beside_last(count: int) -> Decide:
    """Return the rule of operations that work along the last axes of their first input."""
    return lambda node, states: beside(node, states, last_axes(node.inputs[0], count))


def last_axes(tensor: Tensor, count: int) -> range:
    rank = rank_of(tensor)
    return range(rank - count, rank)


def without_minus_one(
    table: SymbolTable, result: Tensor, wanted: Shape, before: Shape | None
) -> Shape:
    """Return sizes with symbols of the result for numbers that may be -1, which means the rest.

    A number that is computed from data may be -1, unless an axis has that size already.
    """
    sizes = symbols_of(*(before or ()))
    return tuple(
        size
        if symbols_of(size) <= sizes or table.is_made_of_sizes(size)
        else table.new_symbol(result, axis)
        for axis, size in enumerate(wanted)
    )


def first_batch_axis(shape: Shape) -> Sharded | None:
    states = map(Sharded, range(len(shape)))
    return next((state for state in states if is_shardable(shape, state)), None)


def all_first(tensors: Sequence[Tensor]) -> bool:
    return all(is_shardable(tensor.shape, FIRST) for tensor in tensors)


def per_image_of(*of_images: int) -> Decide:
    """Return the rule of operations on the images of some inputs, by their indices."""
    return lambda node, states: per_image(node, states, of_images)


def per_image(node: Node, states: Sequence[State], of_images: Collection[int]) -> Decision:
    """Return the decision of an operation on rows of some inputs, and other inputs as a whole."""
    require(any(is_first(states[k]) for k in of_images))
    require(all_first([node.inputs[k] for k in of_images]))
    return Decision(
        inputs=tuple(FIRST if k in of_images else REPLICATED for k in range(len(states))),
        outputs=(FIRST,) * len(node.outputs),
        needs_samples=True,
    )


def alike(node: Node) -> Iterator[tuple[Size, Size]]:
    known = [tensor.shape for tensor in node.inputs if tensor.shape is not None]
    for shape in known[1:]:
        yield from zip(reversed(known[0]), reversed(shape), strict=False)


def leading(node: Node) -> Iterator[tuple[Size, Size]]:
    """Yield the sizes of the second input, which are the first ones of the first input."""
    first, second = (tensor.shape for tensor in node.inputs[:2])
    yield from zip(first or (), second or (), strict=False)
