"""Names that statements bind and that may be read after them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from evener.analysis.hoisting.names import names_of, targets_of
from evener.analysis.hoisting.syntax_tree import FUNCTIONS, Function, SyntaxTree

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class Liveness:
    """The uses of names in a module.

    Args:
        module: The module.
    """

    def __init__(self, module: SyntaxTree) -> None:
        self._module = module
        self._loads: dict[str, list[ast.Name]] = {}
        for node in module.every(ast.Name):
            if not isinstance(node.ctx, ast.Store):
                self._loads.setdefault(node.id, []).append(node)
        self._blocks = {
            id(statement): (parent, block, index)
            for parent in ast.walk(module.root)
            for block in blocks_of(parent)
            for index, statement in enumerate(block)
        }

    def is_read_after(self, name: str, block: Sequence[ast.stmt], first: int, last: int) -> bool:
        """Return whether a value that statements of a block give to a name may be read later.

        Reads by these statements themselves do not count.

        Args:
            name: The name.
            block: The list of statements.
            first: The index of the first of them.
            last: The index of the last.
        """
        scope = self._scope_of(name, block[first])
        inside = {id(node) for statement in block[first : last + 1] for node in ast.walk(statement)}
        around = {id(outer) for outer in self._module.around(block[first])}
        for load in self._loads.get(name, ()):
            if id(load) in inside or (
                scope is not self._module.root and not self._is_in(load, scope)
            ):
                continue
            if self._reaches(load, name, scope, (block, last), around):
                return True
        return False

    def is_carried(self, name: str, block: Sequence[ast.stmt], first: int, last: int) -> bool:
        """Return whether statements may read, in the next turn of a loop, what they gave a name.

        Args:
            name: A name that they read before they bind it.
            block: The list of statements.
            first: The index of the first of them.
            last: The index of the last.
        """
        around = {id(outer) for outer in self._module.around(block[first])}
        scope = self._scope_of(name, block[first])
        if scope is self._module.root and self._is_in_function(block[first]):
            return True
        return self._reaches(block[first], name, scope, (block, last), around)

    def _is_in_function(self, node: ast.AST) -> bool:
        return any(isinstance(outer, FUNCTIONS) for outer in self._module.around(node))

    def _scope_of(self, name: str, statement: ast.stmt) -> ast.AST:
        """Return the function or module whose variable a name is."""
        for outer in self._module.around(statement):
            if isinstance(outer, FUNCTIONS):
                declared = [
                    node for node in ast.walk(outer) if isinstance(node, ast.Global | ast.Nonlocal)
                ]
                if any(name in node.names for node in declared):
                    # Of an outer scope: every read in the module may be meant.
                    return self._module.root
                return outer
        return self._module.root

    def _is_in(self, node: ast.AST, scope: ast.AST) -> bool:
        return any(outer is scope for outer in self._module.around(node))

    def _reaches(
        self,
        load: ast.AST,
        name: str,
        scope: ast.AST,
        region: tuple[Sequence[ast.stmt], int],
        around: set[int],
    ) -> bool:
        """Return whether a load may see what a region bound: no binding is between them."""
        block, last = region
        node: ast.AST = load
        while True:
            found = self._blocks.get(id(node))
            if found is None:
                if self._is_hidden(node, name):
                    return False
                node = self._module.parents[node]
                if isinstance(node, ast.Lambda) and node is not scope:
                    return True
                if isinstance(node, ast.Module) or node is scope:
                    return False
                if id(node) in around and isinstance(node, ast.While | ast.Try):
                    # The test of a loop, and handlers of what the region raises, come later.
                    return True
                continue
            parent, siblings, index = found
            for before in range(index - 1, -1, -1):
                if siblings is block and before == last:
                    return True
                if id(siblings[before]) in around:
                    return True
                if _binds(siblings[before], name):
                    return False
            if siblings is block and index > last:
                return True
            if parent is scope or isinstance(parent, ast.Module):
                return False
            if isinstance(parent, FUNCTIONS):
                # It may be called at any time, unless the name is its own.
                return not _is_local(parent, name)
            if _binds_head(parent, siblings, name):
                return False
            is_alternative = isinstance(parent, ast.If) and siblings is not block
            if id(parent) in around and not is_alternative:
                return True
            node = parent

    def _is_hidden(self, node: ast.AST, name: str) -> bool:
        """Return whether a comprehension or lambda right around a node has the name for itself."""
        parent = self._module.parents[node]
        if isinstance(parent, _COMPREHENSIONS):
            return any(name in targets_of(part.target) for part in parent.generators)
        return isinstance(parent, ast.Lambda) and _is_local(parent, name)


def blocks_of(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield the lists of statements in a node."""
    for field in ("body", "orelse", "finalbody"):
        block = getattr(node, field, None)
        if isinstance(block, list) and block:
            yield block


def _binds(statement: ast.stmt, name: str) -> bool:
    """Return whether a name is certainly bound once a statement has run."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return statement.name == name
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return any(
            (alias.asname or alias.name.partition(".")[0]) == name for alias in statement.names
        )
    return name in names_of([statement]).certain


def _binds_head(parent: ast.AST, block: list[ast.stmt], name: str) -> bool:
    """Return whether a statement binds a name before it runs one of its blocks."""
    if isinstance(parent, ast.With | ast.AsyncWith):
        named = (item.optional_vars for item in parent.items)
        return any(name in targets_of(target) for target in named if target is not None)
    is_body = block is getattr(parent, "body", None)
    return isinstance(parent, ast.For) and is_body and name in targets_of(parent.target)


def _is_local(function: Function, name: str) -> bool:
    given = function.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    if any(parameter is not None and parameter.arg == name for parameter in named):
        return True
    if isinstance(function, ast.Lambda):
        return False
    nodes = list(ast.walk(function))
    outer = (node for node in nodes if isinstance(node, ast.Global | ast.Nonlocal))
    if any(name in node.names for node in outer):
        return False
    return any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
        for node in nodes
    )
