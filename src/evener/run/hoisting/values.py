"""Arguments and results of a hoisted step: flat tensors, and the structure around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from evener._tf_private.tensors import CompositeTensor
from evener.run.hoisting.expressions import Given, Operation, evaluate

PLAIN = (bool, int, float, complex, str, bytes, type(None))
"""Types whose values are compared, not their identity."""


class CannotHoist(Exception):
    """Says why a step runs as it is written: a clause behind "line 12 prevents more: "."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """The place of a tensor in a structure."""

    number: int


@dataclass(frozen=True, slots=True)
class Composite:
    """A ragged or sparse tensor, or slices: its components are flat tensors."""

    spec: Any
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Fixed:
    """A value of Python that is the same in every call; equal if the values are equal."""

    kind: type
    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fixed) and same(self.value, other.value)

    def __hash__(self) -> int:
        return hash(self.kind)


@dataclass(frozen=True, slots=True)
class Nest:
    """A list, tuple, named tuple or dictionary with tensors in it."""

    kind: type
    keys: tuple[Any, ...] | None
    parts: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Number:
    """A number of Python that the step computes. It is a tensor of the graph."""

    number: int
    kind: type


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number of Python that is given to the graph as a tensor."""

    number: int
    kind: type


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


def is_tensor(value: Any) -> bool:
    """Return whether a value is given to a graph as a tensor."""
    return isinstance(value, tf.Tensor | np.ndarray)


def is_composite(value: Any) -> bool:
    """Return whether a value is a ragged or sparse tensor, or slices of a gradient."""
    return isinstance(value, CompositeTensor) and not isinstance(
        value, tf.Variable | tf.data.Dataset | tf.data.Iterator
    )


def holds_tensor(value: Any, depth: int = 0) -> bool:
    """Return whether a value is, or holds in lists and dictionaries, a tensor or an array."""
    if is_tensor(value) or is_composite(value):
        return True
    if depth < 4 and type(value) is dict:
        return any(holds_tensor(item, depth + 1) for item in value.values())
    if depth < 4 and (type(value) in (list, tuple) or _is_named_tuple(value)):
        return any(holds_tensor(item, depth + 1) for item in value)
    return False


def take_apart(value: Any, tensors: list[Any]) -> Any:
    """Return the structure of an argument, and append its tensors to a list."""
    if is_tensor(value):
        tensors.append(value)
        return Leaf(len(tensors) - 1)
    if is_composite(value):
        components = tf.nest.flatten(value, expand_composites=True)
        tensors.extend(components)
        spec = tf.type_spec_from_value(value)
        return Composite(spec, len(tensors) - len(components), len(components))
    if holds_tensor(value):
        keys = tuple(value) if isinstance(value, dict) else None
        parts = value.values() if isinstance(value, dict) else value
        return Nest(type(value), keys, tuple(take_apart(part, tensors) for part in parts))
    return Fixed(type(value), value)


def put_together(structure: Any, tensors: Sequence[Any], given: Sequence[Any] = ()) -> Any:
    """Return a value with a structure and other tensors.

    Args:
        structure: Its structure.
        tensors: The flat tensors.
        given: The arguments of the call, for results that are arguments.
    """
    if isinstance(structure, Leaf):
        return tensors[structure.number]
    if isinstance(structure, Composite):
        first, last = structure.first, structure.first + structure.count
        return tf.nest.pack_sequence_as(
            structure.spec, list(tensors[first:last]), expand_composites=True
        )
    if isinstance(structure, Fixed):
        return structure.value
    if isinstance(structure, Given):
        return given[structure.number]
    if isinstance(structure, Operation):
        return evaluate(structure, given)
    if isinstance(structure, Number):
        value = tensors[structure.number].numpy()
        return value.decode() if structure.kind is str else structure.kind(value)
    parts = [put_together(part, tensors, given) for part in structure.parts]
    if structure.keys is not None:
        return dict(zip(structure.keys, parts, strict=True))
    if structure.kind in (list, tuple):
        return structure.kind(parts)
    return structure.kind(*parts)


def results_apart(
    values: Sequence[Any],
    inputs: Sequence[Any],
    known: set[int],
    expression_of: Callable[[Any], Any] = lambda _: None,
) -> Any:
    """Return the structure and the flat tensors of the results of a step that is being traced.

    Args:
        values: The results.
        inputs: The arguments, as the step got them.
        known: The ids of objects that are guarded, which a result may be.
        expression_of: Returns what Python computes a result by, if it is such a number.

    Raises:
        CannotHoist: If a result is neither tensors nor known.
    """
    tensors: list[Any] = []
    seen: set[int] = set()

    def apart(value: Any) -> Any:
        expression = expression_of(value)
        if expression is not None:
            return expression
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
            return Number(len(tensors) - 1, kind)
        if value is None or id(value) in known:
            return Fixed(type(value), value)
        if type(value) in (list, tuple, dict) or _is_named_tuple(value):
            if id(value) in seen and type(value) is not tuple:
                raise CannotHoist("two of its results are the same list")
            seen.add(id(value))
            keys = tuple(value) if isinstance(value, dict) else None
            parts: Any = value.values() if isinstance(value, dict) else value
            return Nest(type(value), keys, tuple(apart(part) for part in parts))
        raise CannotHoist(f"it makes a {type(value).__name__} that is used later")

    return tuple(apart(value) for value in values), tensors


def _is_named_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")
