"""Knowing when the program has imported something, without importing it first."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


class Loading(importlib.abc.MetaPathFinder):
    """Calls a function once, when the last of some modules has been imported.

    Settings that a program makes before its imports stay in effect: environment variables, the
    backend of Keras.

    Args:
        awaited: Names of the modules; they may import each other.
        then: Function to call.
    """

    def __init__(self, awaited: Sequence[str], then: Callable[[], None]) -> None:
        self._awaited = awaited
        self._then = then
        self._num_open = 0
        self._called = False

    def watch(self) -> None:
        """Begin; what is there already counts."""
        sys.meta_path.insert(0, self)
        self._ask()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find what is waited for, as Python does, and notice when it has been executed."""
        if fullname not in self._awaited or self._called or self not in sys.meta_path:
            return None
        # Another of these may wait for the same.
        others = sys.meta_path[sys.meta_path.index(self) + 1 :]
        found = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        loader: Any = None if spec is None else spec.loader
        if loader is None:
            return None
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            # TensorFlow and Keras import each other.
            self._num_open += 1
            try:
                execute(module)
            finally:
                self._num_open -= 1
            self._ask()

        loader.exec_module = exec_module
        return spec

    def _ask(self) -> None:
        if self._called or self._num_open or not all(name in sys.modules for name in self._awaited):
            return
        self._called = True
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        self._then()
