"""Code that a step runs and calls, observed while it runs as it is written.

Code of the program, and of packages that are not known here, is followed into its functions: what
it calls is judged, and the globals and attributes that it names are read. TensorFlow, Keras, NumPy
and some modules of Python are known: what they do beside computing is listed here.
"""

from __future__ import annotations

import builtins
import dis
import functools
import gc
import inspect
import os
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from evener._tf_private.random_numbers import operation_seeds, set_operation_seeds
from evener.run.eager_steps import NOT_FOLLOWED
from evener.run.hoisted_values import CannotHoist

_KNOWN_PACKAGES = ("tensorflow", "keras", "numpy", "ml_dtypes", "optree", "wrapt", "evener")
# What these call for themselves.
_KNOWN_PACKAGES += (
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


@functools.cache
def is_followed(filename: str) -> bool:
    """Return whether code of a file is followed: the program's, or that of an unknown package."""
    if filename.startswith("<"):
        return False
    path = Path(filename)
    if any(part in _KNOWN_PACKAGES for part in path.parts) and (
        filename.startswith(_installed_folders()) or "site-packages" in filename
    ):
        return False
    if filename.startswith(_STANDARD):
        return path.relative_to(_STANDARD).parts[0].removesuffix(".py") not in _KNOWN_MODULES
    return True


@functools.cache
def _installed_folders() -> tuple[str, ...]:
    import keras
    import tensorflow as tf

    folders = [Path(module.__file__ or "").parent for module in (np, keras, tf)]
    ours = Path(__file__).parents[1]
    paths = sysconfig.get_paths()
    installed = [Path(paths[key]) for key in ("purelib", "platlib")]
    return tuple(str(folder) + os.sep for folder in (*folders, *installed, ours))


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
            self._blame(frame.f_back, _reason_of_library(code))
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


def _reason_of_library(code: types.CodeType) -> str | None:
    if code.co_name in _DIFFERENT:
        return _DIFFERENT[code.co_name]
    path = code.co_filename.replace(os.sep, "/")
    return next((reason for part, reason in _ELSEWHERE.items() if part in path), None)


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


def globals_read(code: types.CodeType) -> Iterator[str]:
    kinds = ("LOAD_GLOBAL", "LOAD_NAME")
    yield from (each.argval for each in instructions_in(code) if each.opname in kinds)


def attributes_read(code: types.CodeType) -> Iterator[str]:
    """Yield the names of attributes that code reads, in functions within it too."""
    for instruction in instructions_in(code):
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "STORE_ATTR"):
            yield instruction.argval
    # `getattr(self, "rate")`, `vars(self)["rate"]`.
    for constant in (constant for part in _codes_in(code) for constant in part.co_consts):
        if isinstance(constant, str):
            yield from filter(str.isidentifier, constant.split("."))


def check_code(code: types.CodeType, held: Mapping[str, Any]) -> None:
    """Check that code assigns no global, and does not draw from `numpy.random`."""
    before = None
    for instruction in instructions_in(code):
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and instruction.argval == "random":
            if before is not None and held.get(before.argval) is np:
                raise CannotHoist(f"{code.co_name} draws from numpy.random")
        elif isinstance(instruction.argval, str) and held.get(instruction.argval) is np.random:
            raise CannotHoist(f"{code.co_name} draws from numpy.random")
        before = instruction
        if instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            raise CannotHoist(f"{code.co_name} assigns the global {instruction.argval}")
        if instruction.opname in ("IMPORT_NAME",):
            raise CannotHoist(f"{code.co_name} imports a module")


def instructions_in(code: types.CodeType) -> Iterator[dis.Instruction]:
    for part in _codes_in(code):
        yield from dis.get_instructions(part)


def _codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield code, and the code of functions within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes_in(constant)


def keep_operation_seeds() -> Callable[[], None]:
    """Return what puts back the state from which TensorFlow seeds eager random operations.

    The states of `random` and `numpy.random` are left alone: what draws from them is not hoisted,
    and threads that prepare data may draw at the same time.
    """
    state = operation_seeds()
    return functools.partial(set_operation_seeds, state)
