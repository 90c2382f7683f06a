"""User code, as opposed to libraries and generated code, and short paths of its files."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

import evener

_EVENER = str(Path(evener.__file__).parent) + os.sep
_LIBRARIES = tuple({str(Path(path)) + os.sep for path in sysconfig.get_paths().values() if path})
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
# AutoGraph runs a rewritten copy of a function, whose lines the user does not know.
_REWRITTEN = "__autograph_generated_file"


def is_own(filename: str) -> bool:
    """Return whether a file is user code: no library, not evener, not generated.

    >>> is_own("/home/me/train.py"), is_own("<string>")
    (True, False)
    """
    if filename.startswith(("<", _EVENER, *_LIBRARIES)) or is_rewritten(filename):
        return False
    if any(folder in filename for folder in _INSTALLED):
        return False
    return not filename.startswith(_installed_by_target(tuple(sys.path)))


def without_evener(found: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of evener, and of functions that AutoGraph rewrote.

    A traceback of nothing else is returned as it is.
    """
    return with_files(found, lambda file: not is_evener(file) and not is_rewritten(file)) or found


def with_files(found: TracebackType | None, is_kept: Callable[[str], bool]) -> TracebackType | None:
    """Return a traceback with the frames of some files alone, or None if none is left."""
    left: TracebackType | None = None
    for link in reversed([*links_of(found)]):
        if is_kept(link.tb_frame.f_code.co_filename):
            left = TracebackType(left, link.tb_frame, link.tb_lasti, link.tb_lineno)
    return left


def links_of(found: TracebackType | None) -> Iterator[TracebackType]:
    """Yield the parts of a traceback, one for each frame, the outermost first."""
    while found is not None:
        yield found
        found = found.tb_next


@functools.cache
def _installed_by_target(paths: tuple[str, ...]) -> tuple[str, ...]:
    """Return the folders of packages that ``pip install --target`` installed on ``sys.path``.

    Other files beside them are user code.
    """
    found: set[str] = set()
    for path in paths:
        if not path or any(folder in path + os.sep for folder in _INSTALLED):
            continue
        for distribution in importlib.metadata.distributions(path=[path]):
            tops = {file.parts[0] for file in distribution.files or () if len(file.parts) > 1}
            found |= {f"{Path(path) / top}{os.sep}" for top in tops}
    return tuple(found)


def is_evener(filename: str) -> bool:
    """Return whether a file is one of evener's."""
    return filename.startswith(_EVENER)


def is_rewritten(filename: str) -> bool:
    """Return whether a file holds code that AutoGraph has rewritten."""
    return _REWRITTEN in filename


def short_path(path: str) -> str:
    """Return a path relative to the current folder, if it is below it."""
    below = Path(path)
    return str(below.relative_to(Path.cwd())) if below.is_relative_to(Path.cwd()) else path
