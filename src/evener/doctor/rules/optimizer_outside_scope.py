"""ENG-003: an optimizer is created outside the scope of the strategy that it is used under."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.analysis import Kind, Location, Module, Program, argument
from evener.doctor.edit import Edit
from evener.doctor.finding import Severity
from evener.doctor.queries.scope_edits import edits_of_compile, edits_of_optimizer
from evener.doctor.queries.strategies import has_one_replica, scopes, sets_one_for_all
from evener.doctor.rule import Case, Violation

_APPLYING = ("apply_gradients", "apply", "minimize")


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program = case.program
    if not scopes(program) or sets_one_for_all(program) or has_one_replica(program):
        return
    lines = set[tuple[str, int]]()
    for location, use, is_plain, edits in (*_created_outside(program), *_compiled_outside(program)):
        if (location.path, location.line) not in lines:
            lines.add((location.path, location.line))
            yield _violation(location, use, is_plain, edits)


# Where an optimizer is created and used, whether it is plain, and the edits that move it.
_Outside = tuple[Location, Location, bool, tuple[Edit, ...]]


def _created_outside(program: Program) -> Iterator[_Outside]:
    """Yield the optimizers created outside."""
    for module, optimizer, use in _used(program):
        created = list(program.made_by(module, optimizer))
        if any(program.context.in_scope(*site) is not False for site in created):
            # The same lines serve several optimizers, one of them without a strategy.
            continue
        for where, call in created:
            if Kind.OPTIMIZER in program.kinds(where, call):
                # SGD without momentum has no variable for each weight.
                is_sgd = program.name_of(where, call.func) == "keras.optimizers.SGD"
                is_plain = is_sgd and argument(call, 1, "momentum") is None
                edits = edits_of_optimizer(program, where, call)
                yield where.location(call), use, is_plain, edits


def _used(program: Program) -> Iterator[tuple[Module, ast.expr, Location]]:
    """Yield the optimizers that are used under a strategy, and the line that uses them."""
    for call, owner in program.calls_of("compile", *_APPLYING):
        if call.method == "compile":
            given = call.argument(0, "optimizer")
            if given is not None and not isinstance(given, ast.Constant):
                is_scoped = program.context.in_scope(call.module, call.node)
                if is_scoped or _is_created_in_scope(program, call.module, owner):
                    yield call.module, given, call.location
        elif program.context.in_replica(call.module, call.node):
            yield call.module, owner, call.location


def _compiled_outside(program: Program) -> Iterator[_Outside]:
    """Yield the calls of ``compile`` outside, by which Keras creates the optimizer by its name."""
    for call, owner in program.calls_of("compile"):
        if program.context.in_scope(call.module, call.node) is not False:
            continue
        given = program.constant(call.module, call.argument(0, "optimizer"))
        if isinstance(given, str) and given != "sgd":
            if _is_created_in_scope(program, call.module, owner):
                where, model = next(program.made_by(call.module, owner))
                edits = edits_of_compile(program, call.module, call.node)
                yield call.location, where.location(model), False, edits


def _is_created_in_scope(program: Program, module: Module, model: ast.expr) -> bool:
    created = list(program.made_by(module, model))
    return bool(created) and all(program.context.in_scope(*site) is True for site in created)


def _violation(
    location: Location, use: Location, is_plain: bool, edits: tuple[Edit, ...]
) -> Violation:
    return Violation(
        location,
        f"the optimizer is made outside the strategy's scope, and used under it (line {use.line}).",
        why="Its variables are then not mirrored. "
        + (
            "SGD without momentum has none for each weight and goes on; any other optimizer "
            "stops here."
            if is_plain
            else "Where it first creates its slots training stops: RuntimeError: Mixing different "
            "tf.distribute.Strategy objects."
        ),
        fix="create the optimizer in `with strategy.scope():`, beside the model; for Keras, call "
        "compile there.",
        evidence=(location.text, use.text),
        severity=Severity.WARNING if is_plain else None,
        edits=edits,
    )
