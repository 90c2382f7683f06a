"""A program that runs in this process as ``python FILE`` or ``python -m MODULE`` would run it."""

from __future__ import annotations

import builtins
import contextlib
import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from evener.errors import RunError


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A script that was found and read.

    Args:
        given: The path or the module as it was given.
        path: The absolute path, which becomes ``__file__``.
        source: Its text.
        module: The full name of the module to run, for ``python -m``; None for a file.
    """

    given: str
    path: str
    source: str
    module: str | None = None


def read_script(given: str) -> Script:
    """Find and read a script.

    Raises:
        RunError: RUN-001 if there is no such file, RUN-002 if it is a folder, RUN-003 if it is
            not a text that could be Python.
    """
    path = Path(given)
    if path.is_dir():
        raise RunError(
            "RUN-002",
            f"{given} is a folder.",
            why="evener run takes the file of a script.",
            fix=f"name the file, for example {path / '__main__.py'}.",
        )
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RunError(
            "RUN-001",
            f"The script {given} cannot be read.",
            why=f"{error.strerror or error}; the current folder is {Path.cwd()}.",
            fix="give the path of a Python file that is there.",
        ) from error
    return Script(given=given, path=str(path.absolute()), source=_text(given, content))


def read_module(name: str) -> Script:
    """Find and read a module as ``python -m`` would, without importing the packages around it.

    Raises:
        RunError: RUN-021 if there is no such module, or it has no source file; RUN-003 if its
            file is not a text that could be Python.
    """
    with _current_folder_first():
        spec = _find(name)
        if spec is not None and spec.submodule_search_locations is not None:
            name, package = f"{name}.__main__", name
            spec = _find(name)
            if spec is None:
                raise _no_module(package, f"{package} is a package without a __main__ module")
    if spec is None:
        raise _no_module(name, f"there is no such module; the current folder is {Path.cwd()}")
    if spec.origin is None or not isinstance(spec.loader, importlib.machinery.SourceFileLoader):
        raise _no_module(name, "it has no Python source file")
    path = Path(spec.origin)
    source = _text(spec.origin, path.read_bytes())
    return Script(given=name, path=str(path.absolute()), source=source, module=name)


def run_as_main(script: Script, args: Sequence[str]) -> None:
    """Run a script as the main module, which it stays: its threads may outlive its last line.

    `runpy.run_path` would take the module away at the end, and pickle and multiprocessing
    look for it. Whatever the script raises comes out.

    Args:
        script: The script.
        args: What follows the script on the command line.
    """
    sys.argv = [script.given if script.module is None else script.path, *args]
    if not sys.flags.safe_path:
        # There Python has put the folder of `evener`, or the current one for `-m evener`.
        folder = Path.cwd() if script.module else Path(script.path).resolve().parent
        sys.path[0] = str(folder)
    main = ModuleType("__main__")
    main.__file__ = script.path
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", script.path)
    vars(main).update(__builtins__=builtins, __cached__=None, __annotations__={})
    if script.module is not None:
        _name_as_module(main, script.module)
    sys.modules["__main__"] = main
    exec(compile(script.source, script.path, "exec", dont_inherit=True), vars(main))


def _name_as_module(main: ModuleType, name: str) -> None:
    """Give the main module the name by which relative imports and multiprocessing know it."""
    # This imports the packages around it, as Python does before it runs a module.
    spec = importlib.util.find_spec(name)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    main.__spec__ = spec
    main.__package__ = spec.parent
    main.__loader__ = spec.loader
    vars(main)["__cached__"] = spec.cached


def _find(name: str) -> importlib.machinery.ModuleSpec | None:
    """Return the spec of a module; the packages around it are looked up and not imported."""
    folders = None
    spec = None
    done: list[str] = []
    if not all(name.split(".")):
        return None
    for word in name.split("."):
        done.append(word)
        finders = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]
        specs = (finder.find_spec(".".join(done), folders) for finder in finders)
        spec = next((found for found in specs if found is not None), None)
        folders = None if spec is None else spec.submodule_search_locations
        if len(done) <= name.count(".") and folders is None:
            return None
    return spec


@contextlib.contextmanager
def _current_folder_first() -> Iterator[None]:
    before = sys.path[:]
    if not sys.flags.safe_path:
        sys.path[0] = str(Path.cwd())
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = before


def _no_module(name: str, why: str) -> RunError:
    return RunError(
        "RUN-021",
        f"The module {name} cannot be run.",
        why=f"{why}.",
        fix="give the name of a module as for `python -m`; a file is run without -m.",
    )


def _text(given: str, content: bytes) -> str:
    try:
        # By the rules of Python: UTF-8, or what the first two lines say.
        text = importlib.util.decode_source(content)
        if "\0" in text:
            raise ValueError("it holds null bytes")
    except (SyntaxError, ValueError, LookupError) as error:
        raise RunError(
            "RUN-003",
            f"{given} is not a Python script.",
            why=f"its text cannot be read: {error}.",
            fix="give the path of a Python file; a program that starts one cannot be run so.",
        ) from error
    return text
