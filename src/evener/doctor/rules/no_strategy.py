"""DOC-201: a program trains without a strategy on a machine with several GPUs."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

from evener.analysis import Call, Location, Program
from evener.doctor.queries.environment import settings
from evener.doctor.queries.gpus import visible_gpus
from evener.doctor.queries.strategies import RUNS, SCOPES, uses
from evener.doctor.queries.training import training_lines
from evener.doctor.rule import Case, Violation

# Who imports one of these spreads the work in another way.
_OTHERS = ("horovod", "byteps", "ray", "mpi4py", "evener", "multiprocessing", "deepspeed")
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
    ignored = [call.location.text for call in program.calls("keras.distribution.*")]
    yield Violation(
        first,
        f"this trains on one of {visible} GPUs: the program has no strategy.",
        why="Without a strategy TensorFlow puts all work on the first GPU; the others idle."
        + (" keras.distribution does nothing on the TensorFlow backend." if ignored else ""),
        fix="strategy = evener.Strategy() (or tf.distribute.MirroredStrategy()), and make and "
        "compile the model in `with strategy.scope():`; or start it unchanged by "
        "`evener run`.",
        evidence=(*evidence, *ignored[:2]),
    )


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
    for call in program.calls("tf.device"):
        given = call.argument(0, "device_name")
        if given is not None and "cpu" not in ast.unparse(given).lower():
            if not _is_trial(program, call):
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
