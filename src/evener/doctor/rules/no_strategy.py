"""DOC-201: a program trains without a strategy on a machine with several GPUs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from evener.analysis import Location, Program
from evener.doctor.finding import Severity
from evener.doctor.queries.device_blocks import is_repeated, working_pins
from evener.doctor.queries.environment import settings
from evener.doctor.queries.gpus import visible_gpus
from evener.doctor.queries.strategies import RUNS, SCOPES, uses
from evener.doctor.queries.training import first_training, updates
from evener.doctor.rule import Case, Violation
from evener.run.eager_steps import EagerStep, eager_step_of

# Who imports one of these spreads the work in another way.
_OTHERS = ("horovod", "byteps", "ray", "mpi4py", "evener", "multiprocessing", "deepspeed")
_FIX = (
    "strategy = evener.Strategy() (or tf.distribute.MirroredStrategy()), and make and compile the "
    "model in `with strategy.scope():`; or start it unchanged by `evener run`."
)
_NUMBERED = re.compile(r":(\d+)$")
_OTHER_CALLS = (
    "tf.distribute.*Strategy",
    "tf.distribute.experimental_set_strategy",
    "tf.estimator.*",
    "tf.contrib.tpu.*",
    "tf.experimental.dtensor.*",
    "keras.utils.multi_gpu_model",
    "evener.*",
)


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program, visible = case.program, visible_gpus(case)
    if visible is None or visible < 2 or _spreads(program):
        return
    first = first_training(program)
    if first is None:
        return
    evidence = [first.text, case.surroundings.gpus_told]
    number = next(iter(_device_numbers(program) or ()), 0)
    used = f"; tf.device names GPU:{number} alone" if number else ""
    step = _eager_step(program, first)
    ignored = [call.location.text for call in program.calls("keras.distribution.*")]
    yield Violation(
        first,
        f"this trains on one of {visible} GPUs: the program has no strategy{used}.",
        why="Without a strategy TensorFlow puts all work on "
        + (f"GPU:{number}, as it is told" if number else "the first GPU")
        + "; the others idle."
        + (" keras.distribution does nothing on the TensorFlow backend." if ignored else "")
        + ("" if step is None else f" The step runs eagerly; {step}."),
        fix=_FIX if step is None else f"{step.fix}.",
        evidence=(*evidence, *ignored[:2]),
        # Who names another GPU than the first has chosen it.
        severity=Severity.HINT if number else None,
    )


def _eager_step(program: Program, first: Location) -> EagerStep | None:
    """Return the step that a line takes, if no `tf.function` traces it."""
    for update in updates(program):
        module, call = update.call.module, update.call
        is_traced = program.context.is_traced(module, call.node) is not False
        if update.module.location(update.step) == first and not is_traced:
            return eager_step_of("\n".join(module.lines), call.location.line)
    return None


def _spreads(program: Program) -> bool:
    """Return whether a program uses several devices in some way, or another back end."""
    if any(call.name != "tf.distribute.get_strategy" for call in program.calls(*_OTHER_CALLS)):
        return True
    if _device_numbers(program) is None:
        return True
    for _, node in program.nodes(ast.Import, ast.ImportFrom):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        if any(name.partition(".")[0] in _OTHERS for name in names):
            return True
    if _has_other_backend(program):
        return True
    return bool(uses(program, *SCOPES, *RUNS, "experimental_distribute_dataset"))


def _device_numbers(program: Program) -> set[int] | None:
    """Return the numbers of the GPUs on which blocks train; None if there may be several.

    A name that is found out outside of loops and functions is one device.
    """
    found: set[int] = set()
    for pin in working_pins(program):
        if not pin.call.args:
            continue
        for value in program.origins(pin.module, pin.call.args[0]):
            name = value.node.value if isinstance(value.node, ast.Constant) else None
            if isinstance(name, str) and "cpu" not in name.lower():
                number = _NUMBERED.search(name)
                found.add(int(number[1]) if number else 0)
            elif name is None and is_repeated(program, pin):
                return None
    return found if len(found) < 2 else None


def _has_other_backend(program: Program) -> bool:
    return any(
        setting.name == "KERAS_BACKEND" and setting.value not in (None, "tensorflow")
        for setting in settings(program)
    )
