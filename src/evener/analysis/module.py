"""One file of the program, as a syntax tree in which every node knows what is around it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar, cast

from evener.analysis.location import Location

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
Node = TypeVar("Node", bound=ast.AST)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Module:
    """A file that was read.

    Args:
        path: Absolute path.
        name: The dotted name it is imported by; ``"__main__"`` for the script itself.
        tree: Its syntax tree.
        source: Its text, lines separated by a line feed.
        lines: The lines of the text.
        parents: Node around each node.
        nodes: All nodes by their type, from the outside in.
    """

    path: str
    name: str
    tree: ast.Module
    source: str
    lines: tuple[str, ...]
    parents: dict[ast.AST, ast.AST]
    nodes: dict[type[ast.AST], list[ast.AST]]

    def location(self, node: ast.AST) -> Location:
        """Return the line on which a node begins."""
        line = getattr(node, "lineno", 0)
        text = self.lines[line - 1].strip() if 0 < line <= len(self.lines) else ""
        return Location(path=self.path, line=line, text=text)

    def every(self, *types: type[Node]) -> Iterator[Node]:
        """Yield all nodes of some types."""
        for node_type in types:
            yield from cast("list[Node]", self.nodes.get(node_type, []))

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes around a node, from the inside out, up to the module."""
        parent = self.parents.get(node)
        while parent is not None:
            yield parent
            parent = self.parents.get(parent)


def module_of(*, path: str, name: str, source: str) -> Module:
    """Return a module of its text.

    Raises:
        SyntaxError: The text is not Python.
    """
    tree = ast.parse(source, filename=path)
    parents: dict[ast.AST, ast.AST] = {}
    nodes: dict[type[ast.AST], list[ast.AST]] = {}
    # Once, and not for each query.
    for node in ast.walk(tree):
        nodes.setdefault(type(node), []).append(node)
        for child in ast.iter_child_nodes(node):
            parents[child] = node
    lines = tuple(source.splitlines())
    return Module(
        path=path,
        name=name,
        tree=tree,
        source=source,
        lines=lines,
        parents=parents,
        nodes=nodes,
    )


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function or module, without those of functions and classes in it."""
    waiting: list[ast.AST] = []
    if isinstance(function, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef):
        waiting += function.body
    elif isinstance(function, ast.Lambda):
        waiting.append(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            waiting.extend(ast.iter_child_nodes(node))


def last_name(node: ast.AST) -> str:
    """Return the name that an expression ends in, such as ``model`` of ``self.model``; else ``""``.

    >>> last_name(ast.parse("self.model", mode="eval").body)
    'model'
    """
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
