"""DOC-310: a model without trainable variables is trained."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.doctor.finding import Finding, Severity
from evener.doctor.program import FUNCTIONS, Call, Kind, Module, Program
from evener.doctor.questions.freezes import Freeze, freezes
from evener.doctor.questions.layers import is_weightless
from evener.doctor.questions.trainings import fits
from evener.doctor.rule import Case, Family, Rule


def _look(case: Case) -> Iterator[Finding]:
    program = case.program
    for fit in fits(program):
        owner = fit.owner
        if owner is None:
            continue
        frozen = _frozen_before(program, fit, owner)
        if frozen is not None:
            yield _finding(fit, owner, f"{frozen.place.text} came before", frozen.place.text)
            continue
        for module, made in program.made_by(fit.module, owner):
            reason = _without_weights(program, module, made)
            if reason:
                yield _finding(fit, owner, reason, module.place(made).text)
                break


def _finding(fit: Call, owner: ast.expr, reason: str, evidence: str) -> Finding:
    name = ast.unparse(owner)
    return RULE.finding(
        fit.place,
        f"{name} is trained and has nothing to train: {reason}.",
        why="There is no gradient to take and no variable to update. Every step costs its time, "
        "and the loss stays what it was.",
        fix="leave some layer trainable (set trainable = True before compile), or add a layer "
        "with weights, such as a Dense layer after the frozen part.",
        evidence=(fit.place.text, evidence),
    )


def _frozen_before(program: Program, fit: Call, owner: ast.expr) -> Freeze | None:
    """Return what has frozen a whole model before it is trained, if nothing undid that."""
    made = _models(program, fit.module, owner)
    before = [
        one
        for one in freezes(program)
        if program.order.is_before(one.node, fit.node)
        and made
        and made & _frozen_models(program, one)
    ]
    before.sort(key=lambda one: program.order.of(one.node) or 0)
    if not before or not before[-1].freezes(program):
        return None
    last = before[-1]
    # What is added, or set trainable in a part of it, is not looked into: it may be enough.
    for one in freezes(program):
        parts = program.order.is_before(last.node, one.node)
        if parts and program.order.is_before(one.node, fit.node):
            if not one.freezes(program):
                return None
    for call, added_to in program.calls_of("add"):
        if made & _models(program, call.module, added_to):
            if program.order.is_before(last.node, call.node):
                return None
    return last


def _models(program: Program, module: Module, node: ast.expr) -> set[ast.AST]:
    return {made for _, made in program.made_by(module, node)}


def _frozen_models(program: Program, freeze: Freeze) -> set[ast.AST]:
    """Return the models of which all is frozen: by themselves, or layer by layer."""
    if Kind.MODEL in program.kinds(freeze.module, freeze.owner):
        return _models(program, freeze.module, freeze.owner)
    loop = next(program.around.loops(freeze.module, freeze.node), None)
    if isinstance(loop, ast.For) and isinstance(loop.iter, ast.Attribute):
        is_all = loop.iter.attr == "layers" and isinstance(loop.target, ast.Name)
        if is_all and freeze.module.parents.get(freeze.node) is loop:
            return _models(program, freeze.module, loop.iter.value)
    return set()


def _without_weights(program: Program, module: Module, made: ast.Call) -> str:
    """Say why a model has no weights that can be trained; ``""`` if it has, or may have."""
    name = program.name_of(module, made.func)
    if name == "keras.Sequential":
        layers = _layers_of(program, module, made)
        if layers and all(_cannot_learn(program, where, one) for where, one in layers):
            return "none of its layers has trainable weights"
        return ""
    for where, target in program.targets(module, made):
        if isinstance(target, ast.ClassDef) and _class_is_empty(program, where, target):
            return f"{target.name} makes no layer and no weight"
    return ""


def _layers_of(program: Program, module: Module, made: ast.Call) -> list[tuple[Module, ast.AST]]:
    found: list[tuple[Module, ast.AST]] = []
    if made.args:
        for value in program.origins(module, made.args[0]):
            if not isinstance(value.node, ast.List | ast.Tuple) or value.steps:
                return []
            if isinstance(made.args[0], ast.Name) and _grows(program, module, made.args[0]):
                return []
            found += [(value.module, one) for one in value.node.elts]
    for call, owner in program.calls_of("add"):
        if made in _models(program, call.module, owner) and call.node.args:
            found.append((call.module, call.node.args[0]))
    return found


def _grows(program: Program, module: Module, name: ast.Name) -> bool:
    """Return whether something is added to a list of layers after it was made."""
    function = program.around.function(module, name) or module.tree
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == name.id and node.attr in ("append", "extend", "insert"):
                return True
        if isinstance(node, ast.AugAssign) and ast.unparse(node.target) == name.id:
            return True
    return False


def _cannot_learn(program: Program, module: Module, node: ast.AST) -> bool:
    values = program.origins(module, node)
    return bool(values) and all(
        isinstance(value.node, ast.Call)
        and (
            is_weightless(program.name_of(value.module, value.node.func))
            or _is_frozen(program, value.module, value.node)
        )
        for value in values
    )


def _is_frozen(program: Program, module: Module, made: ast.Call) -> bool:
    """Return whether a layer or model is made, or later set, not to be trained."""
    for keyword in made.keywords:
        if keyword.arg == "trainable" and program.constant(module, keyword.value) is False:
            return True
    last = [one for one in freezes(program) if made in _models(program, one.module, one.owner)]
    return bool(last) and all(one.freezes(program) for one in last)


def _class_is_empty(program: Program, module: Module, definition: ast.ClassDef) -> bool:
    bases = list(program.classes.bases(module, definition))
    if bases != [(module, "keras.Model")] and [base for _, base in bases] != ["keras.Model"]:
        return False
    for node in ast.walk(definition):
        if isinstance(node, ast.Call):
            name = program.name_of(module, node.func)
            method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            if method in ("add_weight", "append", "setattr") or name == "setattr":
                return False
            if name and not name.startswith(("tf.", "super", "keras.ops.", "print", "len")):
                if not is_weightless(name):
                    return False
            elif not name and method not in ("__init__", "update_state", "compute_loss"):
                if any(program.targets(module, node)) or method in ("build", ""):
                    return False
                # A class of a module that nobody has imported here may be a layer.
                if method[:1].isupper():
                    return False
        # Something given from outside may have weights.
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            function = program.around.function(module, node)
            if isinstance(function, FUNCTIONS) and getattr(function, "name", "") == "__init__":
                return False
    return any(
        isinstance(node, ast.FunctionDef) and node.name == "call" for node in definition.body
    )


RULE = Rule(
    code="DOC-310",
    family=Family.NUMBERS,
    title="a model without trainable variables is trained",
    severity=Severity.ERROR,
    look=_look,
)
