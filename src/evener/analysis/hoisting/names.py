"""The names that a list of statements reads from outside, binds and deletes."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(slots=True, kw_only=True)
class Names:
    """Names of some statements that run one after the other.

    Attributes:
        read: Names that may be read before these statements have bound them.
        bound: Names that they may bind.
        certain: Names that are bound when the last of them has run.
        deleted: Names that they may delete.
    """

    read: set[str] = field(default_factory=set)
    bound: set[str] = field(default_factory=set)
    certain: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)


def names_of(statements: Sequence[ast.stmt]) -> Names:
    r"""Return the names of statements.

    Example:
        >>> found = names_of(ast.parse("y = x\ntotal += y\nif y: z = 1").body)
        >>> sorted(found.read), sorted(found.bound), sorted(found.certain)
        (['total', 'x'], ['total', 'y', 'z'], ['total', 'y'])
    """
    names = Names()
    _follow(statements, names, names.certain)
    return names


def loads_in(node: ast.AST) -> Iterator[ast.Name]:
    """Yield every use of a name in a node, in functions within it too."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load):
            yield inner


def targets_of(node: ast.AST) -> Iterator[str]:
    """Yield the names in the target of an assignment that it binds."""
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Tuple | ast.List):
        for element in node.elts:
            yield from targets_of(element)
    elif isinstance(node, ast.Starred):
        yield from targets_of(node.value)


def _follow(statements: Iterable[ast.stmt], names: Names, certain: set[str]) -> None:
    """Add the names of statements; ``certain`` is what is bound before and, then, behind them."""
    for statement in statements:
        _statement(statement, names, certain)


def _statement(node: ast.stmt, names: Names, certain: set[str]) -> None:
    if isinstance(node, ast.Assign):
        _reads(node.value, names, certain)
        for target in node.targets:
            _bind(target, names, certain)
    elif isinstance(node, ast.AugAssign):
        _reads(ast.Name(node.target.id, ast.Load()), names, certain) if isinstance(
            node.target, ast.Name
        ) else None
        _reads(node.value, names, certain)
        _bind(node.target, names, certain)
    elif isinstance(node, ast.AnnAssign):
        _reads(node.annotation, names, certain)
        if node.value is not None:
            _reads(node.value, names, certain)
            _bind(node.target, names, certain)
    elif isinstance(node, ast.If):
        _reads(node.test, names, certain)
        branches = [set(certain), set(certain)]
        _follow(node.body, names, branches[0])
        _follow(node.orelse, names, branches[1])
        certain |= branches[0] & branches[1]
    elif isinstance(node, ast.For | ast.While):
        _loop(node, names, certain)
    elif isinstance(node, ast.With):
        for item in node.items:
            _reads(item.context_expr, names, certain)
            if item.optional_vars is not None:
                _bind(item.optional_vars, names, certain)
        _follow(node.body, names, certain)
    elif isinstance(node, ast.Delete):
        for target in node.targets:
            _delete(target, names, certain)
    else:
        for child in ast.iter_child_nodes(node):
            _reads(child, names, certain)


def _loop(node: ast.For | ast.While, names: Names, certain: set[str]) -> None:
    body = set(certain)
    if isinstance(node, ast.For):
        _reads(node.iter, names, certain)
        _bind(node.target, names, body)
    else:
        _reads(node.test, names, certain)
    _follow(node.body, names, body)
    # The body may not run at all.
    _follow(node.orelse, names, set(certain))


def _bind(target: ast.AST, names: Names, certain: set[str]) -> None:
    bound = set(targets_of(target))
    names.bound |= bound
    certain |= bound
    # What is stored into is read.
    for node in _without_names(target):
        _reads(node, names, certain)


def _without_names(target: ast.AST) -> Iterator[ast.AST]:
    if isinstance(target, ast.Tuple | ast.List):
        for element in target.elts:
            yield from _without_names(element)
    elif isinstance(target, ast.Starred):
        yield from _without_names(target.value)
    elif not isinstance(target, ast.Name):
        yield from ast.iter_child_nodes(target)


def _delete(target: ast.AST, names: Names, certain: set[str]) -> None:
    for name in targets_of(target):
        if name not in certain:
            names.read.add(name)
        names.deleted.add(name)
        certain.discard(name)
    for node in _without_names(target):
        _reads(node, names, certain)


def _reads(node: ast.AST, names: Names, certain: set[str], hidden: frozenset[str] = frozenset()):
    """Add the names that an expression reads; ``hidden`` are those of a scope within it."""
    if isinstance(node, ast.Name):
        if isinstance(node.ctx, ast.Load) and node.id not in hidden and node.id not in certain:
            names.read.add(node.id)
    elif isinstance(node, ast.NamedExpr):
        _reads(node.value, names, certain, hidden)
        # It may stand where it is not always reached.
        names.bound |= set(targets_of(node.target))
    elif isinstance(node, ast.Lambda):
        given = node.args
        for default in (*given.defaults, *given.kw_defaults):
            if default is not None:
                _reads(default, names, certain, hidden)
        named = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
        inner = {argument.arg for argument in named if argument is not None}
        _reads(node.body, names, certain, hidden | inner)
    elif isinstance(node, _COMPREHENSIONS):
        inner = frozenset(
            name for generator in node.generators for name in targets_of(generator.target)
        )
        _reads(node.generators[0].iter, names, certain, hidden)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.comprehension):
                for part in (*child.ifs, *([child.iter] * (child is not node.generators[0]))):
                    _reads(part, names, certain, hidden | inner)
            else:
                _reads(child, names, certain, hidden | inner)
    else:
        for child in ast.iter_child_nodes(node):
            _reads(child, names, certain, hidden)
