"""RUN-009: layers, optimizers or variables are created in every step."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.analysis import FUNCTIONS, Call, Kind, Program
from evener.doctor.queries.layers import is_weightless
from evener.doctor.queries.source_text import shown
from evener.doctor.queries.steps import steps_of
from evener.doctor.rule import Case, Violation


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program = case.program
    steps = steps_of(program)
    for call in program.all_calls:
        what = _made(program, call)
        if what is None:
            continue
        function = program.context.function(call.module, call.node)
        loop = steps.loop_around(call.module, call.node)
        if function in steps.in_each and not _is_once(call, function):
            where = _described(call, function)
        elif loop is not None and not _is_once(call, loop):
            where = "in the loop over batches"
        else:
            continue
        thing = shown(call.node.func)
        yield Violation(
            call.location,
            f"{thing} is created {where}.",
            why=_why(what),
            fix=f"create it once, before the first step ({_line_for(what)}), and use it here.",
        )


def _made(program: Program, call: Call) -> Kind | None:
    """Return what a call makes, if it is something that holds weights or state."""
    name = call.name
    if name == "tf.Variable" or name == "keras.Variable":
        return Kind.VARIABLE
    if name.startswith("keras.layers."):
        plain = name.rpartition(".")[2]
        return None if is_weightless(name) or not plain[:1].isupper() else Kind.LAYER
    if name.startswith("keras.optimizers.") and "schedules" not in name:
        return Kind.OPTIMIZER if name.rpartition(".")[2][:1].isupper() else None
    if name in ("keras.Sequential",) or name.startswith("keras.applications."):
        return Kind.MODEL if "preprocess" not in name and "decode" not in name else None
    if name:
        return None
    for where, target in program.targets(call.module, call.node):
        if isinstance(target, ast.ClassDef):
            kind = program.kind_of_class(where, target)
            if kind is Kind.MODEL or (kind is Kind.LAYER and _has_weights(target)):
                return kind
    return None


def _has_weights(definition: ast.ClassDef) -> bool:
    text = ast.unparse(definition)
    return "add_weight" in text or "Variable(" in text or "layers." in text


def _is_once(call: Call, top: ast.AST) -> bool:
    """Return whether something keeps the call from being made a second time."""
    inner: ast.AST = call.node
    for outer in call.module.around(call.node):
        if outer is top:
            return False
        if isinstance(outer, ast.If | ast.IfExp) and inner is not getattr(outer, "test", None):
            test = ast.unparse(outer.test)
            words = ("None", "hasattr", "built", "not ", "== 0", "== 1", " in ", "first", "init")
            if any(word in test for word in words):
                return True
        if isinstance(outer, (*FUNCTIONS, ast.ClassDef)):
            return True
        inner = outer
    return False


def _described(call: Call, function: ast.AST | None) -> str:
    name = getattr(function, "name", "")
    parent = call.module.parents.get(function) if function is not None else None
    if isinstance(parent, ast.ClassDef):
        return f"every time {parent.name}.{name} runs"
    return f"every time {name} runs" if name else "every time this function runs"


def _why(what: Kind) -> str:
    if what is Kind.OPTIMIZER:
        return (
            "A new optimizer has forgotten its momentum and its count of steps; in a tf.function "
            "its variables cannot be made a second time, and the step fails."
        )
    if what is Kind.VARIABLE:
        return (
            "The new variable begins at its first value again and belongs to no model; in a "
            "tf.function variables cannot be made a second time, and the step fails."
        )
    return (
        "Each of them has new weights, which belong to no model: they are never "
        "trained and not saved; in a tf.function the second call fails."
    )


def _line_for(what: Kind) -> str:
    return "beside the model" if what is Kind.OPTIMIZER else "in __init__, or beside the model"
