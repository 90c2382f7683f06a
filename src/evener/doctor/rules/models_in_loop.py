"""DOC-601: models are made and trained in a loop, and their memory does not come back."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.analysis import Call, Function, Kind, Loop, Module, Program
from evener.doctor.finding import Severity
from evener.doctor.queries.training import trainings
from evener.doctor.rule import Case, Violation

# A loop of fewer rounds is a hint.
_MANY = 20
# Number of levels of callers that are searched.
_DEEPEST = 2


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program = case.program
    told: set[ast.AST] = set()
    for fit in trainings(program):
        for where, loop, made in _made_in_loop(program, fit):
            if made in told:
                continue
            told.add(made)
            location = fit.module.location(made)
            yield Violation(
                location,
                "every round of the loop makes and trains a model, and memory grows with each.",
                why="Keras and TensorFlow keep the compiled step of a trained model, with its "
                "weights and optimizer state, until the process ends; del and clear_session() do "
                "not return it. Searches run out of memory after some models.",
                fix="train each model in a process of its own (multiprocessing, or one call of the "
                "script per model); or make it once, and in each round "
                "model.set_weights(first_weights) and reset the optimizer's variables.",
                evidence=(where.location(loop).text, location.text, fit.location.text),
                severity=Severity.WARNING if _is_long(program, where, loop) else Severity.HINT,
            )


def _made_in_loop(program: Program, fit: Call) -> Iterator[tuple[Module, Loop, ast.Call]]:
    """Yield the loops around ``fit`` in which its model is made, with the call that makes it."""
    if not isinstance(fit.owner, ast.Name):
        return
    bindings = [
        binding.value
        for where, binding in program.bindings(fit.module, fit.owner)
        if where is fit.module and isinstance(binding.value, ast.Call) and not binding.steps
    ]
    for value in (each for each in bindings if _makes(program, fit, each)):
        loop = _loop_around_both(program, fit, value)
        if loop is not None:
            yield *loop, value
            return


def _loop_around_both(program: Program, fit: Call, made: ast.Call) -> tuple[Module, Loop] | None:
    """Return the innermost loop around both; around the calls of their function, a long one."""
    for loop in program.context.loops(fit.module, fit.node):
        if loop in program.context.loops(fit.module, made):
            return fit.module, loop
    function = program.context.function(fit.module, fit.node)
    if function is None or program.context.function(fit.module, made) is not function:
        return None
    return _loop_around_calls(program, function, _DEEPEST)


def _loop_around_calls(
    program: Program, function: Function, deepest: int
) -> tuple[Module, Loop] | None:
    for site in program.call_sites(function):
        for loop in program.context.loops(site.module, site.call):
            if _is_long(program, site.module, loop):
                return site.module, loop
        caller = program.context.function(site.module, site.call)
        if caller is not None and deepest:
            found = _loop_around_calls(program, caller, deepest - 1)
            if found is not None:
                return found
    return None


def _makes(program: Program, fit: Call, call: ast.Call) -> bool:
    is_model = Kind.MODEL in program.kinds(fit.module, call)
    return is_model and Kind.MODEL not in program.kinds(fit.module, call.func)


def _is_long(program: Program, module: Module, loop: Loop) -> bool:
    rounds = _rounds(program, module, loop)
    return isinstance(loop, ast.While) or (rounds is not None and rounds >= _MANY)


def _rounds(program: Program, module: Module, loop: Loop) -> int | None:
    """Return the number of rounds of ``for ... in range(n)``; None if it is not known."""
    if isinstance(loop, ast.While) or not isinstance(loop.iter, ast.Call):
        return None
    if program.name_of(module, loop.iter.func) != "range" or len(loop.iter.args) != 1:
        return None
    number = program.constant(module, loop.iter.args[0])
    return number if isinstance(number, int) else None
