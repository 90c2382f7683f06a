"""Queries that the parts of the analysis ask one another, by way of the `Program`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Protocol

from evener.analysis.binding import Binding, Step
from evener.analysis.call import Call, Site
from evener.analysis.kinds import Kind
from evener.analysis.module import Function, Module
from evener.analysis.value import Value

Definition = Function | ast.ClassDef


class ClassQueries(Protocol):
    """Queries about the classes of a program; `Classes` documents them."""

    def of(self, module: Module, node: ast.AST) -> Iterator[tuple[Module, ast.ClassDef]]: ...

    def bases(
        self, module: Module, definition: ast.ClassDef
    ) -> Iterator[tuple[Module, ast.ClassDef | str]]: ...

    def with_bases(
        self, module: Module, definition: ast.ClassDef
    ) -> Iterator[tuple[Module, ast.ClassDef]]: ...

    def attributes(
        self, module: Module, definition: ast.ClassDef, name: str
    ) -> Iterator[tuple[Module, ast.AST, tuple[Step, ...]]]: ...


class ProgramQueries(Protocol):
    """Queries about a program; `Program` documents them."""

    @property
    def modules(self) -> tuple[Module, ...]: ...

    @property
    def classes(self) -> ClassQueries: ...

    def nodes(self, *types: type[ast.AST]) -> Iterator[tuple[Module, ast.AST]]: ...

    def name_of(self, module: Module, node: ast.AST) -> str: ...

    def bindings(self, module: Module, node: ast.Name) -> Iterator[tuple[Module, Binding]]: ...

    def symbol(self, module: Module, node: ast.Attribute) -> tuple[Module, Binding] | None: ...

    def constant(self, module: Module, node: ast.AST | None) -> object: ...

    def origins(
        self, module: Module, node: ast.AST, steps: tuple[Step, ...] = ()
    ) -> tuple[Value, ...]: ...

    def kinds(
        self, module: Module, node: ast.AST, steps: tuple[Step, ...] = ()
    ) -> frozenset[Kind]: ...

    def calls(self, *patterns: str) -> Iterator[Call]: ...

    def call_sites(self, function: ast.AST) -> list[Site]: ...

    def callee(self, module: Module, call: ast.Call) -> str: ...

    def targets(self, module: Module, call: ast.Call) -> Iterator[tuple[Module, Definition]]: ...

    def functions_of(
        self, module: Module, node: ast.AST
    ) -> Iterator[tuple[Module, Definition]]: ...
