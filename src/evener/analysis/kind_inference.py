"""Kind inference: the kinds that an expression of a program may have."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

from evener.analysis.api.successors import METHOD_ALIASES
from evener.analysis.binding import Step
from evener.analysis.dataflow import DISTRIBUTING
from evener.analysis.interface import ProgramQueries
from evener.analysis.kinds import (
    BASE_KINDS,
    CALL_KINDS,
    CLOSED_KINDS,
    ELEMENT_KINDS,
    MADE_BY,
    METHOD_KINDS,
    NAMED_KINDS,
    TENSOR_METHODS,
    Kind,
)
from evener.analysis.memo import RecursionSafeMemo
from evener.analysis.module import FUNCTIONS, Module
from evener.analysis.value import Value

# The depth of recursive queries.
_DEEPEST = 60


class Kinds:
    """Infers the kinds of expressions of a program.

    Args:
        program: The program.
    """

    def __init__(self, program: ProgramQueries) -> None:
        self._program = program
        self._memo: RecursionSafeMemo[tuple[ast.AST, tuple[Step, ...]], frozenset[Kind]]
        self._memo = RecursionSafeMemo(frozenset(), deepest=_DEEPEST)

    def of(self, module: Module, node: ast.AST, steps: tuple[Step, ...] = ()) -> frozenset[Kind]:
        """Return the kinds that an expression may have; empty if nothing is known."""
        return self._memo.get((node, steps), lambda: self._found(module, node, steps))

    def _found(self, module: Module, node: ast.AST, steps: tuple[Step, ...]) -> frozenset[Kind]:
        values = self._program.origins(module, node, steps)
        return frozenset(kind for value in values for kind in self._of_value(value))

    def of_class(self, module: Module, definition: ast.ClassDef) -> Kind | None:
        """Return what instances of a class of the program are, by its bases."""
        for where, base_definition in self._program.classes.with_bases(module, definition):
            for _, base in self._program.classes.bases(where, base_definition):
                if isinstance(base, str):
                    kind = next(
                        (k for pattern, k in BASE_KINDS if fnmatchcase(base, pattern)), None
                    )
                    if kind is not None:
                        return kind
        return None

    def _of_value(self, value: Value) -> Iterator[Kind]:
        plain = tuple(self._of_node(value.module, value.node))
        for kind in plain:
            stepped: Kind | None = kind
            for step in value.steps:
                if stepped is not None and step != "enter":
                    stepped = ELEMENT_KINDS.get(stepped)
            if stepped is not None:
                yield stepped

    def _of_node(self, module: Module, node: ast.AST) -> Iterator[Kind]:
        if isinstance(node, ast.Call):
            yield from self._of_call(module, node)
        elif isinstance(node, ast.BinOp | ast.UnaryOp):
            sides = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.operand,)
            kinds = {kind for side in sides for kind in self.of(module, side)}
            strongest = (Kind.PER_REPLICA, Kind.TENSOR, Kind.VARIABLE, Kind.BATCH, Kind.ARRAY)
            first = next((kind for kind in strongest if kind in kinds), None)
            if first is not None:
                yield Kind.TENSOR if first is Kind.VARIABLE else first
        elif isinstance(node, ast.arg):
            yield from self._of_parameter(module, node)
        elif isinstance(node, ast.Name) and node.id == "self":
            yield from self._of_self(module, node)
        elif isinstance(node, ast.Attribute):
            if self._program.name_of(module, node):
                return
            kinds = self.of(module, node.value)
            if Kind.MODEL in kinds and node.attr == "optimizer":
                yield Kind.OPTIMIZER
            elif node.attr == "model" and self._is_callback(module, node.value):
                yield Kind.MODEL

    def _of_call(self, module: Module, node: ast.Call) -> Iterator[Kind]:
        name = self._program.callee(module, node)
        for pattern, kind in MADE_BY:
            if fnmatchcase(name, pattern):
                if kind is not None:
                    yield kind
                return
        for where, target in self._program.targets(module, node):
            if isinstance(target, ast.ClassDef):
                kind = self.of_class(where, target)
                if kind is not None:
                    yield kind
        if isinstance(node.func, ast.Attribute):
            if node.func.attr in DISTRIBUTING:
                yield Kind.DISTRIBUTED
            for kind in self.of(module, node.func.value):
                method = METHOD_ALIASES.get(node.func.attr, node.func.attr)
                given = METHOD_KINDS.get(kind, {}).get(
                    method, kind if kind in CLOSED_KINDS else None
                )
                if given is not None:
                    yield given
        for kind in self.of(module, node.func):
            if kind in CALL_KINDS:
                yield CALL_KINDS[kind]

    def _of_parameter(self, module: Module, node: ast.arg) -> Iterator[Kind]:
        """Infer a parameter from its annotation, the method's name, or its own name."""
        if node.annotation is not None:
            name = self._program.name_of(module, node.annotation)
            kind = _first_match(name, (*BASE_KINDS, *MADE_BY)) if name else None
            if kind is not None:
                yield kind
                return
        function = next(outer for outer in module.around(node) if isinstance(outer, FUNCTIONS))
        definition = next(
            (outer for outer in module.around(function) if isinstance(outer, ast.ClassDef)), None
        )
        if definition is not None and node.arg != "self":
            kind = self.of_class(module, definition)
            if kind is not None and getattr(function, "name", "") in TENSOR_METHODS:
                yield Kind.TENSOR
                return
        elif definition is not None:
            kind = self.of_class(module, definition)
            if kind is not None:
                yield kind
            return
        if node.arg in NAMED_KINDS:
            yield NAMED_KINDS[node.arg]

    def _is_callback(self, module: Module, node: ast.AST) -> bool:
        classes = self._program.classes
        return any(
            isinstance(base, str) and base.startswith("keras.callbacks.")
            for where, definition in classes.of(module, node)
            for _, base in classes.bases(where, definition)
        )

    def _of_self(self, module: Module, node: ast.Name) -> Iterator[Kind]:
        for where, definition in self._program.classes.of(module, node):
            kind = self.of_class(where, definition)
            if kind is not None:
                yield kind


def _first_match(name: str, patterns: Iterable[tuple[str, Kind | None]]) -> Kind | None:
    return next((kind for pattern, kind in patterns if fnmatchcase(name, pattern)), None)
