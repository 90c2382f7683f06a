"""Guards: lines that run only where a name of a library exists.

``try``, ``hasattr``, a test of the version, or a function that is only called under one of them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from evener.analysis import FUNCTIONS, Module, Program, last_name
from evener.doctor.queries.versions import runs

# Exceptions that a missing name or argument raises.
_CAUGHT = (
    *("AttributeError", "ImportError", "ModuleNotFoundError", "TypeError", "ValueError"),
    *("NameError", "RuntimeError", "Exception", "BaseException"),
)
_TEST = re.compile(r"version|hasattr|getattr|\btf_?[12]\b|type_checking|legacy|find_spec", re.I)
# Number of levels of callers that are searched.
_DEEPEST = 3


def is_guarded(program: Program, module: Module, node: ast.AST, deepest: int = _DEEPEST) -> bool:
    """Return whether a node runs only where the names that it uses exist, or its error is caught.

    A function is guarded if each of its calls is.
    """
    inner: ast.AST = node
    function = None
    for outer in module.around(node):
        if isinstance(outer, ast.Try) and _catches(outer):
            return True
        if isinstance(outer, ast.If | ast.IfExp) and inner is not outer.test:
            if _asks(program, module, outer.test) and not runs(program, module, outer, inner):
                return True
        if isinstance(outer, ast.BoolOp) and any(
            _asks(program, module, operand) for operand in outer.values if operand is not inner
        ):
            return True
        if any(_asks(program, module, statement.test) for statement in _left_before(outer, inner)):
            return True
        if function is None and isinstance(outer, FUNCTIONS):
            function = outer
        inner = outer
    sites = program.call_sites(function) if function is not None and deepest else []
    return bool(sites) and all(
        is_guarded(program, site.module, site.call, deepest - 1) for site in sites
    )


def _catches(node: ast.Try) -> bool:
    for handler in node.handlers:
        kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        if any(caught is None or last_name(caught) in _CAUGHT for caught in kinds):
            return True
    return False


def _asks(program: Program, module: Module, test: ast.expr) -> bool:
    """Return whether a condition is about the version, or about what is there."""
    if _TEST.search(ast.unparse(test)):
        return True
    return any(
        isinstance(value.node, ast.expr) and _TEST.search(ast.unparse(value.node)) is not None
        for node in ast.walk(test)
        if isinstance(node, ast.Name)
        for value in program.origins(module, node)
    )


def _left_before(outer: ast.AST, inner: ast.AST) -> Iterator[ast.If]:
    """Yield the branches before a statement, in the same block, that leave the block."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(outer, name, None)
        if isinstance(block, list) and inner in block:
            for statement in block[: block.index(inner)]:
                leaving = (ast.Return, ast.Raise, ast.Continue)
                if isinstance(statement, ast.If) and isinstance(statement.body[-1], leaving):
                    yield statement
