"""Which files hold a person's own code, and how their lines are named."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from pathlib import Path

_EVENER = str(Path(__file__).parent) + os.sep
_LIBRARIES = tuple({str(Path(path)) + os.sep for path in sysconfig.get_paths().values() if path})
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
# AutoGraph runs a rewritten copy of a function; its lines are nobody's.
_REWRITTEN = "__autograph_generated_file"


def is_own(filename: str) -> bool:
    """Return whether a code's file is a person's own: no library, not evener, not generated.

    >>> is_own("/home/me/train.py"), is_own("<string>")
    (True, False)
    """
    if filename.startswith(("<", _EVENER, *_LIBRARIES)) or is_rewritten(filename):
        return False
    if any(folder in filename for folder in _INSTALLED):
        return False
    return not filename.startswith(_installed_by_target(tuple(sys.path)))


@functools.cache
def _installed_by_target(paths: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of the folders that packages were installed in, as by ``pip install --target``.

    Such a folder may have any name; what pip writes beside a package tells it.
    """
    found = (Path(path) for path in paths if path)
    return tuple(
        f"{folder}{os.sep}" for folder in found if any(folder.glob("tensorflow*.dist-info"))
    )


def is_rewritten(filename: str) -> bool:
    """Return whether a code's file is a copy of somebody's code that AutoGraph has rewritten."""
    return _REWRITTEN in filename


def short_path(path: str) -> str:
    """Return a path as somebody in this folder would write it."""
    below = Path(path)
    return str(below.relative_to(Path.cwd())) if below.is_relative_to(Path.cwd()) else path
