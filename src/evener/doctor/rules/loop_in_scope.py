"""DOC-203: the whole training loop is inside the strategy's scope."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.analysis import Location, Module, Program
from evener.doctor.finding import Severity
from evener.doctor.queries.strategies import scopes_entered
from evener.doctor.queries.training import fits, updates
from evener.doctor.rule import Case, Violation


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program = case.program
    found = set[tuple[str, int]]()
    for module, step in _steps(program):
        entered = _scope_around(program, module, step)
        if entered is None:
            continue
        where, block, loop = entered
        location = where.location(block)
        if (location.path, location.line) not in found:
            found.add((location.path, location.line))
            yield _violation(location, loop, "loop", None)
    for call in fits(program):
        for where, block in scopes_entered(program):
            if where is call.module and block in call.module.around(call.node):
                location = where.location(block)
                if (location.path, location.line) not in found:
                    found.add((location.path, location.line))
                    yield _violation(location, call.location, "fit", Severity.HINT)


def _violation(
    location: Location, loop: Location, what: str, severity: Severity | None
) -> Violation:
    if what == "fit":
        why = "It works: fit enters the scope by itself. But all that fit does not need there is "
        why += "made under the strategy too."
    else:
        why = (
            "The scope is for making variables; work is spread by strategy.run alone. All else "
            "in the block, such as metrics, validation, checkpoints and variables made on the "
            "way, runs under the strategy as well: variables are mirrored, and a model called "
            "here runs on one device alone."
        )
    return Violation(
        location,
        f"the {'call of fit' if what == 'fit' else 'whole training loop'} (line {loop.line}) is "
        "inside the strategy's scope.",
        why=why,
        fix=f"end the block before line {loop.line}: only the making of model, optimizer and "
        "metrics belongs into it.",
        evidence=(location.text, loop.text),
        severity=severity,
    )


def _steps(program: Program) -> Iterator[tuple[Module, ast.AST]]:
    """Yield the lines, in loops, that take training steps."""
    for update in updates(program):
        yield update.module, update.step


def _scope_around(
    program: Program, module: Module, node: ast.AST
) -> tuple[Module, ast.AST, Location] | None:
    """Return the block of a scope around the outermost loop around a step, with the loop."""
    seen = set[ast.AST]()
    loop: Location | None = None
    while True:
        loops = list(program.context.loops(module, node))
        if loops:
            loop = module.location(loops[-1])
        top = loops[-1] if loops else node
        if loop is not None:
            for where, block in scopes_entered(program):
                if where is module and block in set(module.around(top)):
                    if program.context.function(module, block) is program.context.function(
                        module, top
                    ):
                        return where, block, loop
        function = program.context.function(module, node)
        sites = program.call_sites(function) if function is not None else []
        if function is None or not sites or function in seen:
            return None
        seen.add(function)
        module, node = sites[0].module, sites[0].call
