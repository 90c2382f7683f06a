"""DOC-502: training continues from saved weights without the optimizer's state."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from evener.analysis import Call, Kind, Program
from evener.doctor.queries.checkpoints import File, is_same_name, loads, saves
from evener.doctor.queries.optimizers import builds, keeps_slots
from evener.doctor.queries.source_text import shown
from evener.doctor.queries.steps import steps_of
from evener.doctor.queries.training import compiles, fits
from evener.doctor.rule import Case, Violation

_RESUME = re.compile(r"resum|checkpoint|ckpt|restart|contin|latest|last", re.IGNORECASE)
_WHY = (
    "The optimizer restarts: its averages of gradients and its count of steps are lost, so that "
    "the first steps after the restart go elsewhere, and schedules begin at their start."
)


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program = case.program
    if not _has_slots(program):
        return
    written = saves(program)
    # Keras fills an optimizer from the file that is built before; after fit, it is.
    building = [call.node for call in (*builds(program), *fits(program))]
    for load in loads(program):
        save = next((file for file in written if _goes_on(program, file, load)), None)
        if save is None or not _trains_after(program, load.call):
            continue
        if any(program.order.is_before(node, load.call.node) for node in building):
            continue
        yield Violation(
            load.call.location,
            f"training goes on from {shown(load.name or load.call.node)}, which restores the "
            "weights alone.",
            why=_WHY,
            fix="save the whole model, model.save('model.keras'), and go on from "
            "keras.models.load_model('model.keras'); in a custom loop, "
            "tf.train.Checkpoint(model=model, optimizer=optimizer).",
            evidence=(save.call.location.text, load.call.location.text),
        )


def _has_slots(program: Program) -> bool:
    """Return whether some optimizer has a state that is worth keeping, or may have."""
    made = [
        call
        for call in program.calls("keras.optimizers.*")
        if Kind.OPTIMIZER in program.kinds(call.module, call.node)
    ]
    named = [call.argument(0, "optimizer") for call in compiles(program)]
    texts = [part.value for part in named if isinstance(part, ast.Constant)]
    if any(str(text).lower() not in ("sgd", "none") for text in texts):
        return True
    return any(keeps_slots(program, call.module, call.node) for call in made)


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
    if next(program.context.loops(save.module, save.node), None) is not None:
        return False
    nodes = [call.node for call in (*fits(program), *steps_of(program).updates)]
    return not any(program.order.is_before(node, save.node) for node in nodes)


def _trains_after(program: Program, load: Call) -> bool:
    order, steps = program.order, steps_of(program)
    number = order.of(load.node)
    nodes = [fit.node for fit in fits(program)] + [call.node for call in steps.updates]
    if number is None:
        # In a function that nobody calls, what follows below runs later.
        own = program.context.function(load.module, load.node)
        return any(
            program.context.function(fit.module, fit.node) is own
            and fit.node.lineno > load.node.lineno
            for fit in fits(program)
        )
    return any((order.of(node) or -1) > number for node in (*nodes, *steps.loops))
