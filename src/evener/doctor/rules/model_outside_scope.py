"""DOC-215: a model is created outside the scope of the strategy that it is trained under."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.analysis import FUNCTIONS, Kind, Location, Module, Program, returns_of
from evener.doctor.edit import Edit
from evener.doctor.queries.scope_edits import edits_of_model
from evener.doctor.queries.strategies import is_only_evener, scopes, sets_one_for_all
from evener.doctor.rule import Case, Violation

_WEIGHTS = ("trainable_variables", "trainable_weights")


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program = case.program
    if not scopes(program) or sets_one_for_all(program) or is_only_evener(program):
        return
    reported = set[Location]()
    for module, model, use in _trained(program):
        created = list(program.made_by(module, model))
        if any(program.context.in_scope(*site) is not False for site in created):
            # The same lines serve several models, one of them without a strategy.
            continue
        if _is_assigned_in_scope(program, module, model):
            continue
        for where, call in created:
            origin, creation = _creation(program, where, call)
            location = origin.location(creation)
            if Kind.MODEL in program.kinds(where, call) and location not in reported:
                reported.add(location)
                edits = edits_of_model(program, origin, creation)
                yield _violation(location, use, edits)


def _trained(program: Program) -> Iterator[tuple[Module, ast.expr, Location]]:
    """Yield the models that are trained under a strategy, and the line that trains them."""
    for call, owner in program.calls_of("compile", "fit"):
        if program.context.in_scope(call.module, call.node):
            yield call.module, owner, call.location
    for module, node in program.nodes(ast.Attribute):
        if node.attr in _WEIGHTS and program.context.in_replica(module, node):
            yield module, node.value, module.location(node)


def _is_assigned_in_scope(program: Program, module: Module, model: ast.expr) -> bool:
    """Return whether a name stands for several models, one of them created in the scope."""
    return any(
        where is module
        and any(ast.unparse(target) == ast.unparse(model) for target in node.targets)
        and program.context.in_scope(where, node) is not False
        for where, node in program.nodes(ast.Assign)
    )


def _creation(program: Program, module: Module, call: ast.Call) -> tuple[Module, ast.Call]:
    """Return the call that creates a model, or the one that calls the function returning it."""
    function = program.context.function(module, call)
    if isinstance(function, FUNCTIONS):
        sites = [site for site in program.call_sites(function) if site.way == "call"]
        origins = (
            origin for value in returns_of(function) for origin in program.origins(module, value)
        )
        if len(sites) == 1 and any(origin.node is call for origin in origins):
            return sites[0].module, sites[0].call
    return module, call


def _violation(location: Location, use: Location, edits: tuple[Edit, ...]) -> Violation:
    return Violation(
        location,
        f"the model is made outside the strategy's scope, and trained under it (line {use.line}).",
        why="A strategy mirrors only the variables that are created in its scope. Training stops "
        "with 'Mixing different tf.distribute.Strategy objects' or 'Need to be inside \"with "
        "strategy.scope()\"', or runs on one device.",
        fix="create the model in `with strategy.scope():`; for Keras, call compile there.",
        evidence=(location.text, use.text),
        edits=edits,
    )
