"""DOC-203: the whole training loop is inside the strategy's scope."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.doctor.finding import Finding, Severity
from evener.doctor.program import Module, Place, Program
from evener.doctor.questions.strategies import scopes_entered
from evener.doctor.questions.trainings import fits, updates
from evener.doctor.rule import Case, Family, Rule


def _look(case: Case) -> Iterator[Finding]:
    program = case.program
    found = set[tuple[str, int]]()
    for module, step in _steps(program):
        entered = _scope_around(program, module, step)
        if entered is None:
            continue
        where, block, loop = entered
        place = where.place(block)
        if (place.path, place.line) not in found:
            found.add((place.path, place.line))
            yield _finding(place, loop, "loop", None)
    for call in fits(program):
        for where, block in scopes_entered(program):
            if where is call.module and block in call.module.around(call.node):
                place = where.place(block)
                if (place.path, place.line) not in found:
                    found.add((place.path, place.line))
                    yield _finding(place, call.place, "fit", Severity.HINT)


def _finding(place: Place, loop: Place, what: str, severity: Severity | None) -> Finding:
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
    return RULE.finding(
        place,
        f"the {'call of fit' if what == 'fit' else 'whole training loop'} (line {loop.line}) is "
        "inside the strategy's scope.",
        why=why,
        fix=f"end the block before line {loop.line}: only the making of model, optimizer and "
        "metrics belongs into it.",
        evidence=(place.text, loop.text),
        severity=severity,
    )


def _steps(program: Program) -> Iterator[tuple[Module, ast.AST]]:
    """Yield the lines, in loops, that take training steps."""
    for update in updates(program):
        yield update.module, update.step


def _scope_around(
    program: Program, module: Module, node: ast.AST
) -> tuple[Module, ast.AST, Place] | None:
    """Return the block of a scope around the outermost loop around a step, with the loop."""
    seen = set[ast.AST]()
    loop: Place | None = None
    while True:
        loops = list(program.around.loops(module, node))
        if loops:
            loop = module.place(loops[-1])
        top = loops[-1] if loops else node
        if loop is not None:
            for where, block in scopes_entered(program):
                if where is module and block in set(module.around(top)):
                    if program.around.function(module, block) is program.around.function(
                        module, top
                    ):
                        return where, block, loop
        function = program.around.function(module, node)
        sites = program.call_sites(function) if function is not None else []
        if function is None or not sites or function in seen:
            return None
        seen.add(function)
        module, node = sites[0].module, sites[0].call


RULE = Rule(
    code="DOC-203",
    family=Family.DISTRIBUTION,
    title="the whole training loop inside the scope",
    severity=Severity.WARNING,
    look=_look,
)
