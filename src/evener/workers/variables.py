"""Variables of the steps of a program, in an order that all workers share."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from evener.workers.arrays import pack, unpack
from evener.workers.faults import other_program

_SMALL_BYTES = 1024
"""Most bytes of a variable whose value is kept behind every call: metrics, counters, seeds."""

_GONE = np.empty(0, np.bool_)


class Variables:
    """Variables of the steps so far, in the order in which the steps were traced."""

    def __init__(self) -> None:
        self._all: dict[int, weakref.ref[tf.Variable]] = {}
        self._small: dict[int, weakref.ref[tf.Variable]] = {}
        self._large: set[int] = set()
        self._lists: list[tuple[weakref.ref[Any], str]] = []

    def add_list(self, owner: object, name: str) -> None:
        """Add an attribute of an object: a list of arrays, or None."""
        if all(known() is not owner for known, _ in self._lists):
            self._lists.append((weakref.ref(owner), name))

    def add(self, variable: tf.Variable, *, is_written: bool) -> None:
        """Add a variable of a step; ``is_written`` says that the step may write it."""
        handle, reference = id(variable.handle), weakref.ref(variable)
        known = self._all.get(handle)
        if known is None or known() is None:
            self._all[handle] = reference
        num_bytes = variable.dtype.size * (variable.shape.num_elements() or 0)
        if is_written and num_bytes <= _SMALL_BYTES:
            self._small[handle] = reference
        elif is_written:
            self._large.add(handle)

    def is_large(self, handle: Any) -> bool:
        """Return whether a handle is that of a variable that steps write, and that is not small."""
        return id(handle) in self._large

    def values(self) -> tuple[np.ndarray | None, ...]:
        """Return the values of all, then the lists as bytes; None for those that are gone."""
        values = [
            None if variable is None else np.asarray(variable.numpy())
            for variable in _alive(self._all)
        ]
        lists = [getattr(owner(), name, None) for owner, name in self._lists]
        return (*values, *(pack([each]) if each else None for each in lists))

    def by_name(self) -> dict[str, np.ndarray | None]:
        """Return the values of all by their names, which are made different by numbers."""
        names = ["gone" if each is None else each.name for each in _alive(self._all)]
        names += [f"{name} of {type(owner()).__name__}" for owner, name in self._lists]
        pairs = zip(names, self.values(), strict=True)
        return {f"{name} ({number})": value for number, (name, value) in enumerate(pairs)}

    def assign(self, values: Sequence[np.ndarray | None]) -> None:
        """Assign what `values` returned to all; RUN-094 if they are not those of this program."""
        count = len(self._all)
        if len(values) != count + len(self._lists):
            raise other_program(f"{len(values)} variables instead of {count + len(self._lists)}")
        for variable, value in zip(_alive(self._all), values[:count], strict=True):
            _assign(variable, value)
        for (owner, name), value in zip(self._lists, values[count:], strict=True):
            if value is not None and owner() is not None:
                setattr(owner(), name, unpack(value)[0])

    def small_values(self) -> list[np.ndarray]:
        """Return the values of the small ones that steps write; nothing of those that are gone."""
        return [
            _GONE if variable is None else np.asarray(variable.numpy())
            for variable in _alive(self._small)
        ]

    def assign_small(self, values: Sequence[np.ndarray]) -> None:
        """Assign what `small_values` returned; RUN-094 if it is not of this program."""
        if len(values) > len(self._small):
            raise other_program(f"{len(values)} small variables instead of {len(self._small)}")
        for variable, value in zip(_alive(self._small), values, strict=False):
            _assign(variable, value if value.size else None)


def _alive(
    references: dict[int, weakref.ref[tf.Variable]],
) -> Iterator[tf.Variable | None]:
    return (reference() for reference in references.values())


def _assign(variable: tf.Variable | None, value: np.ndarray | None) -> None:
    if variable is None or value is None:
        return
    if not variable.shape.is_compatible_with(value.shape):
        raise other_program(f"{variable.name} of shape {list(value.shape)}")
    variable.assign(value)
