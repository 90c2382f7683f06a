"""The values of Python that a step reads: kept when it is traced, compared before each call.

What is read is found by walking from the objects that the step is given and the globals that its
code names, along attributes, items and closures. Everything found is compared at each call, by
identity first, which takes nanoseconds; a number that changes means another trace. The same
comparison after a trace tells whether the step itself changes objects of Python.
"""

from __future__ import annotations

import collections
import enum
import functools
import inspect
import operator
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from evener import _tf_private
from evener.launch.hoisting.code import is_followed
from evener.launch.hoisting.values import PLAIN, CannotHoist, same

_LARGEST_ARRAY = 1 << 20
_LARGEST_LIST = 10_000
_MISSING = object()
# What Keras and TensorFlow keep beside what a layer computes, or renew without a change of meaning.
_INTERNAL = frozenset(
    (
        *("_tracker", "_lock", "_losses", "_loss_ids", "_losses_override", "_called"),
        *("train_function", "test_function", "predict_function", "stop_training", "_thread_local"),
        *("_distribute_strategy", "_inbound_nodes", "_outbound_nodes", "_auto_config", "history"),
        *("_metrics_tracker", "_parent_path", "_eval_epoch_iterator", "_compile_config"),
        *("_self_unconditional_checkpoint_dependencies", "_self_unconditional_dependency_names"),
        *("_unconditional_checkpoint_dependencies", "_unconditional_dependency_names"),
        *("_self_saveable_object_factories", "_self_update_uid", "_self_name_based_restores"),
        *("_tf_trackable_method", "_pending_dependencies", "_obj_reference_counts_dict"),
    )
)
_ATOMS = (
    *(*PLAIN, np.generic, np.dtype, tf.DType, tf.TensorShape, tf.TypeSpec, enum.Enum, range, slice),
    *(types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType),
    *(tf.Variable, np.ufunc, inspect.Signature, inspect.Parameter, types.GenericAlias),
    *(type(Ellipsis), type(NotImplemented)),
)


class Guards:
    """What a step reads.

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
        self._checks: list[_Check] = []
        # Not recursive: models are nested deeply.
        waiting = collections.deque((value, path, True) for path, value in roots)
        while waiting:
            value, path, is_named = waiting.popleft()
            value = _tf_private.unwrapped(value)
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

    @property
    def known(self) -> set[int]:
        """The ids of all objects that were found."""
        return set(self._seen)

    @property
    def has_added_losses(self) -> bool:
        """Whether layers keep losses that they added in their last call."""
        layers = (one for one in self._seen.values() if isinstance(one, keras.Layer))
        return any(getattr(one, "_losses", None) for one in layers)

    def changed(self) -> str | None:
        """Return what is another value than before, or None."""
        for check in self._checks:
            if not check.holds():
                return check.path
        return None

    def restore(self) -> None:
        """Put back what is in lists, dictionaries, sets and objects."""
        for check in self._checks:
            check.restore()

    def _look_into(self, value: Any, path: str) -> list[tuple[Any, str, bool]] | None:
        """Add the checks of an object, and return what is in it; None if that cannot be known."""
        kind = type(value)
        if isinstance(value, keras.Variable):
            self._add(_Attributes(path, value, ["_trainable", "_value", "_dtype"]))
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
            return [(one, path, True) for one in (value.func, value.args, value.keywords)]
        if isinstance(value, list | tuple | dict | set | frozenset | collections.deque):
            return self._container(value, path)
        if hasattr(value, "python_function"):
            return [(value.python_function, path, True)]
        if isinstance(value, _instances_that_are_known()) or is_followed(_file_of(kind)):
            return self._instance(value, path)
        return None

    def _add(self, check: _Check) -> None:
        self._checks.append(check)

    def _array(self, value: np.ndarray, path: str) -> list[Any] | None:
        if value.nbytes > _LARGEST_ARRAY or value.dtype.hasobject:
            return None
        self._add(_Array(path, value))
        return []

    def _module(self, value: types.ModuleType, path: str) -> list[Any]:
        if not is_followed(getattr(value, "__file__", None) or "<built in>"):
            return []
        names = [name for name in sorted(self._names) if name in vars(value)]
        self._add(_Attributes(path, value, names))
        return [(vars(value)[name], f"{path}.{name}", True) for name in names]

    def _class(self, value: type, path: str) -> list[Any]:
        found: list[Any] = []
        for base in value.__mro__:
            if not is_followed(_file_of(base)):
                continue
            names = [name for name in sorted(self._names) if name in vars(base)]
            self._add(_Attributes(path, base, names))
            found += [
                (vars(base)[name], f"{path}.{name}", False)
                for name in names
                if not isinstance(vars(base)[name], types.FunctionType)
            ]
        return found

    def _function(self, value: types.FunctionType, path: str) -> list[Any]:
        if not is_followed(value.__code__.co_filename):
            return []
        self._add(_Attributes(path, value, ["__code__", "__defaults__", "__kwdefaults__"]))
        found = [(value.__defaults__, path, True), (value.__kwdefaults__, path, True)]
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            try:
                content = cell.cell_contents
            except ValueError:
                continue
            self._add(_Cell(name, cell))
            found.append((content, name, True))
        return found

    def _container(self, value: Any, path: str) -> list[Any] | None:
        if len(value) > _LARGEST_LIST:
            return None
        if isinstance(value, dict):
            self._add(_Dictionary(path, value))
            return [(one, f"{path}[{key!r}]", True) for key, one in dict.items(value)]
        if isinstance(value, set | frozenset):
            self._add(_Set(path, value))
            return [(one, f"an element of {path}", True) for one in value]
        if not isinstance(value, tuple):
            self._add(_List(path, value))
        return [(one, f"{path}[{index}]", True) for index, one in enumerate(value)]

    def _instance(self, value: Any, path: str) -> list[Any]:
        found: list[Any] = []
        held = getattr(value, "__dict__", {})
        is_own = is_followed(_file_of(type(value)))
        known = isinstance(value, _instances_that_are_known())
        all_names = [name for name in held if name not in _INTERNAL]
        names = all_names if known or self._every else list(self._names)
        if held or is_own:
            self._add(_Attributes(path, value, names, every=known or self._every))
        slots = [
            name
            for base in type(value).__mro__
            for name in _slots_of(base)
            if known or name in self._names
        ]
        if slots:
            self._add(_Attributes(path, value, slots))
        for name in dict.fromkeys([*names, *slots]):
            content = held.get(name, _MISSING)
            content = getattr(value, name, _MISSING) if name in slots else content
            if content is not _MISSING:
                is_open = is_own and self._every and not name.startswith("_")
                is_named = name in self._names or is_open
                found.append((content, f"{path}.{name}", is_named))
        if is_own:
            found.append((type(value), f"type({path})", False))
        if isinstance(value, dict | list):
            found += self._container(value, path) or []
        return found


class _Check:
    """Something that is compared.

    Args:
        path: Its name, as the program would write it.
        holder: The object that holds the values.
    """

    def __init__(self, path: str, holder: Any) -> None:
        self.path = path
        self._holder = holder
        self._before = self._now()

    def holds(self) -> bool:
        now = self._now()
        before = self._before
        if len(now) == len(before) and all(map(operator.is_, now, before)):
            return True
        if len(now) == len(before) and all(map(same, before, now)):
            self._before = now
            return True
        return False

    def restore(self) -> None:
        """Put back what was there, if it can be changed."""

    def _now(self) -> Sequence[Any]:
        raise NotImplementedError


class _Attributes(_Check):
    """Attributes of an object, a class, a module or a function.

    Args:
        path: Its name.
        holder: The object.
        names: The names of the attributes; the value of one that is not there is a mark.
        every: Whether other attributes that come are a change too.
    """

    def __init__(
        self, path: str, holder: Any, names: Sequence[str], *, every: bool = False
    ) -> None:
        self._names = tuple(names)
        self._every = every
        self._path_of_holder = path
        # Functions have their closure and their defaults beside their dictionary.
        is_function = isinstance(holder, types.FunctionType)
        self._held = None if is_function else getattr(holder, "__dict__", None)
        super().__init__(path, holder)
        self._remember()

    def _remember(self) -> None:
        """Keep what the fast comparison needs: the attributes that are there, and how many."""
        self._get: Callable[[Any], tuple[Any, ...]] | None = None
        pairs = [(n, v) for n, v in zip(self._names, self._before, strict=False)]
        present = [(name, value) for name, value in pairs if value is not _MISSING]
        is_dict = type(self._held) is dict
        if is_dict and len(present) > 1 and (self._every or len(present) == len(self._names)):
            self._get = operator.itemgetter(*(name for name, _ in present))
            self._present = tuple(value for _, value in present)
            self._length = len(self._held or ())

    def _now(self) -> Sequence[Any]:
        held = self._held
        if held is None:
            return [getattr(self._holder, name, _MISSING) for name in self._names]
        found = [held.get(name, _MISSING) for name in self._names]
        if self._every:
            found.append(sum(name not in _INTERNAL for name in held))
        return found

    def holds(self) -> bool:
        if self._get is not None and (not self._every or len(self._held or ()) == self._length):
            try:
                if all(map(operator.is_, self._get(self._held), self._present)):
                    return True
            except KeyError:
                pass
        before = self._before
        if super().holds():
            self._remember()
            return True
        for name, old, new in zip(self._names, before, self._now(), strict=False):
            if not same(old, new):
                self.path = f"{self._path_of_holder}.{name}"
                break
        return False

    def restore(self) -> None:
        if not isinstance(self._held, dict):
            return
        for name, value in zip(self._names, self._before, strict=False):
            if value is _MISSING:
                self._held.pop(name, None)
            elif self._held.get(name, _MISSING) is not value:
                self._held[name] = value


class _Cell(_Check):
    """A variable of a function around."""

    def _now(self) -> Sequence[Any]:
        try:
            return [self._holder.cell_contents]
        except ValueError:
            return []

    def restore(self) -> None:
        if self._before:
            self._holder.cell_contents = self._before[0]


class _List(_Check):
    def _now(self) -> Sequence[Any]:
        return list(self._holder)

    def restore(self) -> None:
        if isinstance(self._holder, list):
            list.__setitem__(self._holder, slice(None), list(self._before))
        else:
            self._holder.clear()
            self._holder.extend(self._before)


class _Dictionary(_Check):
    def _now(self) -> Sequence[Any]:
        return [*dict.keys(self._holder), *dict.values(self._holder)]

    def restore(self) -> None:
        count = len(self._before) // 2
        dict.clear(self._holder)
        dict.update(self._holder, zip(self._before[:count], self._before[count:], strict=True))


class _Set(_Check):
    def _now(self) -> Sequence[Any]:
        return sorted(self._holder, key=id)

    def holds(self) -> bool:
        return set(self._holder) == set(self._before)

    def restore(self) -> None:
        if isinstance(self._holder, set):
            set.clear(self._holder)
            set.update(self._holder, self._before)


class _Array(_Check):
    """The numbers of an array."""

    def _now(self) -> Sequence[Any]:
        return [self._holder.copy()]

    def holds(self) -> bool:
        before = self._before[0]
        holder = self._holder
        return holder.shape == before.shape and holder.tobytes() == before.tobytes()

    def restore(self) -> None:
        if not self.holds():
            self._holder[...] = self._before[0]


class Globals(_Check):
    """Globals that code reads, by name."""

    def __init__(self, holder: dict[str, Any], names: Sequence[str]) -> None:
        self.names = tuple(names)
        super().__init__("a global name", holder)

    def _now(self) -> Sequence[Any]:
        return [self._holder.get(name, _MISSING) for name in self.names]

    def holds(self) -> bool:
        """Return whether the values are the same, and keep the name of one that is not."""
        before = self._before
        if super().holds():
            return True
        for name, old, new in zip(self.names, before, self._now(), strict=True):
            if not same(old, new):
                self.path = name
                break
        return False

    def restore(self) -> None:
        """Put back the values of the names."""
        for name, value in zip(self.names, self._before, strict=True):
            if value is not _MISSING:
                self._holder[name] = value


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
