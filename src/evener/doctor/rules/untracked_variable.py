"""DOC-308: a tf.Variable in a Keras layer, which Keras does not train."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.analysis import Call, Module, Program
from evener.doctor.queries.gradients import gradients_of
from evener.doctor.queries.layers import is_of_keras
from evener.doctor.rule import Case, Violation


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program = case.program
    if any("tf_keras" in line for module in program.modules for line in module.lines):
        return
    for call in program.calls("tf.Variable"):
        module, node = call.module, call.node
        owner = next(
            (outer for outer in module.around(node) if isinstance(outer, ast.ClassDef)), None
        )
        target = _attribute_assigned(module, node) or _attribute_given(program, module, node)
        if owner is None or target is None or not _is_meant_to_train(program, call):
            continue
        if not is_of_keras(program, module, owner):
            continue
        if _is_state(owner, target) or _is_listed_by_hand(program, target):
            continue
        yield Violation(
            call.location,
            f"self.{target} of {owner.name} is a tf.Variable, which Keras does not train.",
            why="Keras 3 keeps track of its own variables alone: this one is not among "
            "trainable_variables, so that no gradient is taken of it, and it is not saved.",
            fix=f"self.{target} = self.add_weight(shape=..., initializer=...), or keras.Variable.",
        )


def _attribute_assigned(module: Module, node: ast.AST) -> str | None:
    parent = module.parents.get(node)
    targets = parent.targets if isinstance(parent, ast.Assign) else []
    if isinstance(parent, ast.AnnAssign):
        targets = [parent.target]
    for target in targets:
        if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
            return target.attr
    return None


def _attribute_given(program: Program, module: Module, node: ast.AST) -> str | None:
    """Return the attribute to which what a function makes and returns is assigned."""
    function = program.context.function(module, node)
    if function is None or not isinstance(module.parents.get(node), ast.Return):
        return None
    sites = program.call_sites(function)
    found = (_attribute_assigned(site.module, site.call) for site in sites)
    return next((name for name in found if name is not None), None)


def _is_meant_to_train(program: Program, call: Call) -> bool:
    trainable = call.argument(1, "trainable")
    if trainable is not None and program.constant(call.module, trainable) is not True:
        return False
    dtype = call.argument(4, "dtype")
    if dtype is not None and any(part in ast.unparse(dtype) for part in ("int", "bool", "string")):
        return False
    initial = call.argument(0, "initial_value")
    if initial is None:
        return True
    constant = program.constant(call.module, initial)
    return not isinstance(constant, bool | str) and (
        not isinstance(constant, int) or dtype is not None
    )


def _is_state(owner: ast.ClassDef, target: str) -> bool:
    """Return whether the class itself assigns to a variable, as to a counter or an average."""
    for node in ast.walk(owner):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr.startswith(("assign", "scatter")):
                if ast.unparse(node.func.value) == f"self.{target}":
                    return True
    return False


def _is_listed_by_hand(program: Program, target: str) -> bool:
    """Return whether gradients are taken of a list in which the variable is named."""
    for gradient in gradients_of(program):
        function = program.context.function(gradient.call.module, gradient.call.node)
        if gradient.sources is not None and f".{target}" in ast.unparse(gradient.sources):
            return True
        if function is not None and f".{target}]" in ast.unparse(function):
            return True
    return False
