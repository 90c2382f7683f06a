"""ENG-003: an optimizer is made outside the scope of the strategy that it is used under."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.doctor.finding import Finding, Severity
from evener.doctor.program import Call, Kind, Module, Place, Program, argument
from evener.doctor.questions.makings import makes, makings_of
from evener.doctor.questions.strategies import has_one_replica, scopes, sets_one_for_all
from evener.doctor.rule import Case, Family, Rule

_APPLYING = ("apply_gradients", "apply", "minimize")


def _look(case: Case) -> Iterator[Finding]:
    program = case.program
    if scopes(program) and not sets_one_for_all(program) and not has_one_replica(program):
        lines = set[tuple[str, int]]()
        for place, use, is_plain in (*_made_outside(program), *_compiled_outside(program)):
            if (place.path, place.line) not in lines:
                lines.add((place.path, place.line))
                yield _finding(place, use, is_plain)


def _made_outside(program: Program) -> Iterator[tuple[Place, Place, bool]]:
    """Yield optimizers made outside: where, where they are used, and whether they are plain."""
    for module, optimizer, use in _used(program):
        made = makings_of(program, module, optimizer)
        if any(making.in_scope is not False for making in made):
            # The same lines serve several optimizers, one of them without a strategy.
            continue
        for making in made:
            if makes(program, making.call_module, making.call, Kind.OPTIMIZER):
                plain = _is_plain(program, making.call_module, making.call)
                yield making.module.place(making.node), use, plain


def _used(program: Program) -> Iterator[tuple[Module, ast.expr, Place]]:
    """Yield the optimizers that are used under a strategy, and the line that says so."""
    for call in program.all_calls:
        function = call.node.func
        if not isinstance(function, ast.Attribute):
            continue
        if function.attr == "compile" and _is_of_scope(program, call):
            given = call.argument(0, "optimizer")
            if given is not None and not isinstance(given, ast.Constant):
                yield call.module, given, call.place
        elif function.attr in _APPLYING and program.around.in_replica(call.module, call.node):
            if not isinstance(function.value, ast.Name) or function.value.id != "self":
                yield call.module, function.value, call.place


def _compiled_outside(program: Program) -> Iterator[tuple[Place, Place, bool]]:
    """Yield the calls of ``compile`` outside, by which Keras makes the optimizer by its name."""
    for call in program.all_calls:
        function = call.node.func
        if not isinstance(function, ast.Attribute) or function.attr != "compile":
            continue
        if program.around.in_scope(call.module, call.node) is not False:
            continue
        makings = makings_of(program, call.module, function.value)
        if not makings or not all(making.in_scope is True for making in makings):
            continue
        given = program.constant(call.module, call.argument(0, "optimizer"))
        if isinstance(given, str) and given != "sgd":
            made = makings[0]
            yield call.place, made.module.place(made.node), False


def _is_of_scope(program: Program, call: Call) -> bool:
    """Return whether a model that is compiled here is a strategy's."""
    if program.around.in_scope(call.module, call.node):
        return True
    assert isinstance(call.node.func, ast.Attribute)
    makings = makings_of(program, call.module, call.node.func.value)
    return bool(makings) and all(making.in_scope is True for making in makings)


def _is_plain(program: Program, module: Module, call: ast.Call) -> bool:
    """Return whether it is SGD without momentum, which has nothing for each weight."""
    if program.name_of(module, call.func) != "keras.optimizers.SGD":
        return False
    return argument(call, 1, "momentum") is None


def _finding(place: Place, use: Place, is_plain: bool) -> Finding:
    return RULE.finding(
        place,
        f"the optimizer is made outside the strategy's scope, and used under it (line {use.line}).",
        why="Its variables are then not mirrored. "
        + (
            "SGD without momentum has none for each weight and goes on; any other optimizer "
            "stops here."
            if is_plain
            else "Where it first makes its slots training stops: RuntimeError: Mixing different "
            "tf.distribute.Strategy objects."
        ),
        fix="make the optimizer in `with strategy.scope():`, beside the model; for Keras, call "
        "compile there.",
        evidence=tuple(dict.fromkeys((place.text, use.text))),
        severity=Severity.WARNING if is_plain else None,
    )


RULE = Rule(
    code="ENG-003",
    family=Family.DISTRIBUTION,
    title="optimizer made outside the strategy's scope",
    severity=Severity.ERROR,
    look=_look,
)
