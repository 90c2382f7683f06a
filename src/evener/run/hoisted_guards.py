"""The code that a step runs and calls, and the values of Python that it reads.

Code is observed while a step runs as it is written. Code of the program, and of packages that are
not known here, is followed into its functions: what it calls is judged, and the globals and
attributes that it names are read. TensorFlow, Keras, NumPy and some modules of Python are known:
what they do beside computing is listed here.

Values are found by walking from the objects that the step is given and the globals that its code
names, along attributes, items and closures. Everything found is compared at each call, by
identity first, all at once; a number that changes means another trace. The same comparison after
a trace tells whether the step itself changes objects of Python.
"""

from __future__ import annotations

import builtins
import collections
import contextlib
import dis
import enum
import functools
import gc
import inspect
import operator
import os
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from evener._tf_private.random_numbers import operation_seeds, set_operation_seeds
from evener._tf_private.tensors import unwrapped
from evener.run.hoisted_values import PLAIN, CannotHoist, same
from evener.run.regions import NOT_FOLLOWED

_KNOWN_PACKAGES = (
    *("tensorflow", "keras", "numpy", "ml_dtypes", "optree", "wrapt", "evener"),
    # What these call for themselves.
    *("typing_extensions.py", "absl", "google", "six.py", "opt_einsum", "h5py", "namex"),
    *("packaging", "gast", "astunparse", "termcolor", "rich", "tf_keras"),
)
_KNOWN_MODULES = (
    *("functools", "contextlib", "enum", "typing", "dataclasses", "abc", "copy", "types", "re"),
    *("collections", "operator", "weakref", "inspect", "string", "numbers", "_collections_abc"),
    *("importlib", "_weakrefset", "heapq", "bisect", "fractions", "statistics", "warnings"),
)
# Parts of known packages that do more than compute: a part of the path, or a function in it.
_ELSEWHERE = {
    "/tf_keras/": f"it calls {NOT_FOLLOWED}",
    "/trainers/": "it trains or evaluates a model",
    "/backend/tensorflow/trainer.py": "it trains or evaluates a model",
    "/saving/": "it saves or loads",
    "/callbacks/": "it calls callbacks",
    "/lib/io/": "it reads or writes files",
    "/summary": "it writes a summary",
    "/_npyio": "it reads or writes files",
    "/npyio": "it reads or writes files",
    "/checkpoint/checkpoint.py": "it saves or loads",
    "/saved_model/": "it saves or loads",
    "/framework/config.py": "it depends on settings of TensorFlow",
    "/utils/progbar.py": "it prints",
    "/utils/io_utils.py": "it prints",
    "/utils/summary_utils.py": "it prints",
    "/absl/": "it writes a log",
    "/rich/": "it prints",
    "/script_ops.py": "it calls Python from a graph",
}
_DIFFERENT = {
    "executing_eagerly": "it asks whether TensorFlow runs eagerly",
    "executing_eagerly_outside_functions": "it asks whether TensorFlow runs eagerly",
    "inside_function": "it asks whether TensorFlow runs eagerly",
    "is_symbolic_tensor": "it asks whether a tensor has a value",
    "get_static_value": "it asks whether a tensor has a value",
    "constant_value": "it asks whether a tensor has a value",
    "summary": "it prints",
}
_SEEDS_OF_DRAWS = str(Path("framework", "random_seed.py"))
_GENERATOR = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_PURE_BUILTINS = frozenset(
    (
        *("abs", "all", "any", "ascii", "bin", "callable", "chr", "divmod", "format", "getattr"),
        *("hasattr", "hash", "hex", "isinstance", "issubclass", "iter", "len", "max", "min", "oct"),
        *("ord", "pow", "repr", "round", "sorted", "sum", "__build_class__", "setattr", "next"),
        *("aiter", "id", "delattr"),
    )
)
# setattr and next change objects that are guarded; `id` is refused in the text.
_PURE_TYPES = (
    *(list, dict, str, bytes, tuple, set, frozenset, int, float, complex, bool, slice, range),
    *(type, object, super, property, types.MappingProxyType),
)
_PURE_MODULES = ("math", "cmath", "_operator", "itertools", "_functools", "_collections", "numpy")


_STANDARD = sysconfig.get_paths()["stdlib"] + os.sep
_INSTALLED = tuple(
    str(folder) + os.sep
    for folder in (
        *(Path(module.__file__ or "").parent for module in (np, keras, tf)),
        *(sysconfig.get_paths()[key] for key in ("purelib", "platlib")),
        Path(__file__).parents[1],
    )
)


@functools.cache
def is_followed(filename: str) -> bool:
    """Return whether code of a file is followed: the program's, or that of an unknown package."""
    if filename.startswith("<"):
        return False
    path = Path(filename)
    if any(part in _KNOWN_PACKAGES for part in path.parts) and (
        filename.startswith(_INSTALLED) or "site-packages" in filename
    ):
        return False
    if filename.startswith(_STANDARD):
        return path.relative_to(_STANDARD).parts[0].removesuffix(".py") not in _KNOWN_MODULES
    return True


def _is_asked_by_library(frame: types.FrameType) -> bool:
    """Return whether code of Python's own library runs because a known package calls it."""
    caller: types.FrameType | None = frame
    while caller is not None and caller.f_code.co_filename.startswith(_STANDARD):
        caller = caller.f_back
    return caller is not frame and caller is not None and not is_followed(caller.f_code.co_filename)


class Observed:
    """The code that was run, and the first line that prevents hoisting."""

    def __init__(self, path: str = "", left_out: Sequence[tuple[int, int]] = ()) -> None:
        self._path = path
        self._left_out = left_out
        self.code: dict[types.CodeType, dict[str, Any]] = {}
        self.problem: tuple[str, int, str] | None = None
        self.num_draws = 0

    def __enter__(self) -> Observed:
        # Finalizers and callbacks of the collector run anywhere: they are no part of the code.
        self._collects = gc.isenabled()
        gc.disable()
        self._before = sys.getprofile()
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(self._before)
        if self._collects:
            gc.enable()

    def _see(self, frame: types.FrameType, event: str, argument: Any) -> None:
        if event == "call":
            self._see_call(frame)
        elif event == "c_call":
            if is_followed(frame.f_code.co_filename) and not _is_asked_by_library(frame):
                reason = _reason_of_builtin(argument)
            else:
                reason = "it prints" if argument is builtins.print else None
            self._blame(frame, reason)

    def _see_call(self, frame: types.FrameType) -> None:
        code = frame.f_code
        if is_followed(code.co_filename):
            if _is_asked_by_library(frame):
                return
            self.code.setdefault(code, frame.f_globals)
            if code.co_flags & _GENERATOR and code.co_name != "<genexpr>":
                self._blame(frame, "it is a generator")
        elif frame.f_back is not None and is_followed(frame.f_back.f_code.co_filename):
            path = code.co_filename.replace(os.sep, "/")
            elsewhere = (reason for part, reason in _ELSEWHERE.items() if part in path)
            self._blame(frame.f_back, _DIFFERENT.get(code.co_name) or next(elsewhere, None))
        is_seed = code.co_name == "get_seed" and code.co_filename.endswith(_SEEDS_OF_DRAWS)
        if is_seed and tf.executing_eagerly():  # and not where Keras asks for the shapes of a layer
            self.num_draws += frame.f_locals["op_seed"] is None

    def _blame(self, frame: types.FrameType, reason: str | None) -> None:
        if self.problem is None and reason is not None:
            line: types.FrameType | None = frame
            while line is not None and not is_followed(line.f_code.co_filename):
                line = line.f_back
            if line is None:
                return
            path, number = line.f_code.co_filename, line.f_lineno
            is_left_out = any(first <= number <= last for first, last in self._left_out)
            if path != self._path or not is_left_out:
                self.problem = (path, number, reason)


def _reason_of_builtin(function: Any) -> str | None:
    owner = getattr(function, "__self__", None)
    name = getattr(function, "__name__", str(function))
    module = getattr(function, "__module__", None)
    if module == "builtins":
        return None if name in _PURE_BUILTINS else f"it calls {name}()"
    if isinstance(owner, types.ModuleType) or module is not None:
        if (module or "").split(".")[0] in _PURE_MODULES and "random" not in (module or ""):
            return None
        return f"it calls {module}.{name}()"
    kind: type = owner if isinstance(owner, type) else type(owner)
    if issubclass(kind, _PURE_TYPES) and kind.__module__ in ("builtins", "collections", "enum"):
        return None
    if isinstance(owner, np.ndarray | np.generic | np.ufunc):
        return None
    if owner is None:
        kind = getattr(function, "__objclass__", kind)
    # A class of Python may inherit it from one that is not.
    bases = inspect.getmro(kind)
    maker = next((base for base in bases if name in vars(base)), kind)
    if maker in _PURE_TYPES or maker.__module__.split(".")[0] in ("tensorflow", "keras"):
        return None
    return f"it calls {maker.__module__}.{maker.__qualname__}.{name}()"


def names_read(
    code: types.CodeType, held: Mapping[str, Any]
) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the attributes and the globals that code reads, in functions within it too.

    It may assign no global, import nothing, and not draw from `numpy.random`.
    """
    attributes, names, before = set[str](), dict[str, None](), None
    for part in _codes_in(code):
        # `getattr(self, "rate")`, `vars(self)["rate"]`.
        texts = (constant for constant in part.co_consts if isinstance(constant, str))
        attributes.update(word for text in texts for word in text.split(".") if word.isidentifier())
        for instruction in dis.get_instructions(part):
            kind, name = instruction.opname, instruction.argval
            if kind in ("LOAD_ATTR", "LOAD_METHOD") and name == "random":
                draws = before is not None and held.get(before.argval) is np
            else:
                draws = isinstance(name, str) and held.get(name) is np.random
            if draws:
                raise CannotHoist(f"{code.co_name} draws from numpy.random")
            before = instruction
            if kind in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                raise CannotHoist(f"{code.co_name} assigns the global {name}")
            if kind == "IMPORT_NAME":
                raise CannotHoist(f"{code.co_name} imports a module")
            if kind in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "STORE_ATTR"):
                attributes.add(name)
            elif kind in ("LOAD_GLOBAL", "LOAD_NAME"):
                names[name] = None
    return frozenset(attributes), tuple(names)


def _codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield code, and the code of functions within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes_in(constant)


def keep_operation_seeds() -> Callable[[], None]:
    """Return what puts back the state from which TensorFlow seeds eager random operations."""
    # Those of `random` and `numpy.random` are left alone: what draws from them is not hoisted, and
    # threads that prepare data may draw at the same time.
    return partial(set_operation_seeds, operation_seeds())


# The values.

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
    """Values by name: attributes of an object, or what a namespace has, such as globals."""

    def __init__(
        self, path: str, holder: Any, names: Sequence[str], *, every: bool = False
    ) -> None:
        self.names = tuple(dict.fromkeys(names))
        self.every = every
        self.has_names = isinstance(holder, dict | types.MappingProxyType)
        self._path_of_holder = path
        super().__init__(path, holder)

    @property
    def present(self) -> tuple[str, ...]:
        pairs = zip(self.names, self._before, strict=False)
        return tuple(name for name, value in pairs if value is not MISSING)

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
        now, before = ({(type(each), each) for each in s} for s in (self.holder, self._before))
        return now == before

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


_ARE_DISJOINT: Callable[[Any, Any], bool] = type({}.keys()).isdisjoint


class Identities:
    """The identities of what some checks compare, at the moment at which this is made."""

    def __init__(self, checks: Sequence[Check]) -> None:
        self.others: list[Check] = []
        self._reads: list[Callable[[], Iterable[Any]]] = []
        self._absent: list[tuple[Any, frozenset[str]]] = []
        self._sized: list[Any] = []
        for check in checks:
            held = check.holder
            if isinstance(check, List | Set):
                self._reads.append(held.__iter__)
                self._sized.append(held)
            elif isinstance(check, Dictionary):
                self._reads += [partial(dict.__iter__, held), partial(dict.values, held)]
                self._sized.append(held)
            elif isinstance(check, NamedValues) and check.has_names:
                present = check.present
                if present:
                    # Of one name alone it would return the value, not a tuple.
                    names = present if len(present) > 1 else present * 2
                    self._reads.append(partial(operator.itemgetter(*names), held))
                absent = frozenset(check.names).difference(present)
                if check.every:
                    self._sized.append(held)
                elif absent:
                    self._absent.append((held, absent))
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
        return chain.from_iterable(read() for read in self._reads)


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
            self._add_names(path, value, ["__code__", "__defaults__", "__kwdefaults__"])
            found = [(value.__defaults__, path, True), (value.__kwdefaults__, path, True)]
            for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
                with contextlib.suppress(ValueError):  # nothing is assigned to it yet
                    found.append((cell.cell_contents, name, True))
                    self._checks.append(Cell(name, cell))
            return found
        if isinstance(value, types.MethodType):
            return [(value.__self__, path, True), (value.__func__, path, True)]
        if isinstance(value, partial):
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
            self._add_names(path, value, apart)
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
