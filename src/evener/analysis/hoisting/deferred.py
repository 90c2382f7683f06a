"""Statements in a step that only show its values: they can run behind it.

::

    with tf.GradientTape() as tape:
        loss = ...
        print(loss.numpy())        reads `loss`, which nothing changes any more
    gradients = ...

Tensors do not change, so the text is the same a few lines later. Variables do: a name that holds
one is refused when the step runs.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Sequence

from evener.analysis.hoisting.names import loads_in, targets_of

_READS = ("numpy", "item", "tolist", "format", "shape", "join")
# What computes from tensors alone, and where `tf.print` writes.
_COMPUTES = (
    *("tf.reduce_", "tf.math.", "tf.linalg.", "tf.norm.", "tf.shape.", "tf.cast."),
    *("tf.float", "tf.int", "tf.argmax.", "tf.sqrt.", "sys.stdout.", "sys.stderr."),
)
_FUNCTIONS = ("float", "int", "str", "len", "round", "abs", "print", "repr", "bool")
_EXPRESSIONS = (
    *(ast.Constant, ast.Name, ast.JoinedStr, ast.FormattedValue, ast.BinOp, ast.UnaryOp),
    *(ast.Compare, ast.BoolOp, ast.Tuple, ast.List, ast.IfExp, ast.Subscript, ast.keyword),
    *(ast.operator, ast.unaryop, ast.cmpop, ast.boolop, ast.expr_context, ast.Slice),
)


def is_deferrable(statement: ast.stmt) -> bool:
    """Return whether a statement only prints values, or appends them to a list as numbers."""
    if isinstance(statement, ast.If):
        return (
            not statement.orelse
            and _only_reads(statement.test)
            and all(is_deferrable(inner) for inner in statement.body)
        )
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    call = statement.value
    parts = [*call.args, *call.keywords]
    function = call.func
    if ast.unparse(function) in ("print", "tf.print"):
        return all(_only_reads(part) for part in parts)
    if isinstance(function, ast.Attribute) and function.attr == "append":
        return _only_reads(function.value) and all(map(_is_number, parts))
    return False


def _is_number(node: ast.AST) -> bool:
    """Return whether an expression is certainly no tensor."""
    if not isinstance(node, ast.Call) or not _only_reads(node):
        return False
    function = node.func
    if isinstance(function, ast.Name):
        return function.id in ("float", "int")
    return isinstance(function, ast.Attribute) and function.attr in ("numpy", "item")


def _only_reads(node: ast.AST) -> bool:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute):
            if inner.attr not in _READS and not f"{ast.unparse(inner)}.".startswith(_COMPUTES):
                return False
        elif isinstance(inner, ast.Call):
            function = inner.func
            if isinstance(function, ast.Name) and function.id not in _FUNCTIONS:
                return False
            if not isinstance(function, ast.Name | ast.Attribute):
                return False
        elif not isinstance(inner, _EXPRESSIONS):
            return False
    return True


def deferred_in(statements: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Return the deferrable statements of a step, in their order.

    Those in branches and loops of the step, which may run never or often, are not among them.
    """
    return [statement for statement in _in_order(statements) if is_deferrable(statement)]


def can_defer(statements: Sequence[ast.stmt]) -> bool:
    """Return whether no statement binds a name that a deferred one before it reads."""
    read: set[str] = set()
    for statement in _in_order(statements):
        if is_deferrable(statement):
            read |= {load.id for load in loads_in(statement)}
        elif read & bound_by(statement):
            return False
    return True


def without_deferred(statements: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Return a copy of statements in which nothing stands for each deferrable one."""
    found: list[ast.stmt] = []
    for statement in statements:
        if is_deferrable(statement):
            found.append(ast.copy_location(ast.Pass(), statement))
            continue
        kept = copy.deepcopy(statement)
        if isinstance(kept, ast.With):
            kept.body = without_deferred(kept.body)
        found.append(kept)
    return found


def _in_order(statements: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements, and those in ``with`` blocks instead of the block."""
    for statement in statements:
        if isinstance(statement, ast.With):
            yield from _in_order(statement.body)
        else:
            yield statement


def bound_by(statement: ast.stmt) -> set[str]:
    """Return the names that a statement binds or deletes."""
    return {
        name
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
        for name in targets_of(node)
    }
