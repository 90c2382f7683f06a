"""DOC-201: a program trains without a strategy on a machine with several GPUs."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator

from evener.analysis import Call, Location, Program
from evener.doctor.queries.environment import settings
from evener.doctor.queries.gpus import visible_gpus
from evener.doctor.queries.strategies import RUNS, SCOPES, uses
from evener.doctor.queries.training import training_lines, updates
from evener.doctor.rule import Case, Violation
from evener.run.eager_step import EagerStep, eager_step_of

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
    first = _first_training(program)
    if first is None:
        return
    evidence = [first.text, case.surroundings.gpus_told]
    step = _eager_step(program, first)
    ignored = [call.location.text for call in program.calls("keras.distribution.*")]
    yield Violation(
        first,
        f"this trains on one of {visible} GPUs: the program has no strategy.",
        why="Without a strategy TensorFlow puts all work on the first GPU; the others idle."
        + (" keras.distribution does nothing on the TensorFlow backend." if ignored else "")
        + ("" if step is None else f" The step runs eagerly; {step}."),
        fix=_FIX if step is None else f"{step.fix}.",
        evidence=(*evidence, *ignored[:2]),
    )


def _eager_step(program: Program, first: Location) -> EagerStep | None:
    """Return the step that a line takes, if no `tf.function` traces it."""
    for update in updates(program):
        module, call = update.call.module, update.call
        is_traced = program.context.is_traced(module, call.node) is not False
        if update.module.location(update.step) == first and not is_traced:
            return eager_step_of("\n".join(module.lines), call.location.line)
    return None


def _first_training(program: Program) -> Location | None:
    return min(
        training_lines(program),
        key=lambda location: (location.path != program.script, location.line),
        default=None,
    )


def _spreads(program: Program) -> bool:
    """Return whether a program uses several devices in some way, or another back end."""
    if any(call.name != "tf.distribute.get_strategy" for call in program.calls(*_OTHER_CALLS)):
        return True
    if _names_several_devices(program):
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


def _names_several_devices(program: Program) -> bool:
    """Return whether blocks under `tf.device` may use several GPUs, or another one than the first.

    A block on the first GPU spreads nothing, nor does a name that is found out outside of a loop.
    """
    for call in program.calls("tf.device"):
        given = call.argument(0, "device_name")
        if given is None or _is_trial(program, call):
            continue
        names = [
            value.node.value if isinstance(value.node, ast.Constant) else None
            for value in program.origins(call.module, given)
        ]
        if any(isinstance(name, str) and _is_further(name) for name in names):
            return True
        if not all(isinstance(name, str) for name in names) and _is_repeated(program, call):
            return True
    return False


def _is_further(name: str) -> bool:
    """Return whether a device name is neither a CPU nor the first of its kind."""
    found = _NUMBERED.search(name.lower())
    return "cpu" not in name.lower() and found is not None and int(found[1]) > 0


def _is_repeated(program: Program, call: Call) -> bool:
    function = program.context.function(call.module, call.node)
    is_in_loop = next(program.context.loops(call.module, call.node), None) is not None
    # A parameter may have another value in each call.
    return is_in_loop or function is not None


def _is_trial(program: Program, pin: Call) -> bool:
    """Return whether a block under `tf.device` only tries operations, and trains nothing.

    It stands at the top of a module, in no loop, makes no variable, and calls nothing but functions
    of TensorFlow and of Python.
    """
    module, block = pin.module, pin.module.parents.get(pin.node)
    block = module.parents.get(block) if isinstance(block, ast.withitem) else None
    if not isinstance(block, ast.With):
        return False
    inside = program.context.function(module, block) or next(
        program.context.loops(module, block), 0
    )
    names = [
        program.name_of(module, node.func)
        for statement in block.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Call)
    ]
    return not inside and all(_is_of_a_trial(name) for name in names)


def _is_of_a_trial(name: str) -> bool:
    is_made = name in ("tf.Variable", "tf.GradientTape", "tf.function")
    return not is_made and (name.startswith("tf.") or hasattr(builtins, name))


def _has_other_backend(program: Program) -> bool:
    return any(
        setting.name == "KERAS_BACKEND" and setting.value not in (None, "tensorflow")
        for setting in settings(program)
    )
