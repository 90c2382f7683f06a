"""DOC-202: a strategy is made and never used."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.analysis import Module, Program
from evener.doctor.queries.strategies import RUNS, SCOPES, Made, sets_one_for_all, strategies, uses
from evener.doctor.queries.training import training_lines
from evener.doctor.rule import Case, Violation

# Where a use of a name may give its value away.
_TAKING = (ast.Call, ast.keyword, ast.Dict, ast.List, ast.Tuple, ast.Return)
_ASKING = ("print", "len", "isinstance", "type", "str", "repr", "id", "hasattr", "logging.*")


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program = case.program
    made = strategies(program)
    if not made or sets_one_for_all(program):
        return
    if not training_lines(program):
        # Code of another project may train with it.
        return
    used = uses(program, *SCOPES, *RUNS, "schedule")
    known = set[ast.AST]()
    for call in used:
        function = call.node.func
        assert isinstance(function, ast.Attribute)
        origins = {value.node for value in program.origins(call.module, function.value)}
        if not any(isinstance(origin, ast.Call) for origin in origins):
            # It may be the scope of any strategy.
            return
        known |= origins
    for strategy in made:
        if strategy.call.node in known:
            continue
        if not _is_given_away(program, strategy):
            yield _violation(program, strategy)


def _violation(program: Program, made: Made) -> Violation:
    trained = training_lines(program)
    return Violation(
        made.call.location,
        f"this {made.name} is never used: neither its scope() nor its run().",
        why="Making a strategy changes nothing by itself: the model is made for one device, and "
        "it trains there alone.",
        fix="make and compile the model in `with strategy.scope():`, and in a loop of your own "
        "call the step by strategy.run.",
        evidence=(made.call.location.text, *(location.text for location in trained[:1])),
    )


def _is_given_away(program: Program, made: Made) -> bool:
    """Return whether the strategy is given to something that the doctor does not read."""
    if _leaves(program, made.call.module, made.call.node):
        return True
    return any(
        isinstance(getattr(node, "ctx", None), ast.Load)
        and isinstance(module.parents.get(node), _TAKING)
        and any(value.node is made.call.node for value in program.origins(module, node))
        and _leaves(program, module, node)
        for module, node in program.nodes(ast.Name, ast.Attribute)
    )


def _leaves(program: Program, module: Module, node: ast.AST, deepest: int = 4) -> bool:
    parent = module.parents.get(node)
    call = module.parents.get(parent) if isinstance(parent, ast.keyword) else parent
    if isinstance(call, ast.Dict | ast.List | ast.Tuple):
        return True
    if isinstance(call, ast.Return):
        function = program.context.function(module, call)
        sites = program.call_sites(function) if function is not None and deepest else []
        if not sites:
            return function is not None
        return any(_leaves(program, site.module, site.call, deepest - 1) for site in sites)
    if not isinstance(call, ast.Call) or call.func is node:
        return False
    name = program.name_of(module, call.func)
    is_asking = name in _ASKING or name.startswith(("logging.", "absl.logging."))
    return not is_asking and not list(program.targets(module, call))
