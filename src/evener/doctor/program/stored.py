"""What is put into lists and dicts after they were made, as into a registry."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from evener.doctor.program.module import Module
from evener.doctor.program.scopes import Step

if TYPE_CHECKING:
    from evener.doctor.program.program import Program


def stored(program: Program) -> dict[ast.AST, list[tuple[Module, ast.expr, Step]]]:
    """Return what is stored in each container, by ``name[key] = value`` and the like.

    Args:
        program: The program.

    Returns:
        For each list or dict that a name is bound to: where the value stands, the value, and
        the step by which it is taken out again.
    """
    found: dict[ast.AST, list[tuple[Module, ast.expr, Step]]] = {}
    for module, name, value, key in _storings(program):
        step: Step = "each"
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            step = f"key:{key.value}"
        for _, binding in program.bindings(module, name):
            if isinstance(binding.value, ast.Dict | ast.List):
                found.setdefault(binding.value, []).append((module, value, step))
    return found


def _storings(
    program: Program,
) -> Iterator[tuple[Module, ast.Name, ast.expr, ast.expr | None]]:
    for module, node in program.nodes(ast.Assign):
        for target in node.targets if isinstance(node, ast.Assign) else ():
            if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
                assert isinstance(node, ast.Assign)
                yield module, target.value, node.value, target.slice
    for module, node in program.nodes(ast.Call):
        function = node.func if isinstance(node, ast.Call) else None
        if not isinstance(function, ast.Attribute) or not isinstance(function.value, ast.Name):
            continue
        assert isinstance(node, ast.Call)
        if function.attr == "append" and len(node.args) == 1:
            yield module, function.value, node.args[0], None
        elif function.attr == "setdefault" and len(node.args) == 2:
            yield module, function.value, node.args[1], node.args[0]
