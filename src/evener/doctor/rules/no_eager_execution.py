"""DOC-005: eager execution is switched off, and Keras 3 trains."""

from __future__ import annotations

from collections.abc import Iterator

from evener.doctor.queries.guards import is_guarded
from evener.doctor.queries.removed_names import LEGACY
from evener.doctor.queries.training import trainings
from evener.doctor.rule import Case, Violation

_SWITCHES = ("*.disable_eager_execution", "*.disable_v2_behavior")


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program = case.program
    if any("tf_keras" in line or LEGACY in line for m in program.modules for line in m.lines):
        return
    fits = trainings(program)
    for call in program.calls(*_SWITCHES):
        if fits and not is_guarded(program, call.module, call.node):
            yield Violation(
                call.location,
                "Keras 3 does not train without eager execution.",
                why="fit goes through its data in Python and stops: RuntimeError: tf.data.Dataset "
                "only supports Python-style iteration in eager mode or within tf.function.",
                fix="leave this line out; fit compiles its step into a graph itself. A program "
                "that needs sessions runs with Keras 2: TF_USE_LEGACY_KERAS=1 and pip install "
                "tf_keras.",
                evidence=(call.location.text, fits[0].location.text),
            )
