"""Table of operations: all that is known of each type, declared in the file of its family.

    @shape_rule("Reshape")
    def _reshape_shape(table, node): ...

    @rule("Reshape", inputs=(ROWS, WHOLE))
    def _reshape(node, states): ...

    traits("Reshape ExpandDims Squeeze", VIEW | FREE)

A rule may only say what is certain. Without one TensorFlow's static shape is all that is known, and
the operation is computed once, of the rows of all parts.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np

from evener._tf_private import operation_types
from evener.graph.dims import Size
from evener.graph.nodes import Node, Tensor
from evener.graph.symbols import SymbolTable
from evener.ops.decision import Decide, Rule, Takes
from evener.ops.known import UnknownError

Shape: TypeAlias = tuple[Size, ...]
Shapes: TypeAlias = "Sequence[Shape | None] | None"
"""For every output a shape, or the numbers in it; None where nothing is known."""
Matrix: TypeAlias = "np.ndarray[Any, Any]"
InferRule: TypeAlias = Callable[[SymbolTable, Node], Shapes]
MatrixRule: TypeAlias = "Callable[[Node], Matrix | None]"
TruthRule: TypeAlias = "Callable[[Node], tuple[bool, ...] | None]"
CountRule: TypeAlias = Callable[[Node, int], float]
PairsRule: TypeAlias = Callable[[Node], Iterator[tuple[Size, Size]]]
IndexLimit: TypeAlias = "tuple[Tensor, Size | None]"
IndexRule: TypeAlias = Callable[[Node, Mapping[Tensor, tuple[int, ...]]], IndexLimit]


class Trait(enum.Flag):
    """Facts that hold for an operation, whatever its inputs are."""

    NONE = 0
    VIEW = enum.auto()
    """The result is the memory of the first input."""
    COPY = enum.auto()
    """The result is the first input, element by element."""
    IN_PLACE = enum.auto()
    """The result takes the memory of an input that nothing else reads."""
    FREE = enum.auto()
    """It computes nothing: it makes, moves or views what is there."""
    TOTAL = enum.auto()
    """It cannot fail, whatever the numbers are, once its shapes are known."""
    TOTAL_ON_FLOATS = enum.auto()
    """The same, for floating-point numbers alone."""
    DIVISION = enum.auto()
    """It fails on integers if the second one is 0."""
    EVERY_ELEMENT = enum.auto()
    """An element of the result depends on the same one of the operands, which are broadcast."""
    EQUAL_ELEMENTS = enum.auto()
    """All elements of the result are one number."""
    BROADCASTS = enum.auto()
    """Operands of any shapes are broadcast; those of other operations have one shape."""
    RESHAPES = enum.auto()
    """The result has the elements of its first input, in their order."""
    SIZED_BY_DATA = enum.auto()
    """The sizes of the result are known when the data is there."""
    COSTLY = enum.auto()
    """What takes most of the time of a model: worth to be split over the parts."""
    OF_LAYERS = enum.auto()
    """Layers that compute something have it, unlike containers of layers."""
    OTHER_ROWS = enum.auto()
    """It makes of some rows another number of rows."""


VIEW, COPY, IN_PLACE, FREE = Trait.VIEW, Trait.COPY, Trait.IN_PLACE, Trait.FREE
TOTAL, EVERY_ELEMENT = Trait.TOTAL, Trait.EVERY_ELEMENT


@dataclass(slots=True)
class Operation:
    """Everything that is known of one type of operation.

    Attributes:
        shape: Finds the symbolic shapes of the outputs, where TensorFlow knows none.
        value: Finds the numbers in small integer outputs.
        matrix: Reads the numbers in small integer outputs of a higher rank than 1.
        truth: Finds the answers of conditions on sizes, one for each element.
        rule: Says what the parts compute of inputs that are replicated or sharded.
        partial_rule: The same for inputs of which some are partial; else these are combined.
        inside_rule: The same in bodies of loops and conditions, where nothing can be combined.
        flops: Counts its floating-point operations, for a number of samples; without it, one for
            each element of the results.
        equal_sizes: Yields sizes of the inputs that its kernel needs to be equal.
        index_limit: Finds an input with indices, and what they are below.
        index_inputs: The inputs whose integers are below a limit of the result.
        traits: Facts that hold whatever the inputs are.
    """

    shape: InferRule | None = None
    value: InferRule | None = None
    matrix: MatrixRule | None = None
    truth: TruthRule | None = None
    rule: Rule | None = None
    partial_rule: Rule | None = None
    inside_rule: Rule | None = None
    flops: CountRule | None = None
    equal_sizes: PairsRule | None = None
    index_limit: IndexRule | None = None
    index_inputs: slice | None = None
    traits: Trait = Trait.NONE


OPERATIONS: dict[str, Operation] = {}
"""By type of operation."""

_UNKNOWN = Operation()
_Rule = TypeVar("_Rule", bound=Callable[..., Any])


def operation(name: str) -> Operation:
    """Return what is known of a type of operation."""
    return OPERATIONS.get(name, _UNKNOWN)


def has_trait(node: Node, trait: Trait) -> bool:
    """Return whether an operation has one of some traits."""
    return bool(operation(node.op).traits & trait)


class _Field(Generic[_Rule]):
    """Decorator that sets one field of the entries of some types of operations.

    Args:
        name: The field.
        certain: Wraps the rules.
    """

    def __init__(self, name: str, certain: Callable[[_Rule], _Rule] = lambda rule: rule) -> None:
        self._name, self._certain = name, certain

    def __call__(self, *ops: str) -> Callable[[_Rule], _Rule]:
        def register(rule: _Rule) -> _Rule:
            for op in ops:
                _set(op, self._name, self._certain(rule))
            return rule

        return register


def _or_none(rule: _Rule) -> _Rule:
    """Let a rule return None where it asks for something that is not known."""

    @functools.wraps(rule)
    def asked(*arguments: Any) -> Any:
        try:
            return rule(*arguments)
        except UnknownError:
            return None

    return asked  # pyright: ignore[reportReturnType]


shape_rule: _Field[InferRule] = _Field("shape", _or_none)
value_rule: _Field[InferRule] = _Field("value", _or_none)
matrix_rule: _Field[MatrixRule] = _Field("matrix", _or_none)
truth_rule: _Field[TruthRule] = _Field("truth", _or_none)
flops_rule: _Field[CountRule] = _Field("flops")
equal_sizes_rule: _Field[PairsRule] = _Field("equal_sizes")
index_limit_rule: _Field[IndexRule] = _Field("index_limit")


def rule(*ops: str, inputs: Takes | Sequence[Takes]) -> Callable[[Decide], Decide]:
    """Register what the parts compute of types of operations.

    Args:
        *ops: The types.
        inputs: The states that each input takes, in the order of the operation's definition; one
            for all inputs of all types.
    """
    return _sharding("rule", ops, inputs)


def partial_rule(
    *ops: str, inputs: Takes | Sequence[Takes], inexact: bool = False
) -> Callable[[Decide], Decide]:
    """Register what the parts compute of partial inputs; see `rule` and `Rule`."""
    return _sharding("partial_rule", ops, inputs, inexact=inexact)


def inside_rule(*ops: str, inputs: Takes | Sequence[Takes]) -> Callable[[Decide], Decide]:
    """Register what the parts compute in bodies of loops and conditions; see `rule`."""
    return _sharding("inside_rule", ops, inputs)


def traits(ops: str, trait: Trait) -> None:
    """Add traits to types of operations, which a text names."""
    for op in ops.split():
        OPERATIONS.setdefault(op, Operation()).traits |= trait


def index_inputs(ops: str, inputs: slice) -> None:
    """Say which inputs of types of operations have integers below a limit of their result."""
    for op in ops.split():
        _set(op, "index_inputs", inputs)


def _set(op: str, name: str, value: object) -> None:
    entry = OPERATIONS.setdefault(op, Operation())
    assert not getattr(entry, name), f"{op} has two entries: {name}"
    setattr(entry, name, value)


def _sharding(
    field: str,
    ops: Sequence[str],
    inputs: Takes | Sequence[Takes],
    *,
    inexact: bool = False,
) -> Callable[[Decide], Decide]:
    def register(function: Decide) -> Decide:
        for op in ops:
            names = operation_types.input_names(op)
            takes = (inputs,) * len(names) if isinstance(inputs, Takes) else tuple(inputs)
            assert len(takes) == len(names), f"{op} has the inputs {names}, not {takes}"
            _set(op, field, Rule(decide=function, inputs=takes, inexact=inexact))
        return function

    return register
