"""DOC-006: a function of TensorFlow, or ``add_loss``, on a symbolic tensor of Keras 3."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from evener.analysis import Call, Program
from evener.doctor.queries.guards import is_guarded
from evener.doctor.queries.removed_names import LEGACY
from evener.doctor.queries.source_text import shown
from evener.doctor.queries.symbolic import is_in_computation, is_symbolic
from evener.doctor.rule import Case, Violation

_OPERATION = re.compile(r"tf\.((math|nn|image|signal|linalg|strings|random|dtypes)\.)?[a-z]\w*")
_ACCEPTS = (
    "tf.print",
    "tf.function",
    "tf.is_tensor",
    "tf.device",
    "tf.name_scope",
    "tf.py_function",
)
_ADDING = {
    ".add_loss": "call self.add_loss(loss) in the call method of a layer or a model of your own, "
    "or give the loss to compile.",
    ".add_metric": "give the metric to compile; or make it in __init__ of a layer, and update it "
    "in its call method.",
}
_MODELS = ("keras.Model", "keras.models.Model")


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program = case.program
    if any("tf_keras" in line or LEGACY in line for m in program.modules for line in m.lines):
        return
    for call in program.all_calls:
        if call.name in _ADDING:
            yield from _added(program, call)
        elif _OPERATION.fullmatch(call.name) and call.name not in _ACCEPTS:
            yield from _operation(program, call)


def _operation(program: Program, call: Call) -> Iterator[Violation]:
    given = [*call.node.args, *(keyword.value for keyword in call.node.keywords)]
    parts = [p for g in given for p in (g.elts if isinstance(g, ast.List | ast.Tuple) else [g])]
    symbolic = next((p for p in parts if is_symbolic(program, call.module, p)), None)
    if symbolic is None or is_in_computation(program, call.module, call.node):
        return
    if is_guarded(program, call.module, call.node):
        return
    yield Violation(
        call.location,
        f"{call.name} is given {shown(symbolic)}, a symbolic tensor of Keras.",
        why="Keras 3 stops: ValueError: A KerasTensor cannot be used as input to a TensorFlow "
        "function.",
        fix=f"use keras.ops ({_successor(call.name)}), or call it in the call method of a layer.",
    )


def _added(program: Program, call: Call) -> Iterator[Violation]:
    owner = call.owner
    if owner is None or (isinstance(owner, ast.Name) and owner.id == "self"):
        return
    made = [program.callee(*each) for each in program.made_by(call.module, owner)]
    if made and all(name in _MODELS for name in made):
        yield Violation(
            call.location,
            f"{call.method} of a functional model does not exist in Keras 3.",
            why="The call stops with NotImplementedError.",
            fix=_ADDING[call.name],
        )


def _successor(name: str) -> str:
    return f"keras.ops.{_NAMES.get(name, name.rpartition('.')[2])}"


_NAMES = {
    "tf.reduce_mean": "mean",
    "tf.reduce_sum": "sum",
    "tf.reduce_max": "max",
    "tf.reduce_min": "min",
    "tf.concat": "concatenate",
    "tf.random.normal": "shape, and keras.random.normal",
}
