"""A Python file that runs in this process as ``python FILE ARGS`` would run it."""

from __future__ import annotations

import builtins
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from evener.errors import RunError


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A script that was found and read.

    Args:
        given: The path as it was given, which becomes ``sys.argv[0]``.
        path: The absolute path, which becomes ``__file__``.
        source: Its text.
    """

    given: str
    path: str
    source: str


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


def run_as_main(script: Script, args: Sequence[str]) -> None:
    """Run a script as the main module, which it stays: its threads may outlive its last line.

    `runpy.run_path` would take the module away at the end, and pickle and multiprocessing
    look for it. Whatever the script raises comes out.

    Args:
        script: The script.
        args: What follows the script on the command line.
    """
    sys.argv = [script.given, *args]
    if not sys.flags.safe_path:
        # There Python has put the folder of `evener`, or the current one for `-m evener`.
        sys.path[0] = str(Path(script.path).resolve().parent)
    main = ModuleType("__main__")
    main.__file__ = script.path
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", script.path)
    vars(main).update(__builtins__=builtins, __cached__=None, __annotations__={})
    sys.modules["__main__"] = main
    exec(compile(script.source, script.path, "exec", dont_inherit=True), vars(main))


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
