"""DOC-005: Keras 3 trains where execution is not eager: switched off, or in a graph."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.analysis import Call, Location, Program
from evener.doctor.queries.guards import is_guarded
from evener.doctor.queries.removed_names import LEGACY
from evener.doctor.queries.training import trainings
from evener.doctor.rule import Case, Violation

_SWITCHES = ("*.disable_eager_execution", "*.disable_v2_behavior")
_SESSIONS = ("tf.compat.v1.Session", "tf.Session")
_WHY = (
    "fit goes through its data in Python and stops: RuntimeError: tf.data.Dataset only supports "
    "Python-style iteration in eager mode or within tf.function."
)
_KERAS_TWO = (
    "A program that needs sessions runs with Keras 2: TF_USE_LEGACY_KERAS=1 and pip install "
    "tf_keras."
)


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program = case.program
    if any("tf_keras" in line or LEGACY in line for m in program.modules for line in m.lines):
        return
    fits = trainings(program)
    for call in program.calls(*_SWITCHES) if fits else ():
        if not is_guarded(program, call.module, call.node):
            yield Violation(
                call.location,
                "Keras 3 does not train without eager execution.",
                why=_WHY,
                fix=f"leave this line out; fit compiles its step into a graph itself. {_KERAS_TWO}",
                evidence=(call.location.text, fits[0].location.text),
            )
    for fit in fits:
        entered = _graph_around(program, fit)
        if entered is not None and not is_guarded(program, fit.module, fit.node):
            yield Violation(
                fit.location,
                "Keras 3 does not train in a session or a graph.",
                why=_WHY,
                fix=f"leave out the `with` block that enters it. {_KERAS_TWO}",
                evidence=(entered.text, fit.location.text),
                cause=entered.text,
            )


def _graph_around(program: Program, fit: Call) -> Location | None:
    """Return the line that makes the session or graph whose block is around a call."""
    for context in program.context.contexts(fit.module, fit.node):
        for value in program.origins(fit.module, context):
            if isinstance(value.node, ast.Call) and not value.steps:
                call = Call(module=value.module, node=value.node, name="")
                if program.name_of(value.module, value.node.func) in _SESSIONS:
                    return call.location
                if call.method == "as_default" and call.owner is not None:
                    made = program.made_by(value.module, call.owner)
                    if any(program.name_of(w, n.func) in (*_SESSIONS, "tf.Graph") for w, n in made):
                        return call.location
    return None
