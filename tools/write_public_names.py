"""Writes which public names TensorFlow, Keras and tf_keras have, and which arguments Keras's have.

The rule DOC-004 reads the file.

    .venv/bin/python tools/write_public_names.py

tf_keras need not be installed beside evener: a folder that has it may stand in PYTHONPATH, as
``uv pip install --target FOLDER --no-deps tf_keras==2.21.0`` makes one.
"""

from __future__ import annotations

import gzip
import importlib.util
import inspect
import json
import os
import pkgutil
import re
import types
from pathlib import Path

PATH = Path(__file__).parents[1] / "src/evener/analysis/api/public_names.json.gz"
PACKAGES = ("tensorflow", "keras", "tf_keras")
# Parts of Keras that TensorFlow has by itself.
LAZY = ("initializers", "losses", "metrics", "optimizers")
# Private parts that people import all the same: nothing is said of what is in them.
NOT_JUDGED = ("python", "core", "compiler", "tools", "include", "src", "tsl")
# Parts of Keras whose classes and functions have arguments that people write by name.
WITH_ARGUMENTS = ("callbacks", "layers", "losses", "metrics", "optimizers", "regularizers", "utils")
METHODS = (
    *("compile", "fit", "evaluate", "predict", "save", "save_weights"),
    *("train_on_batch", "test_on_batch", "predict_on_batch"),
)
NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
# Arguments that a function takes out of those that it hands on.
TAKEN = re.compile(r"""kwargs(?:\.(?:pop|get)\(|\[)\s*["'](\w+)["']""")
# What is the same as another part of the tree.
SAME = {"tensorflow.compat.v2", "tensorflow.compat.v1.compat", "tensorflow.compat.v1.keras"}


def tree_of(
    module: types.ModuleType, dotted: str, around: frozenset[int]
) -> dict[str, object] | str:
    """Return the public names of a module: of a module a tree, of all else None.

    ``"*"`` stands for a module in which any name may be.
    """
    found: dict[str, object] = {}
    try:
        names = {*dir(module), *_files_of(module)}
    except ImportError:
        return "*"  # Loaded when it is first used, and then it is not there.
    for name in sorted(names):
        if name.startswith("_"):
            continue
        below = f"{dotted}.{name}"
        try:
            value = getattr(module, name)
        except (AttributeError, ImportError):
            # A folder of the package that is no public name: only an import reaches it.
            found[name] = "*"
            continue
        if not isinstance(value, types.ModuleType):
            found[name] = None
        elif below in SAME or name in NOT_JUDGED or id(value) in around:
            found[name] = "*"
        elif _is_own(value):
            found[name] = tree_of(value, below, around | {id(value)})
        else:
            found[name] = "*"
    return found


def _files_of(module: types.ModuleType) -> list[str]:
    """Return the modules of a package that can be imported, public or not."""
    return [part.name for part in pkgutil.iter_modules(getattr(module, "__path__", []))]


def _is_own(module: types.ModuleType) -> bool:
    # Lazy modules have no name of their own before they are used.
    name = getattr(module, "__name__", "") or ""
    return name.partition(".")[0] in ("tensorflow", "keras", "tf_keras", "")


def names_of(package: str) -> dict[str, object]:
    """Return the tree of the names of a package that is installed."""
    import tensorflow as tf

    # It is loaded when it is first used; from then on it can be imported.
    _ = tf.keras.layers  # noqa: TID251
    module = importlib.import_module(package)
    names = tree_of(module, package, frozenset({id(module)}))
    if package == "tensorflow":
        # A part of Keras, under another name.
        keras = importlib.import_module("keras._tf_keras.keras")
        for lazy, real in (
            ("keras", keras),
            *((attribute, getattr(keras, attribute)) for attribute in LAZY),
        ):
            names[lazy] = tree_of(real, f"tensorflow.{lazy}", frozenset({id(real)}))
    return names


def arguments_of_keras() -> dict[str, list[str]]:
    """Return the arguments of Keras's classes, functions and methods of models, by their names.

    What takes any argument is left out.
    """
    import keras

    found: dict[str, list[str]] = {}
    for part in WITH_ARGUMENTS:
        module = getattr(keras, part)
        for name in sorted(vars(module)):
            value = getattr(module, name)
            if not name.startswith("_") and isinstance(value, type | types.FunctionType):
                arguments = arguments_of(value)
                if arguments is not None:
                    found[f"keras.{part}.{name}"] = arguments
    for method in METHODS:
        arguments = arguments_of(getattr(keras.Model, method))
        if arguments is not None:
            found[f"model.{method}"] = arguments
    return found


def arguments_of(called: type | types.FunctionType) -> list[str] | None:
    """Return the names of the arguments of a class or function; None if it takes any.

    A class that hands on ``**kwargs`` takes those of its base too. Layers and optimizers of Keras
    raise an error for what is left.
    """
    import keras

    functions = [called]
    if isinstance(called, type):
        functions = [kind.__init__ for kind in called.__mro__[:-1] if "__init__" in vars(kind)]
    found: set[str] = set()
    for function in functions:
        parameters = inspect.signature(function).parameters.values()
        found |= {each.name for each in parameters if each.kind in NAMED} - {"self"}
        if all(each.kind is not inspect.Parameter.VAR_KEYWORD for each in parameters):
            return sorted(found)
        found |= set(TAKEN.findall(inspect.getsource(function)))
        if function in (keras.Layer.__init__, keras.optimizers.Optimizer.__init__):
            return sorted(found)
    return None


def public_names() -> dict[str, object]:
    """Return the trees of all packages that are installed, with their versions."""
    packages = [package for package in PACKAGES if importlib.util.find_spec(package) is not None]
    return {
        "arguments": arguments_of_keras(),
        "versions": {package: importlib.import_module(package).__version__ for package in packages},
        "names": {package: names_of(package) for package in packages},
    }


def main() -> None:
    """Write the file."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    found = public_names()
    text = json.dumps(found, separators=(",", ":"), sort_keys=True)
    # Without a time, so that the same names give the same bytes.
    PATH.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    print(f"{PATH}: {PATH.stat().st_size} bytes of {len(text)}; {found['versions']}")


if __name__ == "__main__":
    main()
