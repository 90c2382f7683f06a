"""DOC-202: a strategy is made and never used."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.doctor.finding import Finding, Severity
from evener.doctor.program import Module, Program
from evener.doctor.questions.strategies import (
    RUNS,
    SCOPES,
    Made,
    sets_one_for_all,
    strategies,
    uses,
)
from evener.doctor.questions.trainings import places_of_training
from evener.doctor.rule import Case, Family, Rule

_ASKING = ("print", "len", "isinstance", "type", "str", "repr", "id", "hasattr", "logging.*")


def _look(case: Case) -> Iterator[Finding]:
    program = case.program
    made = strategies(program)
    if not made or sets_one_for_all(program):
        return
    if not places_of_training(program):
        # What it is for cannot be told: somebody else's code may train.
        return
    used = uses(program, *SCOPES, *RUNS, "schedule")
    known = set[ast.AST]()
    for call in used:
        function = call.node.func
        assert isinstance(function, ast.Attribute)
        origins = {value.node for value in program.origins(call.module, function.value)}
        if not any(isinstance(one, ast.Call) for one in origins):
            # Whose scope that is cannot be told: it may be any strategy's.
            return
        known |= origins
    for one in made:
        if one.call.node in known:
            continue
        if not _is_given_away(program, one):
            yield _finding(program, one)


def _finding(program: Program, made: Made) -> Finding:
    trained = places_of_training(program)
    return RULE.finding(
        made.call.place,
        f"this {made.name} is never used: neither its scope() nor its run().",
        why="Making a strategy changes nothing by itself: the model is made for one device, and "
        "it trains there alone.",
        fix="make and compile the model in `with strategy.scope():`, and in a loop of your own "
        "call the step by strategy.run.",
        evidence=(made.call.place.text, *(place.text for place in trained[:1])),
    )


def _is_given_away(program: Program, made: Made) -> bool:
    """Return whether the strategy is given to something that the doctor does not read."""
    for module, node in program.nodes(ast.Name, ast.Attribute):
        if not isinstance(getattr(node, "ctx", None), ast.Load):
            continue
        if not _may_be(module, node):
            continue
        if any(value.node is made.call.node for value in program.origins(module, node)):
            if _leaves(program, module, node):
                return True
    return _leaves(program, made.call.module, made.call.node)


def _may_be(module: Module, node: ast.AST) -> bool:
    """Return whether a use is worth following: it stands in a call, a container or a return."""
    parent = module.parents.get(node)
    return isinstance(
        parent, ast.Call | ast.keyword | ast.Dict | ast.List | ast.Tuple | ast.Return | ast.Lambda
    )


def _leaves(program: Program, module: Module, node: ast.AST) -> bool:
    parent = module.parents.get(node)
    if isinstance(parent, ast.Lambda):
        return True
    if isinstance(parent, ast.Return):
        function = program.around.function(module, parent)
        return function is not None and not program.call_sites(function)
    call = module.parents.get(parent) if isinstance(parent, ast.keyword) else parent
    if isinstance(call, ast.Dict | ast.List | ast.Tuple):
        return True
    if not isinstance(call, ast.Call) or call.func is node:
        return False
    name = program.name_of(module, call.func)
    if name in _ASKING or name.startswith(("logging.", "absl.logging.")):
        return False
    return not list(program.targets(module, call))


RULE = Rule(
    code="DOC-202",
    family=Family.DISTRIBUTION,
    title="a strategy is made and never used",
    severity=Severity.WARNING,
    look=_look,
)
