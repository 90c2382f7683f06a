"""Which Python numbers of a program change from round to round of a loop."""

from __future__ import annotations

import ast

from evener.doctor.program import Kind, Module, Program

_TENSORS = frozenset({Kind.TENSOR, Kind.BATCH, Kind.VARIABLE, Kind.PER_REPLICA})
_IN_EVERY_ROUND = "which changes in every round"


def changing_number(program: Program, module: Module, node: ast.expr) -> str:
    """Say why an expression is a Python number that changes; ``""`` if it is none."""
    if isinstance(node, ast.BinOp):
        if program.kinds(module, node) & _TENSORS:
            return ""
        sides = (changing_number(program, module, one) for one in (node.left, node.right))
        return next((one for one in sides if one), "")
    if isinstance(node, ast.Name):
        return _bound_anew(program, module, node) or _is_counted(program, module, node)
    if isinstance(node, ast.Call):
        name = program.name_of(module, node.func)
        if name in ("float", "int") and node.args:
            if not isinstance(program.constant(module, node.args[0]), int | float):
                return "which is read from something that changes"
        if isinstance(node.func, ast.Attribute) and node.func.attr == "item":
            return "which is read from a tensor"
    return ""


def _bound_anew(program: Program, module: Module, node: ast.Name) -> str:
    """Say that a loop binds a name to another number in each round."""
    for where, binding in program.bindings(module, node):
        made = binding.value
        name = program.name_of(where, made.func) if isinstance(made, ast.Call) else ""
        if isinstance(binding.statement, ast.For):
            if name == "range" or name.endswith("trange"):
                return _IN_EVERY_ROUND
            if name == "enumerate" and binding.steps == ("each", 0):
                return _IN_EVERY_ROUND
        if isinstance(made, ast.Call) and not binding.steps:
            said = changing_number(program, where, made)
            if said and _is_in_loop_of(module, binding.statement, node):
                return said
    return ""


def _is_in_loop_of(module: Module, statement: ast.AST, use: ast.AST) -> bool:
    loops = [one for one in module.around(use) if isinstance(one, ast.For | ast.While)]
    return any(loop in module.around(statement) for loop in loops)


def _is_counted(program: Program, module: Module, node: ast.Name) -> str:
    """Say that a name is counted up by hand, from a Python number."""
    if not isinstance(program.constant(module, node), int | float):
        return ""
    if isinstance(program.constant(module, node), bool):
        return ""
    loop = next(program.around.loops(module, node), None)
    for one in ast.walk(loop) if loop is not None else ():
        if isinstance(one, ast.AugAssign) and isinstance(one.target, ast.Name):
            if one.target.id == node.id and isinstance(one.op, ast.Add | ast.Mult | ast.Sub):
                return _IN_EVERY_ROUND
    return ""
