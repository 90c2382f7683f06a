"""Numbers of Python as arguments of a step: a rate that changes at every call is no constant.

::

    Python     rate = 0.9 ** n             w.assign_sub((1 - rate) * gradient)
    trace      SymbolicNumber ─ "1 - rate" ─► float64 tensor ─ cast to the gradient's type ─►

Arithmetic of Python is float64, rounded to the type of the tensor that it meets, which is what this
computes too. A comparison, or a division, is decided by the number of now and becomes a condition
of the trace. Whatever else Python does with a number (an index, a size, a text, a key) refuses it:
then each of its values has a trace of its own.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from evener.run.hoisting.expressions import (
    Condition,
    Constant,
    Expression,
    Given,
    Operation,
    evaluate,
    places_in,
)
from evener.run.hoisting.values import CannotHoist

LARGEST = 2**26
"""The largest integer that becomes an argument: products of two are exact as float64."""
_LARGEST_INT32 = 2**31 - 1
_EXACT = 2**53
_FLOATS = (tf.float32, tf.float64)
_INTEGERS = (tf.int32, tf.int64)
_IN_GRAPH: dict[Any, Callable[[Any, Any], Any]] = {
    operator.add: tf.add,
    operator.sub: tf.subtract,
    operator.mul: tf.multiply,
    operator.truediv: tf.divide,
}


class UsedByPython(CannotHoist):
    """Says that a step uses a number in a way in which only Python can.

    Args:
        use: Says in which way.
        places: The arguments that the number is computed from.
    """

    def __init__(self, use: str, places: Iterable[int]) -> None:
        super().__init__(f"a number that changes is {use}")
        self.places = frozenset(places)


@dataclass(slots=True, kw_only=True, eq=False)
class Scope:
    """One trace with numbers.

    Args:
        given: The arguments of the call that is traced.
        conditions: Comparisons that the trace depends on, and what they were.
        problem: A use of a number that is not known.
    """

    given: Sequence[Any]
    conditions: list[Condition] = field(default_factory=list)
    problem: UsedByPython | None = None

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
    """Stands for a number of Python while a step is traced.

    Args:
        scope: The trace.
        expression: What it is for Python.
        kind: int or float.
        tensor: Its value as a scalar of float64; None if no tensor has that value exactly.
        bound: The largest size that an integer may have.
    """

    # Without a place for weak references: caches of functions cannot keep it.
    __slots__ = ("_bound", "_kind", "_scope", "_tensor", "expression")

    def __init__(
        self, scope: Scope, expression: Expression, kind: type, tensor: Any, bound: int
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
        """Return the tensor that TensorFlow makes of the number where it asks for a type.

        Raises:
            TypeError: TensorFlow makes no tensor of this type of such a number.
        """
        if self._tensor is None:
            raise self._scope.refuse(
                "computed in a way that a graph may round otherwise", self.expression
            )
        dtype = dtype or (tf.int32 if self._kind is int else tf.float32)
        if dtype in _FLOATS:
            limit = Constant(float, float(dtype.max))
            if not self._scope.decide(Operation(_fits, self.expression, limit)):
                raise ValueError(f"the number is too large for {dtype.name}")
            return tf.cast(self._tensor, dtype)
        if dtype in _INTEGERS and self._kind is int and self._bound <= _LARGEST_INT32:
            return tf.cast(self._tensor, dtype)
        if self._kind is float and dtype.is_integer:
            raise TypeError("a float is no integer")
        raise self._scope.refuse(f"used as {dtype.name}", self.expression)

    def _with(self, function: Any, other: Any, *, is_left: bool) -> Any:
        known = _as_number(self._scope, other)
        if known is None:
            return NotImplemented
        left, right = (self, known) if is_left else (known, self)
        if function in (operator.truediv, operator.floordiv, operator.mod):
            zero = Constant(int, 0)
            if not self._scope.decide(Operation(operator.ne, right.expression, zero)):
                raise ZeroDivisionError("division by zero")
        is_integer = (left._kind, right._kind) == (int, int) and function is not operator.truediv
        bound = _bound_of(function, left._bound, right._bound)
        tensor = None
        if function in _IN_GRAPH and left._tensor is not None and right._tensor is not None:
            if bound <= _EXACT:
                tensor = _IN_GRAPH[function](left._tensor, right._tensor)
        return SymbolicNumber(
            self._scope,
            Operation(function, left.expression, right.expression),
            int if is_integer else float,
            tensor,
            bound,
        )

    def _compare(self, function: Any, other: Any) -> Any:
        known = _as_number(self._scope, other)
        if known is None:
            return NotImplemented
        return self._scope.decide(Operation(function, self.expression, known.expression))

    def _refuse(self, use: str) -> Any:
        raise self._scope.refuse(use, self.expression)

    # fmt: off
    def __add__(self, other: Any) -> Any: return self._with(operator.add, other, is_left=True)
    def __radd__(self, other: Any) -> Any: return self._with(operator.add, other, is_left=False)
    def __sub__(self, other: Any) -> Any: return self._with(operator.sub, other, is_left=True)
    def __rsub__(self, other: Any) -> Any: return self._with(operator.sub, other, is_left=False)
    def __mul__(self, other: Any) -> Any: return self._with(operator.mul, other, is_left=True)
    def __rmul__(self, other: Any) -> Any: return self._with(operator.mul, other, is_left=False)
    def __truediv__(self, other: Any) -> Any: return self._with(operator.truediv, other, is_left=True)  # noqa: E501
    def __rtruediv__(self, other: Any) -> Any: return self._with(operator.truediv, other, is_left=False)  # noqa: E501
    def __floordiv__(self, other: Any) -> Any: return self._with(operator.floordiv, other, is_left=True)  # noqa: E501
    def __mod__(self, other: Any) -> Any: return self._with(operator.mod, other, is_left=True)
    def __neg__(self) -> Any: return self._with(operator.mul, -1, is_left=True)
    def __pos__(self) -> Any: return self
    def __lt__(self, other: Any) -> Any: return self._compare(operator.lt, other)
    def __le__(self, other: Any) -> Any: return self._compare(operator.le, other)
    def __gt__(self, other: Any) -> Any: return self._compare(operator.gt, other)
    def __ge__(self, other: Any) -> Any: return self._compare(operator.ge, other)
    def __eq__(self, other: object) -> Any: return self._compare(operator.eq, other)
    def __ne__(self, other: object) -> Any: return self._compare(operator.ne, other)
    def __bool__(self) -> bool: return self._scope.decide(Operation(operator.ne, self.expression, Constant(int, 0)))  # noqa: E501
    def __hash__(self) -> int: return self._refuse("a key")
    def __index__(self) -> int: return self._refuse("an index, a size or a count")
    def __int__(self) -> int: return self._refuse("made an integer")
    def __float__(self) -> float: return self._refuse("given to a function of Python")
    def __complex__(self) -> complex: return self._refuse("made a complex number")
    def __round__(self, *_: Any) -> Any: return self._refuse("rounded")
    def __abs__(self) -> Any: return self._refuse("given to abs()")
    def __str__(self) -> str: return self._refuse("written as text")
    def __repr__(self) -> str: return self._refuse("written as text")
    def __format__(self, _: str) -> str: return self._refuse("written as text")
    def __array__(self, *_: Any, **__: Any) -> Any: return self._refuse("given to NumPy")
    def __reduce_ex__(self, _: Any) -> Any: return self._refuse("copied")
    # fmt: on

    def __getattr__(self, name: str) -> Any:
        """Refuse what is not known of numbers; what no number has is missing."""
        if hasattr(0.0 if self._kind is float else 0, name):
            raise self._scope.refuse(f"asked for {name}", self.expression)
        raise AttributeError(name)


def _as_number(scope: Scope, value: Any) -> SymbolicNumber | None:
    """Return a number of Python as one of a trace; None for anything else, such as a tensor."""
    if type(value) is SymbolicNumber:
        return value
    if type(value) not in (int, float):
        return None
    is_exact = type(value) is float or abs(value) <= _EXACT
    tensor = tf.constant(value, tf.float64) if is_exact else None
    bound = abs(value) if type(value) is int else 0
    return SymbolicNumber(scope, Constant(type(value), value), type(value), tensor, bound)


def _fits(number: float, limit: float) -> bool:
    """Return whether TensorFlow makes a tensor of a number; of infinity and NaN it does."""
    return not limit < abs(number) < math.inf


def _bound_of(function: Any, left: int, right: int) -> int:
    return left * right if function is operator.mul else left + right


def expression_of(value: Any) -> Expression | None:
    """Return what Python computes a number of a trace by; None for any other value."""
    return value.expression if type(value) is SymbolicNumber else None


def _convert(value: Any, dtype: Any = None, name: str | None = None, as_ref: bool = False) -> Any:
    return value.as_tensor(dtype)


tf.register_tensor_conversion_function(SymbolicNumber, _convert)


def symbolic(scope: Scope, place: int, kind: type, tensor: Any) -> SymbolicNumber:
    """Return what stands for an argument while a step is traced.

    Args:
        scope: The trace.
        place: The number of the argument.
        kind: int or float.
        tensor: Its value, a scalar of float64.
    """
    return SymbolicNumber(scope, Given(place), kind, tensor, LARGEST if kind is int else 0)


def can_be_argument(value: Any) -> bool:
    """Return whether a value is a number that a graph can be given."""
    return type(value) is float or (type(value) is int and abs(value) <= LARGEST)
