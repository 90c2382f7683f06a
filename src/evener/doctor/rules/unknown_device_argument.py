"""DOC-109: Keras is given an argument for devices that it does not have."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.analysis import Kind, Program
from evener.doctor.queries.removed_names import LEGACY
from evener.doctor.queries.training import is_of_model
from evener.doctor.rule import Case, Violation

_ARGUMENTS = (
    *("device", "devices", "device_name", "gpu", "gpus", "gpu_id", "gpu_ids"),
    *("num_gpus", "n_gpus", "num_gpu", "use_gpu", "use_gpus", "gpu_memory_fraction"),
)
_METHODS = ("fit", "compile", "evaluate", "predict", "train_on_batch")
_CALLS = (
    *("keras.layers.*", "keras.Sequential", "keras.optimizers.*"),
    *("keras.applications.*", "keras.saving.load_model", "keras.models.load_model"),
)


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program = case.program
    if any("tf_keras" in line or LEGACY in line for m in program.modules for line in m.lines):
        return
    calls = [
        *program.calls(*_CALLS),
        *(
            call
            for call, owner in program.calls_of(*_METHODS)
            if is_of_model(program, call)
            and program.kinds(call.module, owner) == {Kind.MODEL}
            and not _has_own(program, call.method)
        ),
    ]
    for call in calls:
        for keyword in call.node.keywords:
            if keyword.arg in _ARGUMENTS:
                yield Violation(
                    call.location,
                    f"Keras has no argument {keyword.arg}; arguments do not choose its devices.",
                    why="The call stops with TypeError, or ValueError: unrecognized keyword "
                    "arguments.",
                    fix="leave it out. For all GPUs, make and compile the model in `with "
                    "strategy.scope():` of a tf.distribute.MirroredStrategy(); for one, in `with "
                    "tf.device('/GPU:1'):`.",
                )


def _has_own(program: Program, method: str) -> bool:
    """Return whether a class of the program has a method of this name, with its own arguments."""
    return any(node.name == method for _, node in program.nodes(ast.FunctionDef))
