"""DOC-310: a model without trainable variables is trained."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.analysis import Call, Kind, Module, Program
from evener.doctor.queries.freezes import Freeze, freezes
from evener.doctor.queries.layers import is_weightless
from evener.doctor.queries.training import fits
from evener.doctor.rule import Case, Violation

# Calls in a class that create no layer.
_FUNCTIONS = ("tf.", "super", "keras.ops.", "print", "len")
_METHODS = ("__init__", "update_state", "compute_loss")


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program = case.program
    for fit in fits(program):
        if fit.owner is None:
            continue
        frozen = _frozen_before(program, fit)
        if frozen is not None:
            text = frozen.location.text
            yield _violation(fit, f"{text} came before", text)
            continue
        for module, made in program.made_by(fit.module, fit.owner):
            reason = _without_weights(program, module, made)
            if reason:
                yield _violation(fit, reason, module.location(made).text)
                break


def _violation(fit: Call, reason: str, evidence: str) -> Violation:
    name = "" if fit.owner is None else ast.unparse(fit.owner)
    return Violation(
        fit.location,
        f"{name} is trained and has nothing to train: {reason}.",
        why="There is no gradient to compute and no variable to update. Every step takes its time, "
        "and the loss stays what it was.",
        fix="leave some layer trainable (set trainable = True before compile), or add a layer "
        "with weights, such as a Dense layer after the frozen part.",
        evidence=(fit.location.text, evidence),
    )


def _models(program: Program, module: Module, node: ast.expr | None) -> set[ast.AST]:
    return set() if node is None else {made for _, made in program.made_by(module, node)}


def _frozen_before(program: Program, fit: Call) -> Freeze | None:
    """Return what has frozen the whole model before it is trained, if nothing undid that."""
    order, made = program.order, _models(program, fit.module, fit.owner)
    before = [freeze for freeze in freezes(program) if order.is_before(freeze.node, fit.node)]
    whole = [freeze for freeze in before if made & _frozen_models(program, freeze)]
    last = max(whole, key=lambda freeze: order.of(freeze.node) or 0, default=None)
    if last is None or not last.freezes(program):
        return None
    # A part that is set trainable afterwards, or added, may be enough.
    undone = [
        freeze.node
        for freeze in before
        if order.is_before(last.node, freeze.node) and not freeze.freezes(program)
    ]
    undone += [
        call.node
        for call, owner in program.calls_of("add")
        if made & _models(program, call.module, owner) and order.is_before(last.node, call.node)
    ]
    return None if undone else last


def _frozen_models(program: Program, freeze: Freeze) -> set[ast.AST]:
    """Return the models of which all is frozen: by themselves, or layer by layer."""
    module = freeze.module
    if Kind.MODEL in program.kinds(module, freeze.owner):
        return _models(program, module, freeze.owner)
    loop = next(program.context.loops(module, freeze.node), None)
    if isinstance(loop, ast.For) and isinstance(loop.iter, ast.Attribute):
        is_all = loop.iter.attr == "layers" and isinstance(loop.target, ast.Name)
        if is_all and module.parents.get(freeze.node) is loop:
            return _models(program, module, loop.iter.value)
    return set()


def _without_weights(program: Program, module: Module, made: ast.Call) -> str:
    """Return why a model has no trainable weights; ``""`` if it has, or may have."""
    if program.name_of(module, made.func) == "keras.Sequential":
        layers = _layers_of(program, module, made)
        if layers and all(_cannot_learn(program, where, layer) for where, layer in layers):
            return "none of its layers has trainable weights"
        return ""
    for where, target in program.targets(module, made):
        if isinstance(target, ast.ClassDef) and _is_empty(program, where, target):
            return f"{target.name} makes no layer and no weight"
    return ""


def _layers_of(program: Program, module: Module, made: ast.Call) -> list[tuple[Module, ast.AST]]:
    """Return the layers of a Sequential model; nothing if they are not all known."""
    found: list[tuple[Module, ast.AST]] = []
    if made.args:
        # A list behind a name may grow.
        if not isinstance(made.args[0], ast.List | ast.Tuple):
            return []
        found += [(module, element) for element in made.args[0].elts]
    for call, owner in program.calls_of("add"):
        if made in _models(program, call.module, owner) and call.node.args:
            found.append((call.module, call.node.args[0]))
    return found


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
    """Return whether a layer or model is created, or later set, not to be trained."""
    for keyword in made.keywords:
        if keyword.arg == "trainable" and program.constant(module, keyword.value) is False:
            return True
    last = [
        freeze
        for freeze in freezes(program)
        if made in _models(program, freeze.module, freeze.owner)
    ]
    return bool(last) and all(freeze.freezes(program) for freeze in last)


def _is_empty(program: Program, module: Module, definition: ast.ClassDef) -> bool:
    """Return whether a class derives from `keras.Model` alone, and creates no layer or weight."""
    if [base for _, base in program.classes.bases(module, definition)] != ["keras.Model"]:
        return False
    methods = [statement for statement in definition.body if isinstance(statement, ast.FunctionDef)]
    given = [
        method for method in methods if method.name == "__init__" and len(method.args.args) > 1
    ]
    nodes = [node for node in ast.walk(definition) if isinstance(node, ast.Call)]
    # What `__init__` is given may have weights.
    return (
        not given
        and any(method.name == "call" for method in methods)
        and not any(_may_create(program, module, node) for node in nodes)
    )


def _may_create(program: Program, module: Module, call: ast.Call) -> bool:
    name = program.name_of(module, call.func)
    if name:
        return not name.startswith(_FUNCTIONS) and not is_weightless(name)
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    return (
        method not in _METHODS
        and (
            method in ("add_weight", "append", "build", "")
            # A class of another module may be a layer.
            or method[:1].isupper()
            or any(True for _ in program.targets(module, call))
        )
    )
