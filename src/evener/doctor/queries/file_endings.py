"""Endings of the names of files that a program writes."""

from __future__ import annotations

import ast
import re

from evener.analysis import Module, Program, argument

_JOINING = ("os.path.join", "posixpath.join", "pathlib.Path", "str", "os.fspath")
_PERCENT = re.compile(r"%[^a-zA-Z]*[a-zA-Z]")
_BRACES = re.compile(r"\{[^}]*\}")


def ending(program: Program, module: Module, node: ast.expr | None, deepest: int = 8) -> str | None:
    """Return the text that a path certainly ends in, or None if it may end in anything.

    Of ``os.path.join(folder, "model.h5")`` and of ``f"{folder}/model.h5"`` it is known.
    """
    if node is None or not deepest:
        return None
    constant = program.constant(module, node)
    if isinstance(constant, str):
        return constant
    values = program.origins(module, node)
    if len(values) != 1 or values[0].steps:
        return None
    where, origin = values[0].module, values[0].node
    if isinstance(origin, ast.JoinedStr) and origin.values:
        last = origin.values[-1]
        return (
            last.value if isinstance(last, ast.Constant) and isinstance(last.value, str) else None
        )
    if isinstance(origin, ast.BinOp) and isinstance(origin.op, ast.Add | ast.Div):
        return ending(program, where, origin.right, deepest - 1)
    if isinstance(origin, ast.BinOp) and isinstance(origin.op, ast.Mod):
        return _after(ending(program, where, origin.left, deepest - 1), _PERCENT)
    if isinstance(origin, ast.Call):
        if isinstance(origin.func, ast.Attribute) and origin.func.attr == "format":
            return _after(ending(program, where, origin.func.value, deepest - 1), _BRACES)
        if program.name_of(where, origin.func) in _JOINING and origin.args:
            return ending(program, where, argument(origin, len(origin.args) - 1, None), deepest - 1)
    return None


def _after(text: str | None, filled_in: re.Pattern[str]) -> str | None:
    """Return the text after the last placeholder."""
    return None if text is None else filled_in.split(text)[-1]
