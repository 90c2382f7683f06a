"""DOC-503: one worker alone saves or restores, where all must take part."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from evener.doctor.finding import Finding, Severity
from evener.doctor.program import FUNCTIONS, Call, Module, Program
from evener.doctor.questions.savings import loads, saves
from evener.doctor.questions.strategies import has_workers
from evener.doctor.questions.texts import shown
from evener.doctor.rule import Case, Family, Rule

_WHO = re.compile(
    r"chief|is_main|is_master|task_id|task_index|task_type|worker_id|worker_index|\brank\b|"
    r"worker_rank|process_index|\btask\b|\bindex\b",
    re.IGNORECASE,
)


def _look(case: Case) -> Iterator[Finding]:
    program = case.program
    if not has_workers(program):
        return
    lines = [(one.call, "saves") for one in saves(program)]
    lines += [(one.call, "restores") for one in loads(program)]
    for call, verb in lines:
        if call.name.startswith("np."):
            continue
        test = _who_may(program, call)
        if test is None or _others_too(program, call, test, verb):
            continue
        yield _finding(program, call, verb, test)


def _who_may(program: Program, call: Call) -> ast.expr | None:
    """Return the condition by which one worker alone reaches a line, if there is one."""
    module, node = call.module, call.node
    seen: set[ast.AST] = set()
    while True:
        found = _condition_around(program, module, node)
        if found is not None:
            return found
        function = program.around.function(module, node)
        sites = program.call_sites(function) if function is not None else []
        if function is None or function in seen or len(sites) != 1:
            return None
        seen.add(function)
        module, node = sites[0].module, sites[0].call


def _condition_around(program: Program, module: Module, node: ast.AST) -> ast.expr | None:
    inner: ast.AST = node
    for outer in module.around(node):
        if isinstance(outer, ast.If | ast.IfExp) and inner is not outer.test:
            if _asks_who(program, module, outer.test):
                return outer.test
        body = getattr(outer, "body", None)
        if isinstance(body, list) and inner in body:
            for before in body[: body.index(inner)]:
                # Leaving early is a condition too.
                if isinstance(before, ast.If) and _leaves(before):
                    if _asks_who(program, module, before.test):
                        return before.test
        if isinstance(outer, FUNCTIONS):
            return None
        inner = outer
    return None


def _leaves(node: ast.If) -> bool:
    last = node.body[-1]
    return isinstance(last, ast.Return | ast.Raise | ast.Continue) or (
        isinstance(last, ast.Expr) and "exit" in ast.unparse(last)
    )


def _asks_who(program: Program, module: Module, test: ast.expr) -> bool:
    """Return whether a condition asks which worker this is."""
    if _WHO.search(ast.unparse(test)):
        return True
    return any(
        isinstance(value.node, ast.expr) and _WHO.search(ast.unparse(value.node))
        for one in ast.walk(test)
        if isinstance(one, ast.Name)
        for value in program.origins(module, one)
        if value.node is not one
    )


def _others_too(program: Program, call: Call, test: ast.expr, verb: str) -> bool:
    """Return whether the other workers take part elsewhere, as in the branch of an else."""
    outer = next(
        (one for module in program.modules for one in ast.walk(module.tree) if _is_of(one, test)),
        None,
    )
    if not isinstance(outer, ast.If | ast.IfExp):
        return False
    others = saves(program) if verb == "saves" else loads(program)
    inside = set(ast.walk(outer))
    own = _branch_of(outer, call.node)
    for one in others:
        if one.call.node is call.node or one.call.node not in inside:
            continue
        if _branch_of(outer, one.call.node) is not own:
            return True
    return False


def _is_of(node: ast.AST, test: ast.expr) -> bool:
    return isinstance(node, ast.If | ast.IfExp) and node.test is test


def _branch_of(outer: ast.If | ast.IfExp, node: ast.AST) -> bool:
    """Return whether a node is in the first branch."""
    body = outer.body if isinstance(outer.body, list) else [outer.body]
    return any(node in ast.walk(one) for one in body)


def _finding(program: Program, call: Call, verb: str, test: ast.expr) -> Finding:
    del program
    what = "ModelCheckpoint" if call.name.endswith("ModelCheckpoint") else shown(call.node.func)
    why = (
        "Saving reads variables that all workers hold together, and waits for the others, which "
        "never come: the program hangs, or fails. Optimizers and BatchNormalization have such."
        if verb == "saves"
        else "The other workers go on from weights of their own: they are no longer alike, and "
        "the sums of their gradients belong to no model."
    )
    fix = (
        "let every worker call it, the chief with the real folder and the others with a folder of "
        "their own that is removed afterwards; or use keras.callbacks.BackupAndRestore."
        if verb == "saves"
        else "let every worker restore the same file."
    )
    return RULE.finding(
        call.place,
        f"{what} {verb} on one worker alone: only if {shown(test)}.",
        why=why,
        fix=fix,
        evidence=(f"if {shown(test)}", call.place.text),
    )


RULE = Rule(
    code="DOC-503",
    family=Family.CHECKPOINTS,
    title="one worker alone saves or restores",
    severity=Severity.ERROR,
    look=_look,
)
