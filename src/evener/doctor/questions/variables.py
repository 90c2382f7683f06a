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
    made = {
        id(value.node)
        for value in program.origins(module, owner)
        if isinstance(value.node, ast.Call) and not value.steps
    }
    return (str(sorted(made)) if made else ast.unparse(owner)), part


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
