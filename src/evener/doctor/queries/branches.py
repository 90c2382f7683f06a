"""Conditions under which a line runs, and exceptions that are caught."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.analysis import FUNCTIONS, Module, Program
from evener.doctor.queries.versions import runs


def conditions(program: Program, module: Module, node: ast.AST) -> Iterator[ast.expr]:
    """Yield the tests of the branches around a node in its own function, and of its callers.

    ``if __name__ == "__main__"`` and ``while True`` do not count. Conditions of a caller count if
    it is the only one.
    """
    seen = set[ast.AST]()
    while True:
        function = None
        inner: ast.AST = node
        for outer in module.around(node):
            if isinstance(outer, FUNCTIONS):
                function = outer
                break
            if isinstance(outer, ast.If | ast.IfExp | ast.While) and inner is not outer.test:
                if not _runs_anyhow(program, module, outer, inner):
                    yield outer.test
            inner = outer
        sites = program.call_sites(function) if function is not None else []
        if function is None or len(sites) != 1 or function in seen:
            return
        seen.add(function)
        module, node = sites[0].module, sites[0].call


def is_conditional(program: Program, module: Module, node: ast.AST) -> bool:
    """Return whether a node runs only if some condition holds."""
    return any(True for _ in conditions(program, module, node))


def catching(module: Module, node: ast.AST) -> ast.Try | None:
    """Return the innermost ``try`` of a node's own function that catches what it raises."""
    inner: ast.AST = node
    for outer in module.around(node):
        if isinstance(outer, FUNCTIONS):
            return None
        if isinstance(outer, ast.Try) and inner in outer.body and outer.handlers:
            return outer
        inner = outer
    return None


def _runs_anyhow(
    program: Program, module: Module, branch: ast.If | ast.IfExp | ast.While, inner: ast.AST
) -> bool:
    """Return whether a part of a branch runs whatever happens."""
    if _is_main(branch.test):
        return True
    if isinstance(branch, ast.While):
        return _is_endless(branch)
    return runs(program, module, branch, inner)


def _is_main(test: ast.expr) -> bool:
    return any(isinstance(part, ast.Name) and part.id == "__name__" for part in ast.walk(test))


def _is_endless(loop: ast.While) -> bool:
    """Return whether a loop is ``while True``, whose body runs whatever happens."""
    return isinstance(loop.test, ast.Constant) and bool(loop.test.value)
