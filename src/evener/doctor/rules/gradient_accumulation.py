"""DOC-218: a Keras optimizer accumulates gradients under a strategy of several replicas."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.doctor.queries.strategies import strategies, the_number_of_replicas
from evener.doctor.queries.training import trains
from evener.doctor.rule import Case, Violation

_MIRRORED = ("MirroredStrategy", "MultiWorkerMirroredStrategy")


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program = case.program
    mirrored = [made for made in strategies(program) if made.name in _MIRRORED]
    if not mirrored or the_number_of_replicas(case) == 1:
        return
    for call in program.calls("keras.optimizers.*") if trains(program) else ():
        given = call.argument(None, "gradient_accumulation_steps")
        if given is None or (isinstance(given, ast.Constant) and given.value is None):
            continue
        yield Violation(
            call.location,
            f"gradient_accumulation_steps does not work under {mirrored[0].name}.",
            why="Keras decides by tf.cond whether it updates the weights, and replicas cannot meet "
            "in a condition. The first step stops: RuntimeError: merge_call called while "
            "defining a new graph or a tf.function.",
            fix="evener.Strategy(), under which it works as on one device; or leave it out and use "
            "a smaller batch, or accumulate in a train_step of your own.",
            evidence=(call.location.text, mirrored[0].call.location.text),
        )
