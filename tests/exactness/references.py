"""Results of one device that the processes of a test run share, so that each is computed once."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def shared(name: str, make: Callable[[], T]) -> T:
    """Return what ``make`` gives, or what it gave to another process of the test run."""
    file = Path(os.environ["EVENER_TEST_REFERENCES"], name.replace("/", " "))
    if file.exists():
        return pickle.loads(file.read_bytes())
    made = make()
    # Another process may write the same file.
    own = file.with_name(f"{file.name} {os.getpid()}")
    own.write_bytes(pickle.dumps(made))
    own.replace(file)
    return made
