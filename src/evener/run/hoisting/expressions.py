"""What Python computes from the numbers that a step is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Given:
    """An argument of the step, as it was given."""

    number: int


@dataclass(frozen=True, slots=True)
class Constant:
    """A number in the text of the step; 1, 1.0 and True are three."""

    kind: type
    value: Any


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of Python's own on two numbers."""

    function: Callable[[Any, Any], Any]
    left: Any
    right: Any


Expression = Given | Constant | Operation
Condition = tuple[Expression, bool]
"""A comparison, and what it was when a step was traced."""


def evaluate(expression: Expression, given: Sequence[Any]) -> Any:
    """Return what Python computes for an expression, or raise what it raises.

    Args:
        expression: The expression.
        given: The arguments of a call.
    """
    if isinstance(expression, Given):
        return given[expression.number]
    if isinstance(expression, Constant):
        return expression.value
    left, right = evaluate(expression.left, given), evaluate(expression.right, given)
    return expression.function(left, right)


def places_in(expression: Expression) -> Iterator[int]:
    """Yield which arguments an expression is computed from."""
    if isinstance(expression, Given):
        yield expression.number
    elif isinstance(expression, Operation):
        yield from places_in(expression.left)
        yield from places_in(expression.right)


def hold(conditions: Sequence[Condition], given: Sequence[Any]) -> bool:
    """Return whether comparisons come out as they did, for other arguments."""
    try:
        return all(bool(evaluate(one, given)) is decided for one, decided in conditions)
    except ArithmeticError:
        # As written, Python raises it at its own line.
        return False
