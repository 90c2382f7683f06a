"""Checkpoints, weights and models that a program saves and loads, and their file names."""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass

from evener.analysis import Call, Kind, Module, Program

_SAVES = ("save_weights", "save", "write", "export")
_KINDS = {
    Kind.CHECKPOINT_MANAGER: "manager",
    Kind.CHECKPOINT: "checkpoint",
    Kind.MODEL: "model",
}
_LOADS = ("load_weights", "restore", "read")


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A line that saves or loads.

    Args:
        call: The call.
        what: ``"weights"``, ``"model"``, ``"checkpoint"`` or ``"manager"``.
        name: The expression of the name; None if there is none.
    """

    call: Call
    what: str
    name: ast.expr | None

    @property
    def module(self) -> Module:
        """Return the module that contains the line."""
        return self.call.module


@functools.lru_cache(maxsize=4)
def saves(program: Program) -> tuple[File, ...]:
    """Return the lines that save: weights, models, checkpoints, arrays, by callbacks too."""
    found: list[File] = []
    for call in program.all_calls:
        method = call.method
        if call.name == "keras.callbacks.ModelCheckpoint":
            only = call.argument(None, "save_weights_only")
            weights = only is not None and program.constant(call.module, only) is True
            what = "weights" if weights else "model"
            found.append(File(call=call, what=what, name=call.argument(0, "filepath")))
        elif call.name == "keras.saving.save_model" or call.name == "keras.models.save_model":
            found.append(File(call=call, what="model", name=call.argument(1, "filepath")))
        elif method == "save_weights":
            found.append(File(call=call, what="weights", name=call.argument(0, "filepath")))
        elif method in _SAVES and isinstance(call.node.func, ast.Attribute):
            what = _what(program, call.module, call.node.func.value)
            if what:
                found.append(File(call=call, what=what, name=_name(call, what)))
    return tuple(found)


@functools.lru_cache(maxsize=4)
def loads(program: Program) -> tuple[File, ...]:
    """Return the lines that load."""
    found: list[File] = []
    for call in program.all_calls:
        method = call.method
        if call.name in ("keras.models.load_model", "keras.saving.load_model"):
            found.append(File(call=call, what="model", name=call.argument(0, "filepath")))
        elif method == "load_weights":
            found.append(File(call=call, what="weights", name=call.argument(0, "filepath")))
        elif method in _LOADS and isinstance(call.node.func, ast.Attribute):
            what = _what(program, call.module, call.node.func.value)
            if what == "checkpoint":
                found.append(File(call=call, what=what, name=call.argument(0, "save_path")))
    return tuple(found)


def is_same_name(program: Program, file: File, other: File) -> bool:
    """Return whether two lines name the same file, as far as the source code shows."""
    if file.name is None or other.name is None:
        return False
    first, second = (
        program.constant(file.module, file.name),
        program.constant(other.module, other.name),
    )
    if first is not None or second is not None:
        return first == second
    origins = [
        {(value.node, value.steps) for value in program.origins(either.module, either.name)}
        for either in (file, other)
        if either.name is not None
    ]
    return bool(origins[0] & origins[1]) or ast.unparse(file.name) == ast.unparse(other.name)


def _what(program: Program, module: Module, owner: ast.expr) -> str:
    kinds = program.kinds(module, owner)
    return next((what for kind, what in _KINDS.items() if kind in kinds), "")


def _name(call: Call, what: str) -> ast.expr | None:
    if what == "manager":
        return None
    return call.argument(0, "file_prefix" if what == "checkpoint" else "filepath")
