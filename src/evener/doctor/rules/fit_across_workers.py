"""DOC-219: Keras 3's ``fit`` or ``evaluate`` under MultiWorkerMirroredStrategy.

Measured with TensorFlow 2.21 and Keras 3.15 on two workers: ``fit``, ``evaluate`` and
``train_on_batch`` raise a ValueError, ``predict`` and loops of ``strategy.run`` do not; with a
single worker all of them work. https://github.com/keras-team/keras/issues/20585
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.analysis import Program
from evener.doctor.finding import Severity
from evener.doctor.queries.environment import reads, settings
from evener.doctor.queries.removed_names import has_objects_of_keras_two
from evener.doctor.queries.strategies import strategies
from evener.doctor.queries.training import is_beside_strategy, steps_of_keras
from evener.doctor.rule import Case, Violation

_VARIABLE = "TF_CONFIG"


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program = case.program
    made = [each.call for each in strategies(program) if each.name == "MultiWorkerMirroredStrategy"]
    if not made or has_objects_of_keras_two(case) or _has_one_worker(program):
        return
    calls = [
        call
        for call in steps_of_keras(program)
        if call.method != "predict" and not is_beside_strategy(program, call)
    ]
    if not calls or len(strategies(program)) > len(made):
        return
    first = calls[0]
    is_certain = (
        any(setting.name == _VARIABLE for setting in settings(program))
        or reads(program, _VARIABLE)
        or bool(case.surroundings.environment.get(_VARIABLE))
    )
    yield Violation(
        first.location,
        f"Keras 3 has no {first.method} under MultiWorkerMirroredStrategy.",
        why="With a second worker it raises ValueError: Attempt to convert a value (PerReplica:...)"
        " to a Tensor (keras#20585).",
        fix="start the unchanged script by `evener launch`, which makes one big device of all "
        "workers; or train with Keras 2 (TF_USE_LEGACY_KERAS=1 and pip install tf_keras); or write "
        "a loop of strategy.run.",
        evidence=(first.location.text, made[0].location.text),
        severity=Severity.ERROR if is_certain else None,
    )


def _has_one_worker(program: Program) -> bool:
    """Return whether the program itself writes a cluster of a single task."""
    hosts = [
        value
        for _, node in program.nodes(ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant) and key.value in ("worker", "chief")
    ]
    return (
        bool(hosts)
        and sum(len(each.elts) if isinstance(each, ast.List | ast.Tuple) else 2 for each in hosts)
        == 1
    )
