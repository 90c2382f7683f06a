"""What a step reads beside its tensors, found by what was observed of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import CodeType, ModuleType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from evener.analysis.hoisting import Region
from evener.analysis.hoisting.rewrite import HOOK
from evener.run.hoisting.checks import Names
from evener.run.hoisting.code import (
    Observed,
    attributes_read,
    check_code,
    functions_of,
    globals_read,
)
from evener.run.hoisting.guards import Guards
from evener.run.hoisting.symbolic import can_be_argument
from evener.run.hoisting.values import PLAIN, CannotHoist, Fixed, Nest, Scalar, take_apart

# Functions that name an attribute by a value.
_BY_NAME = {"getattr", "vars", "hasattr"}
# What a step cannot change. It changes no list of Python, or it is not hoisted. A module is there
# for its name alone: `tf.print`.
_CONSTANT = (*PLAIN, np.generic, np.ndarray, tf.Tensor, list, range, ModuleType)


Body = Callable[..., tuple[Any, ...]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Call:
    """One call of a step.

    Args:
        body: The region as a function.
        values: Its arguments.
        structures: Their structures.
        tensors: The flat tensors and arrays in them.
    """

    body: Body
    values: tuple[Any, ...]
    structures: list[Any]
    tensors: list[Any]

    @classmethod
    def of(cls, body: Body, values: tuple[Any, ...]) -> Call:
        """Return a call, with its arguments taken apart."""
        tensors: list[Any] = []
        structures = [take_apart(value, tensors) for value in values]
        return cls(body=body, values=values, structures=structures, tensors=tensors)

    def with_numbers(self, places: Iterable[int]) -> Call:
        """Return a call in which numbers of Python among the arguments are tensors.

        Args:
            places: Which arguments. One that is no number, or too large, stays a value.
        """
        structures, tensors = list(self.structures), list(self.tensors)
        for place in sorted(places):
            value = self.values[place]
            if can_be_argument(value):
                structures[place] = Scalar(len(tensors), type(value))
                tensors.append(tf.constant(value, tf.float64))
        return replace(self, structures=structures, tensors=tensors)

    def numbers_unlike(self, structures: Sequence[Any]) -> set[int]:
        """Return which arguments are numbers that another call had other values of."""
        pairs = enumerate(zip(self.structures, structures, strict=True))
        return {
            place
            for place, (mine, its) in pairs
            if isinstance(mine, Fixed) and can_be_argument(mine.value)
            if isinstance(its, Scalar | Fixed) and its.kind is mine.kind and mine != its
        }

    @property
    def shapes(self) -> Any:
        """The shapes and types of the tensors."""
        return tuple((tuple(one.shape), one.dtype) for one in self.tensors)

    def run(self) -> tuple[Any, ...]:
        """Run the step as it is written.

        Raises:
            ChangesArrays: If it changes an array that it is given. What it did remains.
        """
        arrays = [one for one in self.tensors if isinstance(one, np.ndarray)]
        before = [one.tobytes() for one in arrays]
        results = self.body(*self.values)
        if any(one.tobytes() != old for one, old in zip(arrays, before, strict=True)):
            raise ChangesArrays(results)
        return results


class ChangesArrays(Exception):
    """Says that a step that ran as it is written has changed arrays of NumPy.

    Args:
        results: Its results.
    """

    def __init__(self, results: tuple[Any, ...]) -> None:
        super().__init__()
        self.results = results


@dataclass(slots=True, kw_only=True, eq=False)
class Reads:
    """The values that a step reads beside its tensors.

    Args:
        structures: The structures of its arguments.
        guards: The values that were found from there.
        globals: The globals that its code names.
        code: The code that it ran, with the globals of each.
        settings: Settings of Keras.
    """

    structures: list[Any]
    guards: Guards
    globals: list[Names]
    code: dict[CodeType, dict[str, Any]]
    settings: Any

    def hold_for(self, structures: Sequence[Any]) -> bool:
        """Return whether a call with such arguments reads the same values."""
        return structures == self.structures and self.changed() is None

    def changed(self) -> str | None:
        """Return what is another value than before, or None."""
        if self.settings != _settings():
            return "keras.config"
        found = next((one.path for one in self.globals if not one.holds()), None)
        return found or self.guards.changed()

    def restore(self) -> None:
        """Put back what is in objects, lists and dictionaries."""
        self.guards.restore()
        for one in self.globals:
            one.restore()


def reads_of(
    region: Region,
    path: str,
    observed: Observed,
    call: Call,
    lines_with_losses: Sequence[tuple[str, int]],
) -> Reads:
    """Return what a step reads, after it ran as it is written.

    Args:
        region: The step.
        path: Its file.
        observed: What was seen while it ran.
        call: The call.
        lines_with_losses: Files and lines that read ``losses`` of an object.

    Raises:
        CannotHoist: If that cannot be known, or the step does more than compute.
    """
    if observed.problem is not None:
        raise CannotHoist(observed.problem[2])
    code = {call.body.__code__: call.body.__globals__, **observed.code}
    names = {name for one in code for name in attributes_read(one)}
    roots = [
        (name, value)
        for name, value, structure in zip(
            region.parameters, call.values, call.structures, strict=True
        )
        for name, value in _fixed_values(name, structure)
    ]
    found: list[Names] = []
    assigned = set(region.results)
    for one, held in code.items():
        check_code(one, {**held, **dict(zip(region.parameters, call.values, strict=True))})
        read = list(dict.fromkeys(globals_read(one)))
        if one is not call.body.__code__:
            shared = sorted(assigned & {*read, *one.co_freevars})
            if shared:
                raise CannotHoist(f"{one.co_name} reads {shared[0]}, which the step assigns")
        found.append(Names("", held, read))
        roots += [(name, held[name]) for name in read if name in held and name != HOOK]
        roots += [(one.co_name, f) for f in functions_of(one) if one is not call.body.__code__]
    guards = Guards(roots, names, every=bool(_BY_NAME & {n for g in found for n in g.names}))
    _check_losses(guards, lines_with_losses, (path, region), code)
    return Reads(
        structures=call.structures, guards=guards, globals=found, code=code, settings=_settings()
    )


def _settings() -> tuple[Any, ...]:
    """Return the settings of Keras that layers read when they are called."""
    config = keras.config
    return config.floatx(), config.epsilon(), config.image_data_format()


def _check_losses(
    guards: Guards,
    reads: Sequence[tuple[str, int]],
    step: tuple[str, Region],
    code: Iterable[CodeType],
) -> None:
    """Check that losses that layers have added are read within the step alone.

    They are tensors that the layers keep until their next call.
    """
    if not guards.has_added_losses:
        return
    spans = [(step[0], step[1].first, step[1].last)]
    for one in code:
        last = max((line or 0 for *_, line in one.co_lines()), default=0)
        spans.append((one.co_filename, one.co_firstlineno, last))
    for path, line in reads:
        if not any(path == file and first <= line <= last for file, first, last in spans):
            raise CannotHoist(f"its layers add losses, which line {line} reads later")


def _fixed_values(name: str, structure: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(structure, Fixed):
        yield name, structure.value
    elif isinstance(structure, Nest):
        for part in structure.parts:
            yield from _fixed_values(name, part)


def check_shown(region: Region, values: Sequence[Any]) -> None:
    """Check that what is shown behind a step is not what the step changes."""
    if not region.shown:
        return
    for name, value in zip((*region.parameters, *region.outside_shown), values, strict=True):
        if name not in region.shown or isinstance(value, _CONSTANT):
            continue
        raise CannotHoist(f"it shows {name}, a {type(value).__name__}, which may change")


def check_arrays(region: Region, values: Sequence[Any]) -> None:
    """Check that arrays are used only in ways in which NumPy and TensorFlow agree.

    NumPy computes small integers in other types than TensorFlow.
    """
    for name, value in zip(region.parameters, values, strict=True):
        is_array = isinstance(value, np.ndarray) and name in region.in_arithmetic
        if is_array and value.dtype not in (np.float32, np.float64, np.int32, np.int64, np.bool_):
            raise CannotHoist(f"it computes with {name}, an array of {value.dtype} of NumPy")
