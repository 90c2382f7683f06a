"""What the names of a program are bound to, scope by scope, and which binding a use sees."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from evener.doctor.program.module import FUNCTIONS, Function, Module
from evener.doctor.program.reading import absolute_name

Step = str | int
"""How a value is taken out of another: ``"each"`` element, ``"enter"`` a context, an index."""

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SCOPES = (*FUNCTIONS, *_COMPREHENSIONS, ast.ClassDef, ast.Module)
# A binding in one of these is made whatever happens; those in loops and branches may not be.
_TRANSPARENT = (ast.With, ast.AsyncWith, ast.Try)
# Not AugAssign: what a name was before stays the better guess of what it is.
_BINDING = (
    *(ast.Import, ast.ImportFrom, *FUNCTIONS, ast.ClassDef),
    *(ast.Assign, ast.AnnAssign, ast.NamedExpr),
    *(ast.For, ast.AsyncFor, ast.comprehension, ast.With, ast.AsyncWith),
)
Position = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Binding:
    """One way in which a name gets its value. One of the last four says which.

    Args:
        name: The name.
        statement: The node that binds it.
        position: From where on it holds: line and column.
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


class Scopes:
    """The bindings of one module.

    Args:
        module: The module.
    """

    def __init__(self, module: Module) -> None:
        self.module = module
        self.stars: list[str] = []
        self._bindings: dict[ast.AST, dict[str, list[Binding]]] = {}
        self._global = {
            (function, name)
            for node in module.every(ast.Global)
            for name in getattr(node, "names", ())
            for function in module.around(node)
            if isinstance(function, FUNCTIONS)
        }
        for node in module.every(*_BINDING):
            for binding in self._bindings_of(node):
                scope = self._scope_for(node, binding)
                self._bindings.setdefault(scope, {}).setdefault(binding.name, []).append(binding)
        for names in self._bindings.values():
            for bindings in names.values():
                bindings.sort(key=lambda one: one.position)

    def scope_of(self, node: ast.AST) -> ast.AST:
        """Return the function, class, comprehension or module right around a node."""
        return next(one for one in self.module.around(node) if isinstance(one, _SCOPES))

    def bindings_in(self, scope: ast.AST, name: str) -> list[Binding]:
        """Return all bindings of a name in a scope itself."""
        return self._bindings.get(scope, {}).get(name, [])

    def seen_from(self, use: ast.AST, name: str) -> list[Binding]:
        """Return the bindings that a name may have where it is used."""
        innermost = True
        for scope in self.module.around(use):
            if not isinstance(scope, _SCOPES) or (
                isinstance(scope, ast.ClassDef) and not innermost
            ):
                continue
            found = self.bindings_in(scope, name)
            if found:
                position = _start(use) if innermost else (1 << 60, 0)
                return self._reaching(found, use if innermost else None, position)
            # What a comprehension uses is used where the comprehension stands.
            innermost = innermost and isinstance(scope, _COMPREHENSIONS)
        return []

    def _reaching(
        self, bindings: list[Binding], use: ast.AST | None, position: Position
    ) -> list[Binding]:
        """Leave out what is certainly bound anew before the use."""
        if len(bindings) == 1:
            return bindings
        around = None if use is None else set(self.module.around(use))
        before = [b for b in bindings if b.position <= position]
        last = 0
        for index, binding in enumerate(before):
            if self._is_certain(binding, around):
                last = index
        kept = before[last:]
        if around is not None:
            # In a loop, what is bound further down is seen in the next round, unless it is
            # certainly bound anew there before the use.
            again = self._loops(before[last]) & around if before else set()
            is_certain = bool(before) and self._is_certain(before[last], around)
            for binding in bindings:
                loops = self._loops(binding) & around
                if binding.position > position and loops and not (is_certain and loops <= again):
                    kept.append(binding)
        return kept or bindings

    def _is_certain(self, binding: Binding, around: set[ast.AST] | None) -> bool:
        if binding.parameter_of is not None:
            return True
        for outer in self.module.around(binding.statement):
            if isinstance(outer, _SCOPES) or (around is not None and outer in around):
                return True
            if not isinstance(outer, _TRANSPARENT):
                return False
        return True

    def _loops(self, binding: Binding) -> set[ast.AST]:
        loops: set[ast.AST] = set()
        for outer in self.module.around(binding.statement):
            if isinstance(outer, _SCOPES):
                break
            if isinstance(outer, ast.For | ast.While):
                loops.add(outer)
        return loops

    def _scope_for(self, node: ast.AST, binding: Binding) -> ast.AST:
        if binding.parameter_of is not None:
            return binding.parameter_of
        if isinstance(node, ast.comprehension):
            return self.module.parents[node]
        scope = self.scope_of(node)
        while isinstance(node, ast.NamedExpr) and isinstance(scope, _COMPREHENSIONS):
            scope = self.scope_of(scope)
        if (scope, binding.name) in self._global:
            return self.module.tree
        return scope

    def _bindings_of(self, node: ast.AST) -> Iterator[Binding]:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from self._imports(node)
        elif isinstance(node, FUNCTIONS):
            yield from _parameters(node)
            if not isinstance(node, ast.Lambda):
                yield Binding(
                    name=node.name, statement=node, position=_start(node), definition=node
                )
        elif isinstance(node, ast.ClassDef):
            yield Binding(name=node.name, statement=node, position=_start(node), definition=node)
        else:
            yield from _assigned(node)

    def _imports(self, node: ast.Import | ast.ImportFrom) -> Iterator[Binding]:
        base = absolute_name(self.module, node) if isinstance(node, ast.ImportFrom) else ""
        for alias in node.names:
            if alias.name == "*":
                self.stars.append(base)
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
        for index, one in enumerate(target.elts):
            if pairwise:
                yield from _targets(one, given[index], (), statement, position)
            else:
                yield from _targets(one, value, (*steps, index), statement, position)
    elif isinstance(target, ast.Starred):
        yield from _targets(target.value, value, (*steps, "each"), statement, position)


def _parameters(function: Function) -> Iterator[Binding]:
    given = function.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    for one in named:
        if one is not None:
            yield Binding(
                name=one.arg, statement=one, position=_start(function), parameter_of=function
            )


def _start(node: ast.AST) -> Position:
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


def _end(node: ast.AST) -> Position:
    return getattr(node, "end_lineno", 0) or 0, getattr(node, "end_col_offset", 0) or 0
