"""The classes of a program: their bases, their attributes, and what is an instance of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cached_property

from evener.analysis.binding import Step
from evener.analysis.interface import ProgramQueries
from evener.analysis.module import Module
from evener.analysis.scope import Scopes

_Assigned = tuple[ast.expr, tuple[Step, ...]]


class Classes:
    """Answers queries about the classes of a program.

    Args:
        program: The program.
        scopes: Bindings of names in each of its files.
    """

    def __init__(self, program: ProgramQueries, scopes: Mapping[Module, Scopes]) -> None:
        self._program = program
        self._scopes = scopes

    def of(self, module: Module, node: ast.AST) -> Iterator[tuple[Module, ast.ClassDef]]:
        """Yield the classes of the program that an expression may be an instance of."""
        if isinstance(node, ast.Name) and node.id in ("self", "cls"):
            for outer in module.around(node):
                if isinstance(outer, ast.ClassDef):
                    yield module, outer
                    # `self` may be an instance of a subclass.
                    yield from self._derived.get(outer, ())
                    return
        if isinstance(node, ast.Call) and self._program.name_of(module, node.func) == "super":
            for outer in module.around(node):
                if isinstance(outer, ast.ClassDef):
                    for where, base in self.bases(module, outer):
                        if isinstance(base, ast.ClassDef):
                            yield where, base
                    return
        for value in self._program.origins(module, node):
            if isinstance(value.node, ast.Call) and not value.steps:
                for where, target in self._program.targets(value.module, value.node):
                    if isinstance(target, ast.ClassDef):
                        yield where, target
            elif isinstance(value.node, ast.ClassDef) and not value.steps:
                # Config.batch_size, without an instance.
                yield value.module, value.node
            elif isinstance(value.node, ast.arg) and value.node.annotation is not None:
                for origin in self._program.origins(value.module, value.node.annotation):
                    if isinstance(origin.node, ast.ClassDef):
                        yield origin.module, origin.node

    def bases(
        self, module: Module, definition: ast.ClassDef
    ) -> Iterator[tuple[Module, ast.ClassDef | str]]:
        """Yield the bases of a class: classes of the program, or names of the libraries."""
        for base in definition.bases:
            name = self._program.name_of(module, base)
            if name:
                yield module, name
                continue
            for value in self._program.origins(module, base):
                if isinstance(value.node, ast.ClassDef):
                    yield value.module, value.node

    def with_bases(
        self, module: Module, definition: ast.ClassDef
    ) -> Iterator[tuple[Module, ast.ClassDef]]:
        """Yield a class and its bases in the program, once each."""
        waiting: list[tuple[Module, ast.ClassDef]] = [(module, definition)]
        seen = set[ast.AST]()
        while waiting:
            where, current = waiting.pop(0)
            if current in seen:
                continue
            seen.add(current)
            yield where, current
            for base_module, base in self.bases(where, current):
                if isinstance(base, ast.ClassDef):
                    waiting.append((base_module, base))

    @cached_property
    def _derived(self) -> dict[ast.ClassDef, list[tuple[Module, ast.ClassDef]]]:
        found: dict[ast.ClassDef, list[tuple[Module, ast.ClassDef]]] = {}
        for module, node in self._program.nodes(ast.ClassDef):
            assert isinstance(node, ast.ClassDef)
            for _, base in self.with_bases(module, node):
                if base is not node:
                    found.setdefault(base, []).append((module, node))
        return found

    def attributes(
        self, module: Module, definition: ast.ClassDef, name: str
    ) -> Iterator[tuple[Module, ast.AST, tuple[Step, ...]]]:
        """Yield the values that an attribute of instances may have, also by the bases."""
        for where, base_definition in self.with_bases(module, definition):
            found = False
            for binding in self._scopes[where].bindings_in(base_definition, name):
                found = True
                if binding.definition is not None:
                    yield where, binding.definition, ()
                elif binding.value is not None:
                    yield where, binding.value, binding.steps
            for value, steps in self._assigned_to_self.get((base_definition, name), []):
                found = True
                yield where, value, steps
            if found:
                return

    @cached_property
    def _assigned_to_self(self) -> dict[tuple[ast.ClassDef, str], list[_Assigned]]:
        found: dict[tuple[ast.ClassDef, str], list[_Assigned]] = {}
        for module, node in self._program.nodes(ast.Assign, ast.AnnAssign):
            if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                parts = target.elts if isinstance(target, ast.Tuple) else [target]
                for index, part in enumerate(parts):
                    definition = _class_of_self(module, part)
                    if definition is None or not isinstance(part, ast.Attribute):
                        continue
                    steps: tuple[Step, ...] = (index,) if part is not target else ()
                    found.setdefault((definition, part.attr), []).append((node.value, steps))
        return found


def _class_of_self(module: Module, node: ast.AST) -> ast.ClassDef | None:
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
        return None
    if node.value.id not in ("self", "cls"):
        return None
    return next((outer for outer in module.around(node) if isinstance(outer, ast.ClassDef)), None)
