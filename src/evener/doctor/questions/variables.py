"""Lists of a model's variables, and whether the model has any by then."""

from __future__ import annotations

import ast

from evener.doctor.program import FUNCTIONS, Kind, Module, Program

LISTS = ("trainable_variables", "trainable_weights", "variables", "weights")


def list_named(program: Program, module: Module, node: ast.expr) -> tuple[str, str] | None:
    """Return whose list of variables an expression is, and which slice of it."""
    part = ""
    if isinstance(node, ast.Name):
        values = program.origins(module, node)
        if len(values) == 1 and not values[0].steps and isinstance(values[0].node, ast.Attribute):
            module, node = values[0].module, values[0].node
        else:
            return None
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        part, node = ast.unparse(node.slice), node.value
    if not isinstance(node, ast.Attribute) or node.attr not in LISTS:
        return None
    if isinstance(node.value, ast.Subscript):
        return None
    owner = node.value
    made = {id(call) for _, call in program.made_by(module, owner)}
    return (str(sorted(made)) if made else ast.unparse(owner)), part


def zip_in(program: Program, module: Module, node: ast.expr) -> ast.Call | None:
    """Return the call of ``zip`` in the same file that pairs gradients with variables."""
    for value in program.origins(module, node):
        made = value.node
        if isinstance(made, ast.Call) and program.name_of(value.module, made.func) == "zip":
            return made if len(made.args) == 2 and value.module is module else None
    return None


def slice_of(node: ast.expr) -> ast.expr | None:
    """Return the list of which an expression is a slice; None if it is none."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        return node.value
    return None


def differs(
    program: Program,
    module: Module,
    sources: ast.expr,
    other: Module,
    applied: ast.expr,
    part: ast.expr | None,
) -> str:
    """Say how what is applied to differs from what gradients were taken of."""
    one, two = list_named(program, module, sources), list_named(program, other, applied)
    if two is not None and part is None and _is_sum_with(program, module, sources, two):
        return ", only a part of them"
    if one is None or two is None:
        return ""
    if part is not None and two[1] == "":
        return ", only a part of them"
    if one[0] != two[0] and one[1] == two[1] == "":
        return ", of another model"
    if one[0] == two[0] and one[1] != two[1] and part is None:
        return ", another part of them"
    return ""


def _is_sum_with(program: Program, module: Module, node: ast.AST, part: tuple[str, str]) -> bool:
    """Return whether a list is a sum of lists, one of which is the part."""
    for value in program.origins(module, node):
        total = value.node
        if isinstance(total, ast.BinOp) and isinstance(total.op, ast.Add) and not value.steps:
            sides = (total.left, total.right)
            if any(list_named(program, value.module, one) == part for one in sides):
                return True
            if any(_is_sum_with(program, value.module, one, part) for one in sides):
                return True
    return False


def unbuilt(program: Program, module: Module, taken: ast.Attribute) -> ast.Call | None:
    """Return what makes the model whose variables are listed, if it is not built by then."""
    values = program.origins(module, taken.value)
    if len(values) != 1 or not isinstance(values[0].node, ast.Call) or values[0].steps:
        return None
    where, made = values[0].module, values[0].node
    if not _is_built_late(program, where, made):
        return None
    listed = program.order.of(taken) or 0
    for call in program.all_calls:
        number = program.order.of(call.node)
        if number is None or number >= listed or call.node is made:
            continue
        function = call.node.func
        owners = [function, *([function.value] if isinstance(function, ast.Attribute) else [])]
        for owner in owners:
            if any(one.node is made for one in program.origins(call.module, owner)):
                if not isinstance(function, ast.Attribute) or function.attr not in (
                    "compile",
                    "add",
                ):
                    return None
    return made


def _is_built_late(program: Program, module: Module, made: ast.Call) -> bool:
    name = program.name_of(module, made.func)
    if name == "keras.Sequential":
        text = ast.unparse(made)
        if not made.args:
            return False
        known = ("Input(", "input_shape", "input_dim", "applications", "InputLayer", "shape=")
        values = program.origins(module, made.args[0])
        if any(isinstance(value.node, ast.Name | ast.arg) for value in values):
            return False
        return not any(part in text for part in known) and "*" not in text
    for where, target in program.targets(module, made):
        if isinstance(target, ast.ClassDef):
            if program.kind_of_class(where, target) is not Kind.MODEL:
                return False
            text = ast.unparse(target)
            makes_early = ("add_weight", "Variable(", ".build(", "super().__init__(inputs")
            return (
                not any(part in _text_of_init(target) for part in makes_early)
                and "Input(" not in text
            )
    return False


def _text_of_init(definition: ast.ClassDef) -> str:
    for node in definition.body:
        if isinstance(node, FUNCTIONS) and getattr(node, "name", "") == "__init__":
            return ast.unparse(node)
    return ""
