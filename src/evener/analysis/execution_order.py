"""The order in which the lines of a program run for the first time."""

from __future__ import annotations

import ast
from dataclasses import replace

from evener.analysis.files import imported_names
from evener.analysis.interface import ProgramQueries
from evener.analysis.module import FUNCTIONS, Function, Module


class ExecutionOrder:
    """Numbers the calls, assignments and imports of a program as they first run.

    The script is followed from its first line, through imports of its own modules and calls of
    its own functions. What only a library calls, and what is never called, has no number.

    Args:
        program: The program.
    """

    def __init__(self, program: ProgramQueries) -> None:
        self._program = program
        self._numbers: dict[ast.AST, int] = {}
        self._entered: set[ast.AST] = set()
        for module in program.modules[:1]:
            self._run_module(module)

    def of(self, node: ast.AST) -> int | None:
        """Return the number of a statement, call or expression; None if it may never run."""
        return self._numbers.get(node)

    def is_before(self, node: ast.AST, other: ast.AST) -> bool:
        """Return whether both run, the first node before the other."""
        first, second = self.of(node), self.of(other)
        return first is not None and second is not None and first < second

    def _run_module(self, module: Module) -> None:
        if module.tree in self._entered:
            return
        self._entered.add(module.tree)
        for statement in module.tree.body:
            self._visit(module, statement)

    def _visit(self, module: Module, node: ast.AST) -> None:
        if isinstance(node, ast.Import | ast.ImportFrom):
            self._number(node)
            self._import(module, node)
            return
        if isinstance(node, FUNCTIONS):
            self._number(node)
            decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
            for expression in (*decorators, *node.args.defaults):
                self._visit(module, expression)
            return
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign) and node.value:
            # The assigned value is computed first.
            self._visit(module, node.value)
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                self._visit(module, target)
            self._number(node)
            return
        if isinstance(node, ast.Call):
            for child in ast.iter_child_nodes(node):
                self._visit(module, child)
            self._number(node)
            self._enter(module, node)
            return
        self._number(node)
        for child in ast.iter_child_nodes(node):
            self._visit(module, child)

    def _enter(self, module: Module, call: ast.Call) -> None:
        for where, target in self._called(module, call):
            if target in self._entered:
                continue
            self._entered.add(target)
            body = [target.body] if isinstance(target, ast.Lambda) else target.body
            for statement in body:
                self._visit(where, statement)

    def _called(self, module: Module, call: ast.Call) -> list[tuple[Module, Function]]:
        found: list[tuple[Module, Function]] = []
        given = [call.func, *call.args[:1]]
        for expression in given:
            for where, target in self._program.functions_of(module, expression):
                if isinstance(target, ast.ClassDef):
                    if expression is not call.func:
                        continue
                    methods = self._program.classes.attributes(where, target, "__init__")
                    for where, method, _ in methods:
                        if isinstance(method, FUNCTIONS):
                            found.append((where, method))
                else:
                    found.append((where, target))
        return found

    def _import(self, module: Module, node: ast.Import | ast.ImportFrom) -> None:
        by_name = {known.name: known for known in self._program.modules}
        asked = replace(module, nodes={type(node): [node]})
        for name, _ in imported_names(asked):
            if name in by_name:
                self._run_module(by_name[name])

    def _number(self, node: ast.AST) -> None:
        self._numbers.setdefault(node, len(self._numbers))
