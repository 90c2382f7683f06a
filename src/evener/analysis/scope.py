"""Scopes of a module, and the bindings that reach the use of a name."""

from __future__ import annotations

import ast

from evener.analysis.binding import BINDING, Binding, Position, bindings_of, start
from evener.analysis.files import absolute_name
from evener.analysis.module import FUNCTIONS, Module

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SCOPES = (*FUNCTIONS, *_COMPREHENSIONS, ast.ClassDef, ast.Module)
# A binding in one of these is made whatever happens; those in loops and branches may not be.
_TRANSPARENT = (ast.With, ast.AsyncWith, ast.Try)


class Scopes:
    """The bindings of one module.

    Args:
        module: The module.
    """

    def __init__(self, module: Module) -> None:
        self.module = module
        self.stars: list[str] = [
            absolute_name(module, node)
            for node in module.every(ast.ImportFrom)
            if any(alias.name == "*" for alias in node.names)
        ]
        self._bindings: dict[ast.AST, dict[str, list[Binding]]] = {}
        self._global = {
            (function, name)
            for node in module.every(ast.Global)
            for name in node.names
            for function in module.around(node)
            if isinstance(function, FUNCTIONS)
        }
        for node in module.every(*BINDING):
            for binding in bindings_of(module, node):
                scope = self._scope_for(node, binding)
                self._bindings.setdefault(scope, {}).setdefault(binding.name, []).append(binding)
        for names in self._bindings.values():
            for bindings in names.values():
                bindings.sort(key=lambda binding: binding.position)

    def scope_of(self, node: ast.AST) -> ast.AST:
        """Return the function, class, comprehension or module right around a node."""
        return next(outer for outer in self.module.around(node) if isinstance(outer, _SCOPES))

    def bindings_in(self, scope: ast.AST, name: str) -> list[Binding]:
        """Return all bindings of a name in a scope itself."""
        return self._bindings.get(scope, {}).get(name, [])

    def seen_from(self, use: ast.AST, name: str) -> list[Binding]:
        """Return the bindings of a name that reach a use."""
        innermost = True
        for scope in self.module.around(use):
            if not isinstance(scope, _SCOPES) or (
                isinstance(scope, ast.ClassDef) and not innermost
            ):
                continue
            found = self.bindings_in(scope, name)
            if found:
                position = start(use) if innermost else (1 << 60, 0)
                return self._reaching(found, use if innermost else None, position)
            # What a comprehension uses is used where the comprehension stands.
            innermost = innermost and isinstance(scope, _COMPREHENSIONS)
        return []

    def _reaching(
        self, bindings: list[Binding], use: ast.AST | None, position: Position
    ) -> list[Binding]:
        """Leave out bindings that another one certainly replaces before the use."""
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
            # In a loop, a binding further down reaches the use in the next iteration, unless
            # another one certainly replaces it there.
            again = self._loops(before[last]) & around if before else set[ast.AST]()
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
