"""The values of Python that a step reads: kept when it is traced, compared before each call.

What is read is found by walking from the objects that the step is given and the globals that its
code names, along attributes, items and closures. Everything found is compared at each call, by
identity first, all at once; a number that changes means another trace. The same comparison after
a trace tells whether the step itself changes objects of Python.
"""

from __future__ import annotations

import collections
import contextlib
import enum
import functools
import inspect
import operator
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from evener._tf_private.tensors import unwrapped
from evener.run.hoisted_code import is_followed
from evener.run.hoisted_values import PLAIN, CannotHoist, same

MISSING = object()
"""The value of an attribute, or a name, that is not there."""

# What Keras and TensorFlow keep beside what a layer computes, or renew without a change of meaning.
INTERNAL = frozenset(
    (
        *("_tracker", "_lock", "_losses", "_loss_ids", "_losses_override", "_called"),
        *("train_function", "test_function", "predict_function", "stop_training", "_thread_local"),
        *("_distribute_strategy", "_inbound_nodes", "_outbound_nodes", "_auto_config", "history"),
        *("_metrics_tracker", "_parent_path", "_eval_epoch_iterator", "_compile_config"),
        *("_self_unconditional_checkpoint_dependencies", "_self_unconditional_dependency_names"),
        *("_unconditional_checkpoint_dependencies", "_unconditional_dependency_names"),
        *("_self_saveable_object_factories", "_self_update_uid", "_self_name_based_restores"),
        *("_tf_trackable_method", "_pending_dependencies", "_obj_reference_counts_dict"),
        # For saving alone.
        *("_tracked", "_build_shapes_dict", "_self_unconditional_deferred_dependencies"),
    )
)
"""Attributes that are not compared."""


class Check:
    """Something that is compared."""

    def __init__(self, path: str, holder: Any) -> None:
        self.path = path
        self.holder = holder
        self.was_renewed = False
        self._before = self._now()

    def holds(self) -> bool:
        """Return whether the values mean the same as before."""
        now = self._now()
        before = self._before
        if len(now) != len(before):
            return False
        if all(map(operator.is_, now, before)):
            return True
        if not all(map(same, before, now)):
            return False
        self._before, self.was_renewed = now, True
        return True

    def restore(self) -> None:
        """Put back what was there, if it can be changed."""

    def _now(self) -> Sequence[Any]:
        raise NotImplementedError


class NamedValues(Check):
    """Values by name: attributes of an object, a class or a module; globals that code reads."""

    def __init__(
        self, path: str, holder: Any, names: Sequence[str], *, every: bool = False
    ) -> None:
        self.names = tuple(dict.fromkeys(names))
        self.every = every
        self.has_names = isinstance(holder, Mapping)
        self._path_of_holder = path
        super().__init__(path, holder)

    @property
    def present(self) -> dict[str, Any]:
        pairs = zip(self.names, self._before, strict=False)
        return {name: value for name, value in pairs if value is not MISSING}

    def _now(self) -> Sequence[Any]:
        held = self.holder
        if not self.has_names:
            return [getattr(held, name, MISSING) for name in self.names]
        found = [held.get(name, MISSING) for name in self.names]
        if self.every:
            found.append(sum(name not in INTERNAL for name in held))
        return found

    def holds(self) -> bool:
        """Return whether the values are the same, and name one that is not."""
        if super().holds():
            return True
        for name, old, new in zip(self.names, self._before, self._now(), strict=False):
            if not same(old, new):
                self.path = f"{self._path_of_holder}.{name}".lstrip(".")
                break
        return False

    def restore(self) -> None:
        if not isinstance(self.holder, dict):
            return
        for name, value in zip(self.names, self._before, strict=False):
            if value is MISSING:
                self.holder.pop(name, None)
            elif self.holder.get(name, MISSING) is not value:
                self.holder[name] = value


class _Slots:
    """An object whose dictionary is not looked into."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def __getattr__(self, name: str) -> Any:
        return getattr(self._value, name)


class Cell(Check):
    """A variable of a function around."""

    def _now(self) -> Sequence[Any]:
        try:
            return [self.holder.cell_contents]
        except ValueError:
            return []

    def restore(self) -> None:
        if self._before:
            self.holder.cell_contents = self._before[0]


class List(Check):
    """The items of a list or deque."""

    def _now(self) -> Sequence[Any]:
        return list(self.holder)

    def restore(self) -> None:
        if isinstance(self.holder, list):
            list.__setitem__(self.holder, slice(None), list(self._before))
        else:
            self.holder.clear()
            self.holder.extend(self._before)


class Dictionary(Check):
    """The keys and values of a dictionary, in their order."""

    def _now(self) -> Sequence[Any]:
        return [*dict.keys(self.holder), *dict.values(self.holder)]

    def restore(self) -> None:
        count = len(self._before) // 2
        dict.clear(self.holder)
        dict.update(self.holder, zip(self._before[:count], self._before[count:], strict=True))


class Set(Check):
    def _now(self) -> Sequence[Any]:
        return sorted(self.holder, key=id)

    def holds(self) -> bool:
        """Return whether the elements are the same: equal ones of the same type."""
        if len(self.holder) == len(self._before) and super().holds():
            return True
        return _typed(self.holder) == _typed(self._before)

    def restore(self) -> None:
        if isinstance(self.holder, set):
            set.clear(self.holder)
            set.update(self.holder, self._before)


class Array(Check):
    def _now(self) -> Sequence[Any]:
        return [self.holder.copy()]

    def holds(self) -> bool:
        """Return whether the numbers are the same, to the bit."""
        before = self._before[0]
        holder = self.holder
        return holder.shape == before.shape and holder.tobytes() == before.tobytes()

    def restore(self) -> None:
        if not self.holds():
            self.holder[...] = self._before[0]


def _typed(elements: Any) -> set[tuple[type, Any]]:
    return {(type(element), element) for element in elements}


_CALL: Any = operator.call
_ARE_DISJOINT: Callable[[Any, Any], bool] = type({}.keys()).isdisjoint


class Identities:
    """The identities of what some checks compare, at the moment at which this is made."""

    def __init__(self, checks: Sequence[Check]) -> None:
        self.others: list[Check] = []
        self._collections: list[Any] = []
        self._dictionaries: list[Any] = []
        self._getters: list[Callable[[Any], tuple[Any, ...]]] = []
        self._named: list[Any] = []
        self._absent: list[tuple[Any, frozenset[str]]] = []
        self._sized: list[Any] = []
        for check in checks:
            if isinstance(check, List | Set | Dictionary):
                is_dictionary = isinstance(check, Dictionary)
                (self._dictionaries if is_dictionary else self._collections).append(check.holder)
                self._sized.append(check.holder)
            elif isinstance(check, NamedValues) and check.has_names:
                present = tuple(check.present)
                if present:
                    # Of one name alone it would return the value, not a tuple.
                    names = present if len(present) > 1 else present * 2
                    self._getters.append(operator.itemgetter(*names))
                    self._named.append(check.holder)
                absent = frozenset(check.names).difference(present)
                if check.every:
                    self._sized.append(check.holder)
                elif absent:
                    self._absent.append((check.holder, absent))
            else:
                self.others.append(check)
        self._lengths = list(map(len, self._sized))
        self._items = list(self._now())

    def hold(self) -> bool:
        if list(map(len, self._sized)) != self._lengths:
            return False
        if not all(_ARE_DISJOINT(held.keys(), names) for held, names in self._absent):
            return False
        try:
            return all(map(operator.is_, self._now(), self._items))
        except KeyError:
            return False

    def _now(self) -> Iterator[Any]:
        return chain(
            chain.from_iterable(self._collections),
            chain.from_iterable(map(dict.__iter__, self._dictionaries)),
            chain.from_iterable(map(dict.values, self._dictionaries)),
            chain.from_iterable(map(_CALL, self._getters, self._named)),
        )


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
    def __init__(
        self, roots: Iterable[tuple[str, Any]], names: Iterable[str], *, every: bool = False
    ) -> None:
        self._names = frozenset(names)
        self._every = every
        self.seen: dict[int, Any] = {}  # All objects that were found, by their ids
        self._checks: list[Check] = []
        # Not recursive: models are nested deeply.
        waiting = collections.deque((value, path, True) for path, value in roots)
        while waiting:
            value, path, is_named = waiting.popleft()
            value = unwrapped(value)
            if isinstance(value, _ATOMS) or id(value) in self.seen:
                continue
            self.seen[id(value)] = value
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
    def has_added_losses(self) -> bool:
        layers = (layer for layer in self.seen.values() if isinstance(layer, keras.Layer))
        return any(getattr(layer, "_losses", None) for layer in layers)

    def changed(self) -> str | None:
        if self._identities.hold():
            return _first_changed((*self._identities.others, *self._unstable))
        changed = _first_changed(self._checks)
        if changed is None:
            # Equal values that are made anew are compared one by one from now on.
            self._num_made += 1
            is_stable = self._num_made < _MOST_MADE
            renewed = [c for c in self._stable if c.was_renewed or not is_stable]
            self._stable = [c for c in self._stable if is_stable and not c.was_renewed]
            self._unstable += renewed
            self._identities = Identities(self._stable)
        return changed

    def restore(self) -> None:
        for check in self._checks:
            check.restore()

    def _look_into(self, value: Any, path: str) -> list[tuple[Any, str, bool]] | None:
        """Add the checks of an object, and return what is in it; None if that cannot be known."""
        kind = type(value)
        if isinstance(value, keras.Variable):
            self._add_names(path, vars(value), ["_trainable", "_value", "_dtype"])
            return []
        if isinstance(value, tf.Tensor):
            # The numbers of an eager one never change.
            return None if tf.is_symbolic_tensor(value) and "numpy" in self._names else []
        if isinstance(value, np.ndarray):
            if value.nbytes > _LARGEST_ARRAY or value.dtype.hasobject:
                return None
            self._checks.append(Array(path, value))
            return []
        if isinstance(value, types.ModuleType):
            if not is_followed(getattr(value, "__file__", None) or "<built in>"):
                return []
            names = self._add_names(path, vars(value))
            return [(vars(value)[name], f"{path}.{name}", True) for name in names]
        if isinstance(value, type):
            found: list[tuple[Any, str, bool]] = []
            for held in (vars(base) for base in value.__mro__ if is_followed(file_of(base))):
                names = self._add_names(path, held)
                inner = ((held[name], f"{path}.{name}", False) for name in names)
                found += [each for each in inner if not isinstance(each[0], types.FunctionType)]
            return found
        if isinstance(value, types.FunctionType):
            if not is_followed(value.__code__.co_filename):
                return []
            self._add_names(path, _Slots(value), ["__code__", "__defaults__", "__kwdefaults__"])
            found = [(value.__defaults__, path, True), (value.__kwdefaults__, path, True)]
            for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
                with contextlib.suppress(ValueError):  # nothing is assigned to it yet
                    found.append((cell.cell_contents, name, True))
                    self._checks.append(Cell(name, cell))
            return found
        if isinstance(value, types.MethodType):
            return [(value.__self__, path, True), (value.__func__, path, True)]
        if isinstance(value, functools.partial):
            return [(part, path, True) for part in (value.func, value.args, value.keywords)]
        if isinstance(value, list | tuple | dict | set | frozenset | collections.deque):
            return self._container(value, path)
        if hasattr(value, "python_function"):
            return [(value.python_function, path, True)]
        is_own = kind is types.SimpleNamespace or is_followed(file_of(kind))
        if is_own or isinstance(value, _instances_that_are_known()):
            return self._instance(value, path, is_own=is_own)
        return None

    def _add_names(
        self, path: str, holder: Any, names: list[str] | None = None, *, every: bool = False
    ) -> list[str]:
        """Compare values by name; by default those of a namespace that code names."""
        if names is None:
            names = [name for name in sorted(self._names) if name in holder]
        self._checks.append(NamedValues(path, holder, names, every=every))
        return names

    def _container(self, value: Any, path: str) -> list[tuple[Any, str, bool]] | None:
        if len(value) > _LARGEST_LIST:
            return None
        if isinstance(value, dict):
            self._checks.append(Dictionary(path, value))
            return [(item, f"{path}[{key!r}]", True) for key, item in dict.items(value)]
        if isinstance(value, set | frozenset):
            self._checks.append(Set(path, value))
            return [(element, f"an element of {path}", True) for element in value]
        if not isinstance(value, tuple):
            self._checks.append(List(path, value))
        return [(element, f"{path}[{index}]", True) for index, element in enumerate(value)]

    def _instance(self, value: Any, path: str, *, is_own: bool) -> list[tuple[Any, str, bool]]:
        held = getattr(value, "__dict__", {})
        known = isinstance(value, _instances_that_are_known())
        every = known or self._every
        names = [name for name in held if name not in INTERNAL] if every else list(self._names)
        if hasattr(value, "__dict__"):
            self._add_names(path, vars(value), names, every=every)
        slots = [name for base in type(value).__mro__ for name in _slots_of(base)]
        apart = [name for name in slots if known or name in self._names]
        if apart:
            self._add_names(path, _Slots(value), apart)
        contents = {name: held[name] for name in names if name in held}
        contents |= {name: getattr(value, name) for name in apart if hasattr(value, name)}
        is_open = is_own and self._every
        found = [
            (content, f"{path}.{name}", name in self._names or (is_open and name[0] != "_"))
            for name, content in contents.items()
        ]
        if is_own:
            found.append((type(value), f"type({path})", False))
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
def file_of(kind: type) -> str:
    module = sys.modules.get(kind.__module__)
    return getattr(module, "__file__", None) or f"<{kind.__module__}>"


def _slots_of(kind: type) -> Iterable[str]:
    slots = vars(kind).get("__slots__", ())
    slots = (slots,) if isinstance(slots, str) else slots
    return [name for name in slots if name not in ("__dict__", "__weakref__")]
