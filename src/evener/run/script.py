"""Runs a program in this process as ``python FILE`` or ``python -m MODULE`` runs it."""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from evener.errors import RunError


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A script that was read.

    Args:
        given: The path or module name on the command line.
        path: The absolute path, which becomes ``__file__``.
        source: Its text.
        module: The full name of the module, as for ``python -m``; None for a file.
        tree: The syntax tree to run instead of the text; None for the text.
        names: Global names that the tree uses beside the script's own.
    """

    given: str
    path: str
    source: str
    module: str | None = None
    tree: ast.Module | None = None
    names: Mapping[str, object] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """Name of the script, or module, on the command line of evener."""
        return f"-m {self.given}" if self.module is not None else self.given


def read(given: str, *, as_module: bool) -> Script:
    """Read a script or a module; see `read_script` and `read_module`."""
    return read_module(given) if as_module else read_script(given)


def read_script(given: str) -> Script:
    """Read a script.

    Raises:
        RunError: RUN-001 if there is no such file, RUN-002 if it is a folder, RUN-003 if its
            text cannot be Python.
    """
    path = Path(given)
    if path.is_dir():
        raise RunError(
            "RUN-002",
            f"{given} is a folder.",
            why="evener run takes a Python file.",
            fix=f"Name the file, for example {path / '__main__.py'}.",
        )
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RunError(
            "RUN-001",
            f"The script {given} cannot be read.",
            why=f"{error.strerror or error}; the current folder is {Path.cwd()}.",
            fix="Pass the path of an existing Python file.",
        ) from error
    return Script(given=given, path=str(path.absolute()), source=_text(given, content))


def read_module(name: str) -> Script:
    """Read a module as ``python -m`` finds it, without importing its parent packages.

    Raises:
        RunError: RUN-021 if there is no such module, or it has no source file; RUN-003 if its
            text cannot be Python.
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
    """Run a script as ``__main__``. The module stays: threads may outlive its last line.

    `runpy.run_path` removes the module at the end, but pickle and multiprocessing need it.
    Exceptions of the script are not caught.

    Args:
        script: The script.
        args: Its command line arguments.
    """
    sys.argv = [script.given if script.module is None else script.path, *args]
    if not sys.flags.safe_path:
        # Python has set it to the folder of `evener`, or to the current one for `-m evener`.
        folder = Path.cwd() if script.module else Path(script.path).resolve().parent
        sys.path[0] = str(folder)
    main = ModuleType("__main__")
    main.__file__ = script.path
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", script.path)
    vars(main).update(__builtins__=builtins, __cached__=None, __annotations__={}, **script.names)
    if script.module is not None:
        _name_as_module(main, script.module)
    sys.modules["__main__"] = main
    code = script.source if script.tree is None else script.tree
    exec(compile(code, script.path, "exec", dont_inherit=True), vars(main))


def _name_as_module(main: ModuleType, name: str) -> None:
    """Set the attributes of the main module that relative imports and multiprocessing need."""
    # This imports the parent packages, as Python does before it runs a module.
    spec = importlib.util.find_spec(name)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    main.__spec__ = spec
    main.__package__ = spec.parent
    main.__loader__ = spec.loader
    vars(main)["__cached__"] = spec.cached


def _find(name: str) -> importlib.machinery.ModuleSpec | None:
    """Return the spec of a module; its parent packages are found, but not imported."""
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
        fix="Pass a module name as for `python -m`; a file is run without -m.",
    )


def _text(given: str, content: bytes) -> str:
    try:
        # By Python's rules: UTF-8, or the encoding declared in the first two lines.
        text = importlib.util.decode_source(content)
        if "\0" in text:
            raise ValueError("it holds null bytes")
    except (SyntaxError, ValueError, LookupError) as error:
        raise RunError(
            "RUN-003",
            f"{given} is not a Python script.",
            why=f"Its text cannot be decoded: {error}.",
            fix="Pass the path of a Python file; a launcher of another kind cannot be run.",
        ) from error
    return text
