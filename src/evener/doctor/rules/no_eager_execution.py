"""DOC-005: Keras 3 goes through data where execution is not eager: switched off, or in a graph."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.analysis import Call, Location, Program
from evener.doctor.queries.guards import is_guarded
from evener.doctor.queries.removed_names import LEGACY
from evener.doctor.queries.training import steps_of_keras
from evener.doctor.rule import Case, Violation

_SWITCHES = ("*.disable_eager_execution", "*.disable_v2_behavior")
_SESSIONS = ("tf.compat.v1.Session", "tf.Session")
_WHY = (
    "{} goes through its data in Python and stops: RuntimeError: tf.data.Dataset only supports "
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
    calls = steps_of_keras(program)
    for call in program.calls(*_SWITCHES) if calls else ():
        if not is_guarded(program, call.module, call.node):
            yield Violation(
                call.location,
                f"{calls[0].method} of Keras 3 needs eager execution.",
                why=_why(calls[0]),
                fix="leave this line out; Keras compiles its step into a graph itself. "
                f"{_KERAS_TWO}",
                evidence=(call.location.text, calls[0].location.text),
            )
    for call in calls:
        entered = _graph_around(program, call)
        if entered is not None and not is_guarded(program, call.module, call.node):
            yield Violation(
                call.location,
                f"{call.method} of Keras 3 runs in no session or graph.",
                why=_why(call),
                fix=f"leave out the `with` block that enters it. {_KERAS_TWO}",
                evidence=(entered.text, call.location.text),
                cause=entered.text,
            )


def _why(call: Call) -> str:
    if call.method.endswith("_on_batch"):
        return (
            f"{call.method} only adds its step to a graph, which nothing runs: no weight changes."
        )
    return _WHY.format(call.method)


def _graph_around(program: Program, inner: Call) -> Location | None:
    """Return the line that makes the session or graph whose block is around a call."""
    for context in program.context.contexts(inner.module, inner.node):
        for value in program.origins(inner.module, context):
            if isinstance(value.node, ast.Call) and not value.steps:
                call = Call(module=value.module, node=value.node, name="")
                if program.name_of(value.module, value.node.func) in _SESSIONS:
                    return call.location
                if call.method == "as_default" and call.owner is not None:
                    made = program.made_by(value.module, call.owner)
                    if any(program.name_of(w, n.func) in (*_SESSIONS, "tf.Graph") for w, n in made):
                        return call.location
    return None
