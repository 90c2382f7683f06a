"""DOC-502: training goes on from saved weights without the optimizer's state."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from evener.doctor.finding import Finding, Severity
from evener.doctor.program import Call, Kind, Program
from evener.doctor.questions.compiled import compiles
from evener.doctor.questions.optimizers import builds, keeps_slots, made_by
from evener.doctor.questions.savings import File, is_same_name, loads, saves
from evener.doctor.questions.steps import steps_of
from evener.doctor.questions.texts import shown
from evener.doctor.questions.trainings import fits
from evener.doctor.rule import Case, Family, Rule

_RESUME = re.compile(r"resum|checkpoint|ckpt|restart|contin|latest|last", re.IGNORECASE)
_WHY = (
    "The optimizer begins anew: its averages of gradients and its count of steps are lost, so that "
    "the first steps after the restart go elsewhere, and schedules begin at their start."
)


def _look(case: Case) -> Iterator[Finding]:
    program = case.program
    if not _has_slots(program):
        return
    yield from _weights_alone(program)
    yield from _checkpoint_without_optimizer(program)


def _has_slots(program: Program) -> bool:
    """Return whether some optimizer has a state that is worth keeping, or may have."""
    made = [
        call
        for call in program.calls("keras.optimizers.*")
        if Kind.OPTIMIZER in program.kinds(call.module, call.node)
    ]
    named = [call.argument(0, "optimizer") for call in compiles(program)]
    texts = [one.value for one in named if isinstance(one, ast.Constant)]
    if any(str(text).lower() not in ("sgd", "none") for text in texts):
        return True
    return any(keeps_slots(program, call.module, call.node) for call in made)


def _weights_alone(program: Program) -> Iterator[Finding]:
    written = saves(program)
    for load in loads(program):
        save = next((one for one in written if _goes_on(program, one, load)), None)
        if save is None or not _trains_after(program, load.call):
            continue
        if _keeps_optimizer(program, load) or _is_fitted_before(program, load.call):
            continue
        yield RULE.finding(
            load.call.place,
            f"training goes on from {shown(load.name or load.call.node)}, which restores the "
            "weights alone.",
            why=_WHY,
            fix="save the whole model, model.save('model.keras'), and go on from "
            "keras.models.load_model('model.keras'); in a loop of your own, "
            "tf.train.Checkpoint(model=model, optimizer=optimizer).",
            evidence=(save.call.place.text, load.call.place.text),
        )


def _goes_on(program: Program, save: File, load: File) -> bool:
    """Return whether a line loads what the program itself has saved as weights."""
    if load.what != "weights" or save.what != "weights":
        return False
    if _is_before_training(program, save.call):
        return False
    if is_same_name(program, save, load):
        return True
    if load.name is None or program.constant(load.module, load.name) is not None:
        return False
    # An option or the newest file of a folder: the file of a former run.
    texts = [ast.unparse(load.name)]
    texts += [ast.unparse(v.node) for v in program.origins(load.module, load.name)]
    return any(_RESUME.search(text) for text in texts)


def _is_before_training(program: Program, save: Call) -> bool:
    """Return whether weights are saved before any training: then there is no state to lose."""
    if save.name.endswith("ModelCheckpoint") or program.order.of(save.node) is None:
        return False
    lines = [fit.node for fit in fits(program)]
    lines += [call.node for call in steps_of(program).updates]
    if any(loop in save.module.around(save.node) for loop in steps_of(program).loops):
        return False
    if next(program.around.loops(save.module, save.node), None) is not None:
        return False
    return not any(program.order.is_before(node, save.node) for node in lines)


def _trains_after(program: Program, load: Call) -> bool:
    steps = steps_of(program)
    order = program.order
    number = order.of(load.node)
    lines = [fit.node for fit in fits(program)] + [call.node for call in steps.updates]
    if number is None:
        # In a function that nobody calls: below it in the same function is after it.
        own = program.around.function(load.module, load.node)
        return any(
            fit.module is load.module
            and program.around.function(fit.module, fit.node) is own
            and fit.node.lineno > load.node.lineno
            for fit in fits(program)
        )
    return any((order.of(node) or -1) > number for node in (*lines, *steps.loops))


def _keeps_optimizer(program: Program, load: File) -> bool:
    """Return whether the optimizer is built before, so that Keras fills it from the file."""
    for call in builds(program):
        if program.order.is_before(call.node, load.call.node):
            return True
    return False


def _is_fitted_before(program: Program, load: Call) -> bool:
    return any(program.order.is_before(fit.node, load.node) for fit in fits(program))


def _checkpoint_without_optimizer(program: Program) -> Iterator[Finding]:
    restored = [load for load in loads(program) if load.what == "checkpoint"]
    if not restored or not steps_of(program).updates:
        return
    for call in program.calls("tf.train.Checkpoint"):
        given = [keyword.value for keyword in call.node.keywords if keyword.arg is not None]
        if not given or call.node.args or any(k.arg is None for k in call.node.keywords):
            continue
        if any(_holds_optimizer(program, call, one) for one in given):
            continue
        if not any(Kind.MODEL in program.kinds(call.module, one) for one in given):
            continue
        loads_this = [load for load in restored if _is_restored(program, load, call)]
        if not loads_this or not any(_trains_after(program, one.call) for one in loads_this):
            continue
        names = ", ".join(str(keyword.arg) for keyword in call.node.keywords)
        yield RULE.finding(
            call.place,
            f"this checkpoint holds {names}, and not the optimizer.",
            why=_WHY,
            fix=f"tf.train.Checkpoint({shown(call.node)[20:-1]}, optimizer=optimizer)",
            evidence=(call.place.text, loads_this[0].call.place.text),
        )


def _holds_optimizer(program: Program, call: Call, node: ast.expr) -> bool:
    if Kind.OPTIMIZER in program.kinds(call.module, node) or "opt" in ast.unparse(node).lower():
        return True
    # A compiled model holds its optimizer itself.
    made = {value.node for value in program.origins(call.module, node)}
    for compiled in compiles(program):
        owner = compiled.owner
        if owner is not None and made & {
            value.node for value in program.origins(compiled.module, owner)
        }:
            return True
    return any(made_by(program, call.module, node))


def _is_restored(program: Program, load: File, made: Call) -> bool:
    owner = load.call.owner
    if owner is None:
        return False
    return any(value.node is made.node for value in program.origins(load.module, owner))


RULE = Rule(
    code="DOC-502",
    family=Family.CHECKPOINTS,
    title="the optimizer's state is not restored",
    severity=Severity.WARNING,
    look=_look,
)
