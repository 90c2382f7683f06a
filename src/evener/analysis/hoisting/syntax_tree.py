"""The syntax tree of a program, in which every node knows what is around it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeVar

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
Node = TypeVar("Node", bound=ast.AST)


class SyntaxTree:
    """Syntax tree of a text; SyntaxError if it is not Python."""

    def __init__(self, source: str, path: str = "<unknown>") -> None:
        self.root = ast.parse(source, filename=path)
        self._nodes = list(ast.walk(self.root))
        self.parents = {child: node for node in self._nodes for child in ast.iter_child_nodes(node)}

    def every(self, *types: type[Node]) -> Iterator[Node]:
        """Yield all nodes of some types, from the outside in."""
        yield from (node for node in self._nodes if isinstance(node, types))

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes around a node, from the inside out, up to the module."""
        parent = self.parents.get(node)
        while parent is not None:
            yield parent
            parent = self.parents.get(parent)


def last_name(node: ast.AST) -> str:
    """Return the name that an expression ends in, such as ``model`` of ``self.model``; else ``""``.

    >>> last_name(ast.parse("self.model", mode="eval").body)
    'model'
    """
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
