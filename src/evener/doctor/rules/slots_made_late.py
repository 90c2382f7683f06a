"""DOC-305: an optimizer's slots are made in a traced step, or on one device."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.doctor.finding import Finding, Severity
from evener.doctor.program import FUNCTIONS, Call, Module, Program, last_name
from evener.doctor.questions.makings import makings_of
from evener.doctor.questions.optimizers import builds, keeps_slots, made_by
from evener.doctor.questions.pins import pins_around
from evener.doctor.questions.strategies import (
    is_only_evener,
    spreads,
    strategies,
    the_number_of_replicas,
)
from evener.doctor.questions.texts import shown
from evener.doctor.rule import Case, Family, Rule


def _look(case: Case) -> Iterator[Finding]:
    program = case.program
    built = builds(program)
    yield from _on_one_device(program, built)
    for call in program.all_calls:
        function = call.node.func
        if not isinstance(function, ast.Attribute) or function.attr != "apply_gradients":
            continue
        if _is_built(program, call, built) or not _keeps_slots(program, call):
            continue
        if program.around.in_replica(call.module, call.node) is not False:
            yield from _in_replicas(case, call)
        elif _gets_several(program, call):
            yield _traced_again(call)


def _in_replicas(case: Case, call: Call) -> Iterator[Finding]:
    program = case.program
    made = strategies(program)
    if made and not any(one.name.endswith("MirroredStrategy") for one in made):
        return
    if not spreads(program) or is_only_evener(program) or not _run_is_traced(program, call):
        return
    optimizer = shown(call.owner) if call.owner is not None else "optimizer"
    several = the_number_of_replicas(case) != 1
    yield RULE.finding(
        call.place,
        f"the slots of {optimizer} are first made here, inside strategy.run in a tf.function.",
        why='With several replicas the first step fails: InvalidArgumentError, "You must feed a '
        'value for placeholder tensor". Slots cannot be made while replicas are traced.',
        fix=f"build it in the scope, after the model: {optimizer}.build(model.trainable_variables)",
        severity=None if several else Severity.WARNING,
    )


def _run_is_traced(program: Program, call: Call) -> bool:
    """Return whether the step is traced: itself, or the call of ``strategy.run``."""
    if program.around.is_traced(call.module, call.node) is not False:
        return True
    waiting: list[tuple[Module, ast.AST]] = [(call.module, call.node)]
    seen: set[ast.AST] = set()
    while waiting:
        module, node = waiting.pop()
        function = program.around.function(module, node)
        if function is None or function in seen:
            continue
        seen.add(function)
        for site in program.call_sites(function):
            if program.around.is_traced(site.module, site.call) is not False:
                return True
            waiting.append((site.module, site.call))
    return False


def _is_built(program: Program, call: Call, built: list[Call]) -> bool:
    if call.owner is None:
        return False
    name = last_name(call.owner)
    made = {node for _, node in made_by(program, call.module, call.owner)}
    for one in built:
        if one.owner is None:
            continue
        if last_name(one.owner) == name:
            return True
        if made & {node for _, node in made_by(program, one.module, one.owner)}:
            return True
    return False


def _keeps_slots(program: Program, call: Call) -> bool:
    if call.owner is None:
        return False
    made = list(made_by(program, call.module, call.owner))
    return any(keeps_slots(program, module, node) for module, node in made)


def _gets_several(program: Program, call: Call) -> bool:
    """Return whether one traced function is given several models or optimizers in turn."""
    function = program.around.function(call.module, call.node)
    owner = call.owner
    if not isinstance(function, FUNCTIONS) or not isinstance(owner, ast.Name):
        return False
    if not program.around.is_decorated(call.module, function, "tf.function"):
        return False
    names = [one.arg for one in (*function.args.args, *function.args.kwonlyargs)]
    if owner.id not in names:
        return False
    return len({node for _, node in made_by(program, call.module, owner)}) > 1


def _traced_again(call: Call) -> Finding:
    optimizer = shown(call.owner) if call.owner is not None else "optimizer"
    return RULE.finding(
        call.place,
        f"the slots of {optimizer} are made in a tf.function that several optimizers are given to.",
        why="The function is traced anew for each of them, and makes variables when it is traced "
        "again: ValueError, tf.function only supports singleton tf.Variables created on the "
        "first call.",
        fix=f"build each before its first step, {optimizer}.build(model.trainable_variables), or "
        "make one traced function for each.",
    )


def _on_one_device(program: Program, built: list[Call]) -> Iterator[Finding]:
    for call in built:
        for pin in pins_around(program, call.module, call.node)[:1]:
            variables = call.argument(0, "variables")
            if variables is None or not pin.device:
                continue
            devices = set(_devices_of(program, call.module, variables))
            # Without pins, everything is on the first GPU.
            if devices <= {pin.device} and (devices or pin.device == "GPU:0"):
                continue
            yield RULE.finding(
                call.place,
                f"all slots of {shown(call.owner or call.node)} are made on "
                f"{pin.device or pin.named}.",
                why="The update of a variable needs its slots: in every step they, or the "
                "gradients, are copied between that device and the variable's.",
                fix="build the optimizer outside of tf.device; each slot is then made beside its "
                "variable.",
                evidence=(pin.place.text, call.place.text),
                severity=Severity.WARNING,
            )


def _devices_of(program: Program, module: Module, variables: ast.AST) -> Iterator[str]:
    """Yield the devices under which the models of a list of variables are made."""
    for value in program.origins(module, variables):
        one = value.node
        if isinstance(one, ast.BinOp):
            yield from _devices_of(program, value.module, one.left)
            yield from _devices_of(program, value.module, one.right)
        elif isinstance(one, ast.List | ast.Tuple):
            for element in one.elts:
                yield from _devices_of(program, value.module, element)
        elif isinstance(one, ast.Attribute):
            for making in makings_of(program, value.module, one.value):
                pins = pins_around(program, making.module, making.node)
                yield from (pin.device for pin in pins[:1])


RULE = Rule(
    code="DOC-305",
    family=Family.NUMBERS,
    title="optimizer slots made late, or on one device",
    severity=Severity.ERROR,
    look=_look,
)
