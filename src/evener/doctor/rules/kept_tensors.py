"""DOC-602: a list keeps tensors of every step, and is never cleared."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.analysis import Call, Kind, Loop, Module, Program
from evener.doctor.queries.source_text import shown
from evener.doctor.queries.steps import steps_of
from evener.doctor.rule import Case, Violation

_LARGE = (Kind.MODEL, Kind.LAYER)
_CLEARING = ("clear", "pop", "popleft", "remove")


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program = case.program
    steps = steps_of(program)
    for call, owner in program.calls_of("append"):
        if not isinstance(owner, ast.Name) or len(call.node.args) != 1:
            continue
        if steps.loop_around(call.module, call.node) is None:
            continue
        given = call.node.args[0]
        if not _is_large(program, call.module, given):
            continue
        if program.context.is_traced(call.module, call.node) is not False:
            continue
        loops = list(program.context.loops(call.module, call.node))
        if not _is_for_all(program, call, owner, loops[-1]):
            continue
        yield Violation(
            call.location,
            f"{owner.id} keeps {shown(given)} of every step, and is never cleared.",
            why="Each tensor in the list stays in the device's memory: it grows with every step, "
            "until it is used up.",
            fix="keep what you need of it as a number or a NumPy array, or empty the list at the "
            "end of each epoch; a keras.metrics.Mean keeps two numbers.",
        )


def _is_large(program: Program, module: Module, node: ast.expr) -> bool:
    """Return whether a tensor is an output of a model, or gradients, and on a device."""
    if program.kinds(module, node) & {Kind.ARRAY, Kind.BATCH}:
        return False
    for value in program.origins(module, node):
        if isinstance(value.node, ast.Call):
            kinds = program.kinds(value.module, value.node.func)
            is_gradient = getattr(value.node.func, "attr", "") == "gradient"
            if kinds.intersection(_LARGE) or is_gradient:
                return True
    return False


def _is_for_all(program: Program, append: Call, owner: ast.Name, outermost: Loop) -> bool:
    """Return whether a list is made before the outermost loop, and nothing empties it there."""
    bindings = list(program.bindings(append.module, owner))
    made = [
        binding.value
        for where, binding in bindings
        if where is append.module and isinstance(binding.value, ast.List)
    ]
    if not made or len(made) != len(bindings):
        return False
    inside = set(ast.walk(outermost))
    if any(value in inside for value in made):
        return False
    for node in inside:
        if isinstance(node, ast.Delete) and owner.id in ast.unparse(node):
            return False
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            is_same = isinstance(node.func.value, ast.Name) and node.func.value.id == owner.id
            if is_same and node.func.attr in _CLEARING:
                return False
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name | ast.Subscript) and owner.id in ast.unparse(target)
            for target in node.targets
        ):
            return False
    return True
