"""RUN-010: a value per replica is used as one tensor."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.analysis import Kind, Module, Program
from evener.doctor.finding import Severity
from evener.doctor.queries.source_text import shown
from evener.doctor.queries.strategies import spreads
from evener.doctor.rule import Case, Violation

_PRINTS = ("print", "tf.print", "logging.info", "logging.debug", "str", "repr")
_NUMBERS = ("float", "int", "round", "sum", "max", "min", "abs", "len", "bool")
_FUNCTIONS = ("np.", "tf.reduce_", "tf.math.", "tf.cast", "tf.squeeze")
_MEMBERS = ("numpy", "item", "mean", "shape", "dtype", "tolist")
# Only reached with one replica, or with a value that was examined.
_GUARDS = ("num_replicas_in_sync", "isinstance", "perreplica")


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program = case.program
    if not spreads(program) or not any(program.method_calls(Kind.STRATEGY, "run")):
        return
    nodes = program.nodes(ast.Call, ast.Attribute, ast.BinOp, ast.AugAssign, ast.FormattedValue)
    for module, node in nodes:
        for value, how, severity in _uses(program, module, node):
            if not _is_per_replica(program, module, value) or _is_guarded(module, node):
                continue
            if program.context.in_replica(module, node) is not False:
                continue
            name = shown(value)
            yield Violation(
                module.location(node),
                f"{name} is a value per replica, and is {how}.",
                why="strategy.run returns one object with the results of all replicas. It has no "
                "numpy, shape or arithmetic. With one device it is a plain tensor, so this fails "
                "with several only.",
                fix=f"strategy.reduce(tf.distribute.ReduceOp.SUM, {name}, axis=None) first (MEAN "
                f"for what is not scaled); or strategy.experimental_local_results({name}).",
                severity=severity,
            )
            break


def _uses(
    program: Program, module: Module, node: ast.AST
) -> Iterator[tuple[ast.expr, str, Severity | None]]:
    """Yield what is used as one tensor, how, and how bad it is."""
    if isinstance(node, ast.Attribute) and node.attr in _MEMBERS:
        yield node.value, f"asked for {node.attr}", None
    elif isinstance(node, ast.BinOp):
        yield from (
            (operand, "computed with as if it were one", None)
            for operand in (node.left, node.right)
        )
    elif isinstance(node, ast.AugAssign):
        yield node.value, "added up as if it were one", None
    elif isinstance(node, ast.FormattedValue):
        yield node.value, "printed", None if node.format_spec is not None else Severity.WARNING
    elif isinstance(node, ast.Call):
        name = program.name_of(module, node.func)
        for given in node.args:
            if name in _PRINTS:
                yield given, "printed", Severity.WARNING
            elif name in _NUMBERS or name.startswith(_FUNCTIONS):
                yield given, f"given to {shown(node.func)}", None
            elif getattr(node.func, "attr", "") == "update_state":
                yield given, "given to a metric outside of the replicas", None


def _is_per_replica(program: Program, module: Module, node: ast.AST) -> bool:
    """Return whether an expression can only be a value per replica."""
    if not isinstance(node, ast.Name | ast.Call | ast.Attribute | ast.Subscript):
        return False
    if Kind.PER_REPLICA not in program.kinds(module, node):
        return False
    values = [v for v in program.origins(module, node) if not isinstance(v.node, ast.Constant)]
    return all(
        program.kinds(value.module, value.node) & {Kind.PER_REPLICA, Kind.DISTRIBUTED}
        for value in values
    )


def _is_guarded(module: Module, node: ast.AST) -> bool:
    return any(
        word in ast.unparse(outer.test).lower()
        for outer in module.around(node)
        if isinstance(outer, ast.If | ast.IfExp)
        for word in _GUARDS
    )
