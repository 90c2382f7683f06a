"""Values of a hoisted step: tensors, constants, and numbers of Python, symbolic in a trace.

::

    Python     rate = 0.9 ** n             w.assign_sub((1 - rate) * gradient)
    trace      SymbolicNumber ─ "1 - rate" ─► float64 tensor ─ cast to the gradient's type ─►

A rate that changes at every call is no constant: numbers of Python are arguments of a step.
Arithmetic of Python is float64, rounded to the type of the tensor that it meets, which is what this
computes too. A comparison, or a division, is decided by the number of now and becomes a condition
of the trace. Whatever else Python does with a number (an index, a size, a text, a key) refuses it:
then each of its values has a trace of its own.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partialmethod
from typing import Any

import numpy as np
import tensorflow as tf

from evener._tf_private.tensors import CompositeTensor


@dataclass(frozen=True, slots=True)
class Given:
    """An argument of the step, as it was given."""

    number: int


PLAIN = (bool, int, float, complex, str, bytes, type(None))
"""Types whose values are compared, not their identity."""


def same(value: Any, other: Any) -> bool:
    """Return whether two values of Python mean the same: identical, or plain and equal."""
    if value is other:
        return True
    if type(value) is not type(other) or not isinstance(value, (*PLAIN, np.generic)):
        return False
    if value == other:
        # 0.0 and -0.0 are equal and not the same.
        return value != 0 or repr(value) == repr(other)
    return value != value and other != other  # NaN


@dataclass(frozen=True, slots=True)
class Fixed:
    """A value of Python that is the same in every call; 1, 1.0 and True are three."""

    kind: type
    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fixed) and same(self.value, other.value)

    def __hash__(self) -> int:
        return hash(self.kind)


@dataclass(frozen=True, slots=True)
class PythonOperation:
    """An operation of Python's own on two numbers."""

    function: Callable[[Any, Any], Any]
    left: Any
    right: Any


Expression = Given | Fixed | PythonOperation
Condition = tuple[Expression, bool]
"""A comparison, and what it was when a step was traced."""


def evaluate(expression: Expression, given: Sequence[Any]) -> Any:
    if isinstance(expression, Given):
        return given[expression.number]
    if isinstance(expression, Fixed):
        return expression.value
    left, right = evaluate(expression.left, given), evaluate(expression.right, given)
    return expression.function(left, right)


def places_in(expression: Expression) -> Iterator[int]:
    if isinstance(expression, Given):
        yield expression.number
    elif isinstance(expression, PythonOperation):
        yield from places_in(expression.left)
        yield from places_in(expression.right)


def hold(conditions: Sequence[Condition], given: Sequence[Any]) -> bool:
    """Return whether comparisons come out as they did, for other arguments."""
    try:
        return all(bool(evaluate(condition, given)) is decided for condition, decided in conditions)
    except ArithmeticError:
        # As written, Python raises it at its own line.
        return False


class CannotHoist(Exception):
    """Says why a step runs as it is written: a clause behind "line 12 prevents more: "."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """The place of a tensor in a structure."""

    number: int


@dataclass(frozen=True, slots=True)
class CompositeParts:
    """A ragged or sparse tensor, or slices: its components are flat tensors."""

    spec: Any
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Nest:
    """A list, tuple, named tuple or dictionary with tensors in it."""

    kind: type
    keys: tuple[Any, ...] | None
    parts: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number of Python, or a text, that is a tensor of the graph: given to it or computed."""

    number: int
    kind: type


def is_composite(value: Any) -> bool:
    """Return whether a value is a ragged or sparse tensor, or slices of a gradient."""
    others = (tf.Variable, tf.data.Dataset, tf.data.Iterator)
    return isinstance(value, CompositeTensor) and not isinstance(value, others)


def parts_of(value: Any) -> list[Any] | None:
    """Return the items of a list, tuple, named tuple or dictionary; None for all else."""
    if type(value) is dict:
        return list(value.values())
    is_named_tuple = isinstance(value, tuple) and hasattr(value, "_fields")
    return list(value) if type(value) in (list, tuple) or is_named_tuple else None


def holds_tensor(value: Any, depth: int = 0) -> bool:
    if isinstance(value, tf.Tensor | np.ndarray) or is_composite(value):
        return True
    return depth < 4 and any(holds_tensor(item, depth + 1) for item in parts_of(value) or ())


def take_apart(value: Any, tensors: list[Any]) -> Any:
    if isinstance(value, tf.Tensor | np.ndarray):
        tensors.append(value)
        return Leaf(len(tensors) - 1)
    if is_composite(value):
        components = tf.nest.flatten(value, expand_composites=True)
        tensors.extend(components)
        spec = tf.type_spec_from_value(value)
        return CompositeParts(spec, len(tensors) - len(components), len(components))
    parts = parts_of(value)
    if parts is not None and holds_tensor(value):
        keys = tuple(value) if isinstance(value, dict) else None
        return Nest(type(value), keys, tuple(take_apart(part, tensors) for part in parts))
    return Fixed(type(value), value)


def put_together(structure: Any, tensors: Sequence[Any], given: Sequence[Any] = ()) -> Any:
    if isinstance(structure, Leaf):
        return tensors[structure.number]
    if isinstance(structure, CompositeParts):
        parts = list(tensors[structure.first : structure.first + structure.count])
        return tf.nest.pack_sequence_as(structure.spec, parts, expand_composites=True)
    if isinstance(structure, Fixed):
        return structure.value
    if isinstance(structure, Given):
        return given[structure.number]
    if isinstance(structure, PythonOperation):
        return evaluate(structure, given)
    if isinstance(structure, Scalar):
        value = tensors[structure.number].numpy()
        return value.decode() if structure.kind is str else structure.kind(value)
    parts = [put_together(part, tensors, given) for part in structure.parts]
    if structure.keys is not None:
        return dict(zip(structure.keys, parts, strict=True))
    if structure.kind in (list, tuple):
        return structure.kind(parts)
    return structure.kind(*parts)


def results_apart(values: Sequence[Any], inputs: Sequence[Any], known: Collection[int]) -> Any:
    """Return the structure and the flat tensors of the results of a step that is being traced."""
    tensors: list[Any] = []
    seen: set[int] = set()

    def apart(value: Any) -> Any:
        if type(value) is SymbolicNumber:
            return value.expression
        for number, argument in enumerate(inputs):
            if value is argument and not isinstance(value, PLAIN):
                return Given(number)
        if isinstance(value, tf.Tensor):
            tensors.append(value)
            return Leaf(len(tensors) - 1)
        if is_composite(value):
            return take_apart(value, tensors)
        if isinstance(value, bool | int | float | str):
            kind = type(value)
            if kind not in (bool, int, float, str):
                raise CannotHoist(f"it computes a {kind.__name__} that is used later")
            dtypes = {bool: tf.bool, int: tf.int64, float: tf.float64, str: tf.string}
            tensors.append(tf.constant(value, dtypes[kind]))
            return Scalar(len(tensors) - 1, kind)
        if value is None or id(value) in known:
            return Fixed(type(value), value)
        parts = parts_of(value)
        if parts is not None:
            if id(value) in seen and type(value) is not tuple:
                raise CannotHoist("two of its results are the same list")
            seen.add(id(value))
            keys = tuple(value) if isinstance(value, dict) else None
            return Nest(type(value), keys, tuple(apart(part) for part in parts))
        raise CannotHoist(f"it makes a {type(value).__name__} that is used later")

    return tuple(apart(value) for value in values), tensors


LARGEST = 2**26
"""The largest integer that becomes an argument: products of two are exact as float64."""
_EXACT = 2**53
_IN_GRAPH: dict[Any, Callable[[Any, Any], Any]] = {
    operator.add: tf.add,
    operator.sub: tf.subtract,
    operator.mul: tf.multiply,
    operator.truediv: tf.divide,
}


class UsedByPython(CannotHoist):
    """Says that a step uses a number in a way in which only Python can."""

    def __init__(self, use: str, places: Iterable[int]) -> None:
        super().__init__(f"a number that changes is {use}")
        self.places = frozenset(places)


@dataclass(slots=True, kw_only=True, eq=False)
class TraceScope:
    given: Sequence[Any]  # The arguments of the call that is traced
    # Comparisons that the trace depends on, and what they were
    conditions: list[Condition] = field(default_factory=list)
    problem: UsedByPython | None = None  # A use of a number that is not known

    def refuse(self, use: str, expression: Expression) -> UsedByPython:
        """Return the error for a use; it counts even if somebody catches it."""
        self.problem = UsedByPython(use, places_in(expression))
        return self.problem

    def decide(self, expression: Expression) -> bool:
        """Return whether an expression is true now; the trace is for calls where that is so."""
        decided = bool(evaluate(expression, self.given))
        self.conditions.append((expression, decided))
        return decided


class SymbolicNumber:
    # Without a place for weak references: caches of functions cannot keep it.
    __slots__ = ("_bound", "_kind", "_scope", "_tensor", "expression")

    def __init__(
        self, scope: TraceScope, expression: Expression, kind: type, tensor: Any, bound: int
    ) -> None:
        self._scope = scope
        self.expression = expression
        self._kind = kind
        self._tensor = tensor
        self._bound = bound

    @property
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The type that `isinstance` sees, so that code takes the branch of a number."""
        return self._kind

    def as_tensor(self, dtype: Any) -> Any:
        """Return the tensor that TensorFlow makes of the number where it asks for a type."""
        if self._tensor is None:
            raise self._scope.refuse(
                "computed in a way that a graph may round otherwise", self.expression
            )
        dtype = dtype or (tf.int32 if self._kind is int else tf.float32)
        if dtype in (tf.float32, tf.float64):
            limit = Fixed(float, float(dtype.max))
            if not self._scope.decide(PythonOperation(_fits, self.expression, limit)):
                raise ValueError(f"the number is too large for {dtype.name}")
            return tf.cast(self._tensor, dtype)
        if dtype in (tf.int32, tf.int64) and self._kind is int and self._bound <= tf.int32.max:
            return tf.cast(self._tensor, dtype)
        if self._kind is float and dtype.is_integer:
            raise TypeError("a float is no integer")
        raise self._scope.refuse(f"used as {dtype.name}", self.expression)

    def _compute(self, function: Any, other: Any, *, is_left: bool = True) -> Any:
        known = _as_number(self._scope, other)
        if known is None:
            return NotImplemented
        left, right = (self, known) if is_left else (known, self)
        if function in (operator.truediv, operator.floordiv, operator.mod):
            zero = Fixed(int, 0)
            if not self._scope.decide(PythonOperation(operator.ne, right.expression, zero)):
                raise ZeroDivisionError("division by zero")
        is_integer = (left._kind, right._kind) == (int, int) and function is not operator.truediv
        combine = operator.mul if function is operator.mul else operator.add
        bound, tensor = combine(left._bound, right._bound), None
        has_tensors = left._tensor is not None and right._tensor is not None
        if function in _IN_GRAPH and has_tensors and bound <= _EXACT:
            tensor = _IN_GRAPH[function](left._tensor, right._tensor)
        kind = int if is_integer else float
        expression = PythonOperation(function, left.expression, right.expression)
        return SymbolicNumber(self._scope, expression, kind, tensor, bound)

    def _compare(self, function: Any, other: Any) -> Any:
        known = _as_number(self._scope, other)
        if known is None:
            return NotImplemented
        return self._scope.decide(PythonOperation(function, self.expression, known.expression))

    def _refuse(self, use: str, *_: Any, **__: Any) -> Any:
        raise self._scope.refuse(use, self.expression)

    def __neg__(self) -> Any:
        return self._compute(operator.mul, -1)

    def __pos__(self) -> Any:
        return self

    def __bool__(self) -> bool:
        return self._compare(operator.ne, 0)

    def __getattr__(self, name: str) -> Any:
        """Refuse what is not known of numbers; what no number has is missing."""
        if hasattr(0.0 if self._kind is float else 0, name):
            raise self._scope.refuse(f"asked for {name}", self.expression)
        raise AttributeError(name)


def _define(name: str, method: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    setattr(SymbolicNumber, f"__{name}__", partialmethod(method, *args, **kwargs))


for _function in (*_IN_GRAPH, operator.floordiv, operator.mod):
    _define(_function.__name__, SymbolicNumber._compute, _function)
for _function in _IN_GRAPH:
    _define(f"r{_function.__name__}", SymbolicNumber._compute, _function, is_left=False)
for _function in (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne):
    _define(_function.__name__, SymbolicNumber._compare, _function)
for _name, _use in {
    "hash": "a key",
    "index": "an index, a size or a count",
    "int": "made an integer",
    "float": "given to a function of Python",
    "complex": "made a complex number",
    "round": "rounded",
    "abs": "given to abs()",
    "str": "written as text",
    "repr": "written as text",
    "format": "written as text",
    "array": "given to NumPy",
    "reduce_ex": "copied",
}.items():
    _define(_name, SymbolicNumber._refuse, _use)


def _as_number(scope: TraceScope, value: Any) -> SymbolicNumber | None:
    """Return a number of Python as one of a trace; None for anything else, such as a tensor."""
    if type(value) is SymbolicNumber:
        return value
    if type(value) not in (int, float):
        return None
    is_exact = type(value) is float or abs(value) <= _EXACT
    tensor = tf.constant(value, tf.float64) if is_exact else None
    bound = abs(value) if type(value) is int else 0
    return SymbolicNumber(scope, Fixed(type(value), value), type(value), tensor, bound)


def _fits(number: float, limit: float) -> bool:
    """Return whether TensorFlow makes a tensor of a number; of infinity and NaN it does."""
    return not limit < abs(number) < math.inf


tf.register_tensor_conversion_function(
    SymbolicNumber, lambda value, dtype=None, **_: value.as_tensor(dtype)
)


def can_be_argument(value: Any) -> bool:
    return type(value) is float or (type(value) is int and abs(value) <= LARGEST)
