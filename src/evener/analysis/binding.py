"""The bindings of a module: what gives a name its value, and from where on."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from evener.analysis.files import absolute_name
from evener.analysis.module import FUNCTIONS, Function, Module

Step = str | int
"""How a value is taken out of another: ``"each"`` element, ``"enter"`` a context, an index."""

# Not AugAssign: the value before it says more about the kind of the name.
BINDING = (
    *(ast.Import, ast.ImportFrom, *FUNCTIONS, ast.ClassDef),
    *(ast.Assign, ast.AnnAssign, ast.NamedExpr),
    *(ast.For, ast.AsyncFor, ast.comprehension, ast.With, ast.AsyncWith),
)
"""The nodes that bind names."""
Position = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Binding:
    """One way in which a name gets its value: one of the last four attributes is set.

    Args:
        name: The name.
        statement: The node that binds it.
        position: Line and column from which it holds.
        value: An expression, from which ``steps`` lead to the value.
        steps: See `Step`.
        definition: A function or class.
        imported: A dotted name.
        parameter_of: A function that has a parameter of this name.
    """

    name: str
    statement: ast.AST
    position: Position
    value: ast.expr | None = None
    steps: tuple[Step, ...] = ()
    definition: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | None = None
    imported: str | None = None
    parameter_of: Function | None = None


def bindings_of(module: Module, node: ast.AST) -> Iterator[Binding]:
    """Yield the bindings that a node makes."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield from _imports(module, node)
    elif isinstance(node, FUNCTIONS):
        yield from _parameters(node)
        if not isinstance(node, ast.Lambda):
            yield Binding(name=node.name, statement=node, position=start(node), definition=node)
    elif isinstance(node, ast.ClassDef):
        yield Binding(name=node.name, statement=node, position=start(node), definition=node)
    else:
        yield from _assigned(node)


def _imports(module: Module, node: ast.Import | ast.ImportFrom) -> Iterator[Binding]:
    base = absolute_name(module, node) if isinstance(node, ast.ImportFrom) else ""
    for alias in node.names:
        if alias.name == "*":
            continue
        if isinstance(node, ast.Import):
            # `import a.b` binds a; `import a.b as c` binds a.b.
            dotted = alias.name if alias.asname else alias.name.partition(".")[0]
        else:
            dotted = f"{base}.{alias.name}" if base else alias.name
        name = alias.asname or alias.name.partition(".")[0]
        yield Binding(name=name, statement=node, position=_end(node), imported=dotted)


def _assigned(node: ast.AST) -> Iterator[Binding]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _targets(target, node.value, (), node, _end(node))
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
        yield from _targets(node.target, node.value, (), node, _end(node))
    elif isinstance(node, ast.For | ast.AsyncFor):
        yield from _targets(node.target, node.iter, ("each",), node, _end(node.iter))
    elif isinstance(node, ast.comprehension):
        yield from _targets(node.target, node.iter, ("each",), node, (0, 0))
    elif isinstance(node, ast.With | ast.AsyncWith):
        for item in node.items:
            if item.optional_vars is not None:
                where = _end(item.context_expr)
                yield from _targets(item.optional_vars, item.context_expr, ("enter",), node, where)


def _targets(
    target: ast.expr,
    value: ast.expr,
    steps: tuple[Step, ...],
    statement: ast.AST,
    position: Position,
) -> Iterator[Binding]:
    if isinstance(target, ast.Name):
        yield Binding(
            name=target.id, statement=statement, position=position, value=value, steps=steps
        )
    elif isinstance(target, ast.Tuple | ast.List):
        given = value.elts if isinstance(value, ast.Tuple | ast.List) and not steps else []
        pairwise = len(given) == len(target.elts)
        for index, element in enumerate(target.elts):
            if pairwise:
                yield from _targets(element, given[index], (), statement, position)
            else:
                yield from _targets(element, value, (*steps, index), statement, position)
    elif isinstance(target, ast.Starred):
        yield from _targets(target.value, value, (*steps, "each"), statement, position)


def _parameters(function: Function) -> Iterator[Binding]:
    given = function.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    for parameter in named:
        if parameter is not None:
            yield Binding(
                name=parameter.arg,
                statement=parameter,
                position=start(function),
                parameter_of=function,
            )


def start(node: ast.AST) -> Position:
    """Return the line and column at which a node begins."""
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


def _end(node: ast.AST) -> Position:
    return getattr(node, "end_lineno", 0) or 0, getattr(node, "end_col_offset", 0) or 0
