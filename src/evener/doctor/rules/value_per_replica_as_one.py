"""RUN-010: a value per replica is used as one number."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.doctor.finding import Finding, Severity
from evener.doctor.program import Kind, Module, Program
from evener.doctor.questions.strategies import spreads
from evener.doctor.questions.texts import shown
from evener.doctor.rule import Case, Family, Rule

_PRINTS = ("print", "tf.print", "logging.info", "logging.debug", "str", "repr")
_NUMBERS = ("float", "int", "round", "sum", "max", "min", "abs", "len", "bool")
_METHODS = ("numpy", "item", "mean", "shape", "dtype", "tolist")


def _look(case: Case) -> Iterator[Finding]:
    program = case.program
    if not spreads(program) or not any(program.method_calls(Kind.STRATEGY, "run")):
        return
    for module, node in program.nodes(
        ast.Call, ast.Attribute, ast.BinOp, ast.AugAssign, ast.FormattedValue
    ):
        used = _use(program, module, node)
        if used is None or program.around.in_replica(module, node) is not False:
            continue
        value, how, severity = used
        if _is_guarded(module, node):
            continue
        name = shown(value)
        yield RULE.finding(
            module.place(node),
            f"{name} is a value per replica, and is {how}.",
            why="strategy.run returns what each replica has computed, in one object without "
            "numpy, shape or arithmetic. With one device it is a plain tensor, so that this is "
            "seen only with several.",
            fix=f"strategy.reduce(tf.distribute.ReduceOp.SUM, {name}, axis=None) first (MEAN for "
            f"what is not scaled); or strategy.experimental_local_results({name}).",
            evidence=(module.place(node).text, *_made(program, module, value)),
            severity=severity,
        )


def _use(
    program: Program, module: Module, node: ast.AST
) -> tuple[ast.expr, str, Severity | None] | None:
    """Return what is used as one value, how, and how bad it is."""
    if isinstance(node, ast.Call):
        return _use_in_call(program, module, node)
    if isinstance(node, ast.Attribute):
        if node.attr in _METHODS and _is_per_replica(program, module, node.value):
            return node.value, f"asked for {node.attr}", None
    elif isinstance(node, ast.BinOp):
        for side, other in ((node.left, node.right), (node.right, node.left)):
            if isinstance(other, ast.List | ast.Tuple):
                continue
            if _is_per_replica(program, module, side):
                return side, "computed with as if it were one number", None
    elif isinstance(node, ast.AugAssign):
        if _is_per_replica(program, module, node.value):
            return node.value, "added up as if it were one number", None
    elif isinstance(node, ast.FormattedValue):
        if _is_per_replica(program, module, node.value):
            fails = node.format_spec is not None
            return node.value, "printed", None if fails else Severity.WARNING
    return None


def _use_in_call(
    program: Program, module: Module, node: ast.Call
) -> tuple[ast.expr, str, Severity | None] | None:
    name = program.name_of(module, node.func)
    method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    for given in node.args:
        if isinstance(given, ast.Starred) or not _is_per_replica(program, module, given):
            continue
        if name in _PRINTS or (not name and method in ("info", "debug", "write", "set_postfix")):
            return given, "printed", Severity.WARNING
        if name in _NUMBERS and not isinstance(given, ast.List | ast.Tuple):
            return given, f"given to {name}", None
        if name.startswith(("np.", "tf.reduce_", "tf.math.", "tf.cast", "tf.squeeze")):
            return given, f"given to {shown(node.func)}", None
        if method == "update_state":
            return given, "given to a metric outside of the replicas", None
    if method == "format":
        for given in (*node.args, *(keyword.value for keyword in node.keywords)):
            if _is_per_replica(program, module, given):
                return given, "printed", None
    return None


def _is_per_replica(program: Program, module: Module, node: ast.AST) -> bool:
    """Return whether an expression can only be a value per replica that a run has returned."""
    if not isinstance(node, ast.Name | ast.Call | ast.Attribute | ast.Subscript):
        return False
    if Kind.PER_REPLICA not in program.kinds(module, node):
        return False
    values = program.origins(module, node)
    made = [
        value
        for value in values
        if isinstance(value.node, ast.Call)
        and Kind.PER_REPLICA in program.kinds(value.module, value.node)
    ]
    others = [
        value for value in values if value not in made and not isinstance(value.node, ast.Constant)
    ]
    if made and not others:
        return _is_run(made[0].node)
    # A batch of a distributed dataset, or a part of it.
    return not made and any(
        Kind.DISTRIBUTED in program.kinds(value.module, value.node) for value in values
    )


def _is_run(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)


def _is_guarded(module: Module, node: ast.AST) -> bool:
    """Return whether it is only reached with one replica, or with a value that was looked at."""
    for outer in module.around(node):
        if isinstance(outer, ast.If | ast.IfExp):
            test = ast.unparse(outer.test).lower()
            if "num_replicas_in_sync" in test or "isinstance" in test or "perreplica" in test:
                return True
    return False


def _made(program: Program, module: Module, node: ast.expr) -> Iterator[str]:
    for value in program.origins(module, node):
        place = value.module.place(value.node)
        if place.text and place.text != module.place(node).text:
            yield place.text
            return


RULE = Rule(
    code="RUN-010",
    family=Family.NUMBERS,
    title="a value per replica used as one number",
    severity=Severity.ERROR,
    look=_look,
)
