"""The values of Python that a step reads: kept when it is traced, compared before each call.

What is read is found by walking from the objects that the step is given and the globals that its
code names, along attributes, items and closures. Everything found is compared at each call, by
identity first, all at once; a number that changes means another trace. The same comparison after
a trace tells whether the step itself changes objects of Python.
"""

from __future__ import annotations

import collections
import enum
import functools
import inspect
import types
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from evener._tf_private.tensors import unwrapped
from evener.run.hoisting.checks import (
    INTERNAL,
    Array,
    Cell,
    Check,
    Dictionary,
    List,
    Set,
    attributes,
    slots,
)
from evener.run.hoisting.code import is_followed
from evener.run.hoisting.identities import Identities
from evener.run.hoisting.values import PLAIN, CannotHoist

_LARGEST_ARRAY = 1 << 20
_LARGEST_LIST = 10_000
# Identities that differ in every call, though nothing has changed, cost more than they save.
_MOST_MADE = 20
_ATOMS = (
    *(*PLAIN, np.generic, np.dtype, tf.DType, tf.TensorShape, tf.TypeSpec, enum.Enum, range, slice),
    *(types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType),
    *(tf.Variable, np.ufunc, inspect.Signature, inspect.Parameter, types.GenericAlias),
    *(type(Ellipsis), type(NotImplemented)),
)


class Guards:
    """Values of Python that a step reads, with checks that they are still the same.

    Args:
        roots: Names of values, and the values.
        names: Names of attributes that the program's own code reads.
        every: Whether it may read attributes by other names.
    """

    def __init__(
        self, roots: Iterable[tuple[str, Any]], names: Iterable[str], *, every: bool = False
    ) -> None:
        self._names = frozenset(names)
        self._every = every
        self._seen: dict[int, Any] = {}
        self._checks: list[Check] = []
        # Not recursive: models are nested deeply.
        waiting = collections.deque((value, path, True) for path, value in roots)
        while waiting:
            value, path, is_named = waiting.popleft()
            value = unwrapped(value)
            if isinstance(value, _ATOMS) or id(value) in self._seen:
                continue
            self._seen[id(value)] = value
            found = self._look_into(value, path)
            if found is None:
                if is_named:
                    kind = type(value)
                    raise CannotHoist(
                        f"it uses {path}, a {kind.__module__}.{kind.__qualname__}, whose state "
                        "is not known"
                    )
                continue
            # What an unnamed container holds is not named either.
            waiting.extend((inner, name, is_named and named) for inner, name, named in found)
        self._stable, self._unstable = list(self._checks), list[Check]()
        # At once: the checks have just kept the same values.
        self._identities = Identities(self._stable)
        self._num_made = 0

    @property
    def known(self) -> set[int]:
        """The ids of all objects that were found."""
        return set(self._seen)

    @property
    def has_added_losses(self) -> bool:
        """Whether layers keep losses that they added in their last call."""
        layers = (layer for layer in self._seen.values() if isinstance(layer, keras.Layer))
        return any(getattr(layer, "_losses", None) for layer in layers)

    def changed(self) -> str | None:
        """Return what is another value than before, or None."""
        if self._identities.hold():
            return _first_changed((*self._identities.others, *self._unstable))
        changed = _first_changed(self._checks)
        if changed is None:
            # Equal values that are made anew are compared one by one from now on.
            self._num_made += 1
            is_stable = self._num_made < _MOST_MADE
            stays = [is_stable and not check.was_renewed for check in self._stable]
            self._unstable += [check for check, s in zip(self._stable, stays, strict=True) if not s]
            self._stable = [check for check, s in zip(self._stable, stays, strict=True) if s]
            self._identities = Identities(self._stable)
        return changed

    def restore(self) -> None:
        """Put back what is in lists, dictionaries, sets and objects."""
        for check in self._checks:
            check.restore()

    def _look_into(self, value: Any, path: str) -> list[tuple[Any, str, bool]] | None:
        """Add the checks of an object, and return what is in it; None if that cannot be known."""
        kind = type(value)
        if isinstance(value, keras.Variable):
            self._add(attributes(path, value, ["_trainable", "_value", "_dtype"]))
            return []
        if isinstance(value, tf.Tensor):
            if not tf.is_symbolic_tensor(value):
                return []  # its numbers never change
            return None if "numpy" in self._names else []
        if isinstance(value, np.ndarray):
            return self._array(value, path)
        if isinstance(value, types.ModuleType):
            return self._module(value, path)
        if isinstance(value, type):
            return self._class(value, path)
        if isinstance(value, types.FunctionType):
            return self._function(value, path)
        if isinstance(value, types.MethodType):
            return [(value.__self__, path, True), (value.__func__, path, True)]
        if isinstance(value, functools.partial):
            return [(part, path, True) for part in (value.func, value.args, value.keywords)]
        if isinstance(value, list | tuple | dict | set | frozenset | collections.deque):
            return self._container(value, path)
        if hasattr(value, "python_function"):
            return [(value.python_function, path, True)]
        if kind is types.SimpleNamespace or is_followed(_file_of(kind)):
            return self._instance(value, path)
        if isinstance(value, _instances_that_are_known()):
            return self._instance(value, path)
        return None

    def _add(self, check: Check) -> None:
        self._checks.append(check)

    def _array(self, value: np.ndarray, path: str) -> list[Any] | None:
        if value.nbytes > _LARGEST_ARRAY or value.dtype.hasobject:
            return None
        self._add(Array(path, value))
        return []

    def _module(self, value: types.ModuleType, path: str) -> list[Any]:
        if not is_followed(getattr(value, "__file__", None) or "<built in>"):
            return []
        names = [name for name in sorted(self._names) if name in vars(value)]
        self._add(attributes(path, value, names))
        return [(vars(value)[name], f"{path}.{name}", True) for name in names]

    def _class(self, value: type, path: str) -> list[Any]:
        found: list[Any] = []
        for base in value.__mro__:
            if not is_followed(_file_of(base)):
                continue
            names = [name for name in sorted(self._names) if name in vars(base)]
            self._add(attributes(path, base, names))
            found += [
                (vars(base)[name], f"{path}.{name}", False)
                for name in names
                if not isinstance(vars(base)[name], types.FunctionType)
            ]
        return found

    def _function(self, value: types.FunctionType, path: str) -> list[Any]:
        if not is_followed(value.__code__.co_filename):
            return []
        self._add(slots(path, value, ["__code__", "__defaults__", "__kwdefaults__"]))
        found = [(value.__defaults__, path, True), (value.__kwdefaults__, path, True)]
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            try:
                content = cell.cell_contents
            except ValueError:
                continue
            self._add(Cell(name, cell))
            found.append((content, name, True))
        return found

    def _container(self, value: Any, path: str) -> list[Any] | None:
        if len(value) > _LARGEST_LIST:
            return None
        if isinstance(value, dict):
            self._add(Dictionary(path, value))
            return [(item, f"{path}[{key!r}]", True) for key, item in dict.items(value)]
        if isinstance(value, set | frozenset):
            self._add(Set(path, value))
            return [(element, f"an element of {path}", True) for element in value]
        if not isinstance(value, tuple):
            self._add(List(path, value))
        return [(element, f"{path}[{index}]", True) for index, element in enumerate(value)]

    def _instance(self, value: Any, path: str) -> list[Any]:
        held = getattr(value, "__dict__", {})
        is_own = is_followed(_file_of(type(value))) or type(value) is types.SimpleNamespace
        known = isinstance(value, _instances_that_are_known())
        named = [name for name in held if name not in INTERNAL]
        names = named if known or self._every else list(self._names)
        if hasattr(value, "__dict__"):
            self._add(attributes(path, value, names, every=known or self._every))
        apart = [
            name
            for base in type(value).__mro__
            for name in _slots_of(base)
            if known or name in self._names
        ]
        if apart:
            self._add(slots(path, value, apart))
        contents = {name: held[name] for name in names if name in held}
        contents |= {name: getattr(value, name) for name in apart if hasattr(value, name)}
        is_open = is_own and self._every
        found = [
            (content, f"{path}.{name}", name in self._names or (is_open and name[0] != "_"))
            for name, content in contents.items()
        ]
        if is_own:
            found.append((type(value), f"type({path})", False))
        if isinstance(value, dict | list):
            found += self._container(value, path) or []
        return found


def _first_changed(checks: Iterable[Check]) -> str | None:
    return next((check.path for check in checks if not check.holds()), None)


@functools.cache
def _instances_that_are_known() -> tuple[type, ...]:
    """Return the types of the libraries whose attributes say all that their objects compute."""
    return (
        *(keras.Layer, keras.optimizers.Optimizer, keras.losses.Loss, keras.metrics.Metric),
        *(keras.initializers.Initializer, keras.regularizers.Regularizer, keras.DTypePolicy),
        *(keras.constraints.Constraint, keras.optimizers.schedules.LearningRateSchedule),
        *(keras.random.SeedGenerator, tf.Module, tf.random.Generator, keras.Quantizer),
    )


@functools.cache
def _file_of(kind: type) -> str:
    """Return the file that defines a class, or a name in brackets."""
    import sys

    module = sys.modules.get(kind.__module__)
    return getattr(module, "__file__", None) or f"<{kind.__module__}>"


def _slots_of(kind: type) -> Iterable[str]:
    slots = vars(kind).get("__slots__", ())
    slots = (slots,) if isinstance(slots, str) else slots
    return [name for name in slots if name not in ("__dict__", "__weakref__")]
