"""Which Python numbers of a program change from round to round of a loop."""

from __future__ import annotations

import ast

from evener.doctor.program import Kind, Module, Program, Value

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
            given = program.origins(where, made, binding.steps) if made is not None else ()
            if given and all(_is_computed(program, one) for one in given):
                return "which is computed anew in every round"
        if isinstance(made, ast.Call) and not binding.steps:
            said = changing_number(program, where, made)
            if said and _is_in_loop_of(module, binding.statement, node):
                return said
    return ""


def _is_computed(program: Program, value: Value) -> bool:
    """Return whether a value is Python's arithmetic, with something in it that changes."""
    if value.steps or not isinstance(value.node, ast.BinOp):
        return False
    changes = False
    for one in ast.walk(value.node):
        if isinstance(one, ast.Call) and not program.name_of(value.module, one.func).startswith(
            "math."
        ):
            return False
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load):
            known = program.origins(value.module, one)
            if all(
                isinstance(end.node, ast.Call)
                and program.name_of(end.module, end.node.func) == "range"
                for end in known
            ):
                changes = True
            elif not all(isinstance(end.node, ast.Constant) or end.node is one for end in known):
                return False
    return changes


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
