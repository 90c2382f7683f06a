"""DOC-503: under MultiWorkerMirroredStrategy, one worker alone saves or restores."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from evener.analysis import FUNCTIONS, Call, Module, Program
from evener.doctor.queries.branches import conditions
from evener.doctor.queries.checkpoints import loads, saves
from evener.doctor.queries.source_text import shown
from evener.doctor.queries.strategies import has_workers
from evener.doctor.rule import Case, Violation

_WHO = re.compile(
    r"chief|is_main|is_master|task_id|task_index|task_type|worker_id|worker_index|rank|"
    r"worker_rank|process_index|task|index",
    re.IGNORECASE,
)
_SAVES_WHY = (
    "Saving reads variables that all workers share, and waits for the other workers: the program "
    "hangs or fails. Optimizers and BatchNormalization have such variables."
)
_SAVES_FIX = (
    "let every worker call it, the chief with the real folder and the others with a temporary "
    "folder; or use keras.callbacks.BackupAndRestore."
)
_RESTORES_WHY = (
    "The other workers continue from other weights: the replicas differ, and the sums of their "
    "gradients belong to no model."
)


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program = case.program
    if not has_workers(program):
        return
    lines = [(file.call, "saves") for file in saves(program)]
    lines += [(file.call, "restores") for file in loads(program)]
    for call, verb in lines:
        test = next(
            (
                condition
                for condition in _tests(program, call)
                if _asks_who(program, call, condition)
            ),
            None,
        )
        if test is None:
            continue
        is_callback = call.name.endswith("ModelCheckpoint")
        what = "ModelCheckpoint" if is_callback else shown(call.node.func)
        yield Violation(
            call.location,
            f"{what} {verb} on one worker alone: only if {shown(test)}.",
            why=_SAVES_WHY if verb == "saves" else _RESTORES_WHY,
            fix=_SAVES_FIX if verb == "saves" else "let every worker restore the same file.",
            evidence=(f"if {shown(test)}", call.location.text),
        )


def _tests(program: Program, call: Call) -> Iterator[ast.expr]:
    """Yield the conditions of a line: branches around it, and early returns before it."""
    for test in conditions(program, call.module, call.node):
        # With an else, the other workers may save there.
        outer = call.module.parents.get(test)
        if not isinstance(outer, ast.If) or not outer.orelse:
            yield test
    yield from _early_returns(call.module, call.node)


def _early_returns(module: Module, node: ast.AST) -> Iterator[ast.expr]:
    function = next((outer for outer in module.around(node) if isinstance(outer, FUNCTIONS)), None)
    for statement in getattr(function, "body", ()) if function is not None else ():
        if node in ast.walk(statement):
            return
        if isinstance(statement, ast.If) and isinstance(statement.body[-1], ast.Return):
            yield statement.test


def _asks_who(program: Program, call: Call, test: ast.expr) -> bool:
    """Return whether a condition asks which worker this is."""
    texts = [ast.unparse(test)]
    for part in ast.walk(test):
        if isinstance(part, ast.Name):
            origins = program.origins(call.module, part)
            texts += [ast.unparse(v.node) for v in origins if isinstance(v.node, ast.expr)]
    return any(_WHO.search(text) for text in texts)
