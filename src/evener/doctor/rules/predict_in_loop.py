"""DOC-408: ``predict`` is called for one element after the other."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.analysis import Call, Kind, Loop, Program
from evener.doctor.queries.training import is_of_model, trainings
from evener.doctor.rule import Case, Violation


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program = case.program
    if any(node.name == "predict" for _, node in program.nodes(ast.FunctionDef)):
        return
    trained = {call.node for call in trainings(program)}
    for call, owner in program.calls_of("predict"):
        if Kind.MODEL not in program.kinds(call.module, owner) or not is_of_model(program, call):
            continue
        loop = next(program.context.loops(call.module, call.node), None)
        given = call.argument(0, "x")
        if loop is None or given is None or _goes_through_models(loop, owner):
            continue
        if trained.intersection(ast.walk(loop)) or not _is_of_round(program, call, loop, given):
            continue
        yield Violation(
            call.location,
            "predict is called in every round of the loop, for a little data each time.",
            why="Each call makes a dataset, callbacks and an iterator, and copies the results to "
            "the host, which takes tens of milliseconds, while the device is idle.",
            fix="predict all elements in one call; or, if one depends on the one before, "
            "model(x, training=False), in a tf.function.",
        )


def _goes_through_models(loop: Loop, owner: ast.expr) -> bool:
    """Return whether the loop has another model in each round."""
    names = _names(loop.target) if isinstance(loop, ast.For | ast.AsyncFor) else set()
    return bool(names & _names(owner))


def _is_of_round(program: Program, call: Call, loop: Loop, given: ast.expr) -> bool:
    """Return whether a round gives its own data: an element of the loop, or a new state."""
    if Kind.DATASET in program.kinds(call.module, given):
        return False
    if isinstance(loop, ast.For | ast.AsyncFor):
        changed = _names(loop.target)
    else:
        changed = set()
    for node in ast.walk(loop):
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            value_names = _names(node.value) if node.value is not None else set()
            if isinstance(loop, ast.While) or value_names & changed:
                changed |= {name for target in targets for name in _names(target)}
    return bool(_names(given) & changed)


def _names(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
