"""How the samples of a loss become one number."""

from __future__ import annotations

import ast
import enum

from evener.doctor.program import FUNCTIONS, Kind, Module, Program, argument
from evener.doctor.questions.scalars import scalar_returns


class Reduction(enum.Enum):
    """How the samples of a replica become one number."""

    MEAN = "mean over the samples of a replica"
    KERAS = "mean that Keras divides by the number of replicas"
    SUM = "sum"
    EACH = "one number for each sample"
    ADDED = "losses of layers"


def is_mean_over_samples(call: ast.Call) -> bool:
    """Return whether a mean or sum goes over the samples too, not over other axes alone."""
    axis = argument(call, 1, "axis")
    if axis is None:
        return True
    try:
        axes = ast.literal_eval(axis)
    except ValueError:
        return False
    if axes is None:
        return True
    return 0 in (axes if isinstance(axes, tuple | list) else (axes,))


def reduction_called(program: Program, module: Module, node: ast.Call) -> Reduction | None:
    """Return what calling a Keras loss gives; None if it is none."""
    if Kind.LOSS not in program.kinds(module, node.func):
        return None
    for value in program.origins(module, node.func):
        made = value.node
        if not isinstance(made, ast.Call) or value.steps:
            continue
        reduction = argument(made, None, "reduction")
        if reduction is not None:
            return _reduction_named(program, value.module, reduction)
        for where, target in program.targets(value.module, made):
            if isinstance(target, ast.ClassDef):
                return _of_class(program, where, target)
        return Reduction.KERAS
    return Reduction.KERAS


def _of_class(program: Program, module: Module, definition: ast.ClassDef) -> Reduction:
    for node in ast.walk(definition):
        if isinstance(node, ast.keyword) and node.arg == "reduction":
            return _reduction_named(program, module, node.value)
    for where, method, _ in program.classes.attributes(module, definition, "call"):
        if isinstance(method, FUNCTIONS) and scalar_returns(program, where, method):
            return Reduction.MEAN
    return Reduction.KERAS


def _reduction_named(program: Program, module: Module, node: ast.AST) -> Reduction:
    text = f"{program.constant(module, node)} {ast.unparse(node)}".lower()
    if "sum_over_batch" in text or "auto" in text or "mean" in text:
        return Reduction.KERAS
    return Reduction.SUM if "sum" in text else Reduction.EACH
