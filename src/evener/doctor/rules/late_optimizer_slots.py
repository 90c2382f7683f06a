"""DOC-305: an optimizer's slots are created in a traced step."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.analysis import FUNCTIONS, Call, Module, Program, last_name
from evener.doctor.finding import Severity
from evener.doctor.queries.optimizers import builds, keeps_slots, made_by
from evener.doctor.queries.source_text import shown
from evener.doctor.queries.strategies import (
    is_only_evener,
    spreads,
    strategies,
    the_number_of_replicas,
)
from evener.doctor.rule import Case, Violation


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program = case.program
    built = builds(program)
    for call in program.all_calls:
        function = call.node.func
        if not isinstance(function, ast.Attribute) or function.attr != "apply_gradients":
            continue
        if _is_built(program, call, built) or not _keeps_slots(program, call):
            continue
        if program.context.in_replica(call.module, call.node) is not False:
            yield from _in_replicas(case, call)
        elif _gets_several(program, call):
            yield _traced_again(call)


def _in_replicas(case: Case, call: Call) -> Iterator[Violation]:
    program = case.program
    made = strategies(program)
    if made and not any(strategy.name.endswith("MirroredStrategy") for strategy in made):
        return
    if not spreads(program) or is_only_evener(program) or not _run_is_traced(program, call):
        return
    optimizer = shown(call.owner) if call.owner is not None else "optimizer"
    several = the_number_of_replicas(case) != 1
    yield Violation(
        call.location,
        f"the slots of {optimizer} are first created here, inside strategy.run in a tf.function.",
        why='With several replicas the first step fails: InvalidArgumentError, "You must feed a '
        'value for placeholder tensor". Slots cannot be created while replicas are traced.',
        fix=f"build it in the scope, after the model: {optimizer}.build(model.trainable_variables)",
        severity=None if several else Severity.WARNING,
    )


def _run_is_traced(program: Program, call: Call) -> bool:
    """Return whether the step is traced: itself, or one of the calls that lead to it."""
    waiting: list[tuple[Module, ast.AST]] = [(call.module, call.node)]
    seen: set[ast.AST | None] = {None}
    while waiting:
        module, node = waiting.pop()
        if program.context.is_traced(module, node) is not False:
            return True
        function = program.context.function(module, node)
        if function is not None and function not in seen:
            waiting += [(site.module, site.call) for site in program.call_sites(function)]
        seen.add(function)
    return False


def _is_built(program: Program, call: Call, built: list[Call]) -> bool:
    """Return whether the optimizer, or one of the same name, is built somewhere."""
    if call.owner is None:
        return False
    names = {last_name(building.owner) for building in built if building.owner is not None}
    if last_name(call.owner) in names:
        return True
    made = {value.node for value in program.origins(call.module, call.owner)}
    ready = {
        value.node
        for building in built
        if building.owner is not None
        for value in program.origins(building.module, building.owner)
    }
    return bool(made) and made <= ready


def _keeps_slots(program: Program, call: Call) -> bool:
    if call.owner is None:
        return False
    made = list(made_by(program, call.module, call.owner))
    return any(keeps_slots(program, module, node) for module, node in made)


def _gets_several(program: Program, call: Call) -> bool:
    """Return whether one traced function is given several models or optimizers in turn."""
    function = program.context.function(call.module, call.node)
    owner = call.owner
    if not isinstance(function, FUNCTIONS) or not isinstance(owner, ast.Name):
        return False
    if not program.context.is_decorated(call.module, function, "tf.function"):
        return False
    names = [parameter.arg for parameter in (*function.args.args, *function.args.kwonlyargs)]
    if owner.id not in names:
        return False
    return len({node for _, node in made_by(program, call.module, owner)}) > 1


def _traced_again(call: Call) -> Violation:
    optimizer = shown(call.owner) if call.owner is not None else "optimizer"
    return Violation(
        call.location,
        f"the slots of {optimizer} are created in a tf.function that gets several optimizers.",
        why="The function is traced for each of them, and creates variables when it is traced "
        "again: ValueError, tf.function only supports singleton tf.Variables created on the "
        "first call.",
        fix=f"build each before its first step, {optimizer}.build(model.trainable_variables), or "
        "create one traced function for each.",
    )
