"""ENG-006: a model is made outside the scope of the strategy that it is to be trained under."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.doctor.finding import Finding, Severity
from evener.doctor.program import Call, Kind, Module, Program
from evener.doctor.questions.makings import Making, makes, makings_of
from evener.doctor.questions.strategies import (
    has_one_replica,
    scopes,
    scopes_entered,
    sets_one_for_all,
)
from evener.doctor.questions.trainings import trainings
from evener.doctor.rule import Case, Family, Rule

_WEIGHTS = ("trainable_variables", "trainable_weights")


def _look(case: Case) -> Iterator[Finding]:
    program = case.program
    lines = set[tuple[str, int]]()
    if scopes(program) and not sets_one_for_all(program) and not has_one_replica(program):
        for making, module, use in _outside(program):
            place = making.module.place(making.node)
            if (place.path, place.line) not in lines:
                lines.add((place.path, place.line))
                yield _finding(program, making, module, use)


def _outside(program: Program) -> Iterator[tuple[Making, Module, ast.AST]]:
    """Yield models made outside, with the line by which they are a strategy's."""
    for module, model, use in (*_in_scope(program), *_in_replicas(program), *_parts(program)):
        made = makings_of(program, module, model)
        if any(making.in_scope is not False for making in made):
            # The same lines serve several models, one of them without a strategy.
            continue
        for making in made:
            if _is_made_by(program, making):
                yield making, module, use
    yield from _fitted(program)


def _is_made_by(program: Program, making: Making) -> bool:
    return makes(program, making.call_module, making.call, Kind.MODEL)


def _in_scope(program: Program) -> Iterator[tuple[Module, ast.expr, ast.AST]]:
    """Yield the models that are compiled or trained in a scope."""
    for call in program.all_calls:
        function = call.node.func
        if isinstance(function, ast.Attribute) and function.attr in ("compile", "fit"):
            if program.around.in_scope(call.module, call.node) is True:
                yield call.module, function.value, call.node


def _in_replicas(program: Program) -> Iterator[tuple[Module, ast.expr, ast.AST]]:
    """Yield the models whose weights a replica's function trains."""
    for module, node in program.nodes(ast.Attribute):
        assert isinstance(node, ast.Attribute)
        if node.attr in _WEIGHTS and program.around.in_replica(module, node):
            if not isinstance(node.value, ast.Name) or node.value.id != "self":
                yield module, node.value, node


def _parts(program: Program) -> Iterator[tuple[Module, ast.expr, ast.AST]]:
    """Yield what is put into a model that is made in a scope, or called while it is."""
    for call in program.all_calls:
        if not makes(program, call.module, call.node, Kind.MODEL):
            continue
        if program.around.in_scope(call.module, call.node) is not True:
            continue
        given = call.node.args[0] if call.node.args else None
        for one in given.elts if isinstance(given, ast.List) else []:
            if _has_weights_already(program, call.module, one):
                yield call.module, one, call.node


def _has_weights_already(program: Program, module: Module, node: ast.expr) -> bool:
    """Return whether a part is a model that has its weights before it is put into another."""
    for value in program.origins(module, node):
        if isinstance(value.node, ast.Call):
            name = program.name_of(value.module, value.node.func)
            if name.startswith(("keras.applications.", "keras.models.load_model")):
                return True
    return False


def _fitted(program: Program) -> Iterator[tuple[Making, Module, ast.AST]]:
    """Yield models that are trained, where a scope is entered but for none of them."""
    pairs = list[tuple[Making, Call]]()
    for call in trainings(program):
        assert isinstance(call.node.func, ast.Attribute)
        made = makings_of(program, call.module, call.node.func.value)
        if not made or any(one.in_scope is not False for one in made):
            # The scope is for this model, or may be.
            return
        pairs += [(one, call) for one in made if _is_made_by(program, one)]
    if any(True for _ in scopes_entered(program)):
        for making, call in pairs:
            yield making, call.module, call.node


def _finding(program: Program, making: Making, module: Module, use: ast.AST) -> Finding:
    place, used = making.module.place(making.node), module.place(use)
    entered = [where.place(block) for where, block in scopes_entered(program)]
    name = _name_of_model(making)
    return RULE.finding(
        place,
        f"{name} is made outside the strategy's scope, and is to be trained under it "
        f"(line {used.line}).",
        why="A strategy mirrors the variables that are made in its scope, and no others: "
        "training stops with 'Mixing different tf.distribute.Strategy objects' or 'Need to be "
        'inside "with strategy.scope()"\', or runs on one device alone.',
        fix="move this line, and the compile, into `with strategy.scope():`"
        + (f" (line {entered[0].line})." if entered else "."),
        evidence=tuple(dict.fromkeys(one.text for one in (place, used, *entered[:1]) if one.text)),
    )


def _name_of_model(making: Making) -> str:
    parent = making.module.parents.get(making.node)
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1:
        return ast.unparse(parent.targets[0])
    return "the model"


RULE = Rule(
    code="ENG-006",
    family=Family.DISTRIBUTION,
    title="model made outside the strategy's scope",
    severity=Severity.ERROR,
    look=_look,
)
