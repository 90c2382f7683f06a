"""The script, and the modules of its folder that it imports, rewritten for a `Hoister`."""

from __future__ import annotations

import dataclasses
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType

from evener.analysis.hoisting import Hoisted, hoist_steps
from evener.analysis.hoisting.rewrite import HOOK
from evener.own_code import is_own
from evener.run.hoisting.hoister import Hoister
from evener.run.script import Script


def hoisted(script: Script, hoister: Hoister) -> Script:
    """Return a script whose training steps call a hoister; so do those of its own modules.

    Args:
        script: The script.
        hoister: Runs the steps.
    """
    sys.meta_path.insert(0, _OwnModules(Path(script.path).parent, hoister))
    found = _rewritten(script.source, script.path, hoister, is_module=False)
    if found is None:
        return script
    return dataclasses.replace(script, tree=found.tree, names={HOOK: hoister})


def _rewritten(source: str, path: str, hoister: Hoister, *, is_module: bool) -> Hoisted | None:
    """Return a rewritten file; None if it has no training step."""
    try:
        found = hoist_steps(source, path, first_number=hoister.next_number, in_functions=is_module)
    except (SyntaxError, ValueError, RecursionError):
        # Python reports it when the file runs.
        return None
    hoister.add(path, found)
    return found if found.regions else None


class _OwnModules(importlib.abc.MetaPathFinder):
    """Finds the modules in the folder of a script, to rewrite them.

    Args:
        folder: The folder.
        hoister: Runs their steps.
    """

    def __init__(self, folder: Path, hoister: Hoister) -> None:
        self._folder = folder
        self._hoister = hoister

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a module in the folder, with a loader that rewrites it."""
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or type(spec.loader) is not importlib.machinery.SourceFileLoader:
            return None
        file = spec.loader.path
        if not Path(file).is_relative_to(self._folder) or not is_own(file):
            return None
        spec.loader = _Loader(fullname, file, self._hoister)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a module, rewritten if it has training steps. Nothing of it is cached in files."""

    def __init__(self, fullname: str, path: str, hoister: Hoister) -> None:
        super().__init__(fullname, path)
        self._hoister = hoister

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the code of the module."""
        source = self.get_source(fullname)
        found = None
        if source is not None:
            found = _rewritten(source, str(self.path), self._hoister, is_module=True)
        if found is None:
            return super().get_code(fullname)
        return compile(found.tree, self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module."""
        vars(module)[HOOK] = self._hoister
        super().exec_module(module)
