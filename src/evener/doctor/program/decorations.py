"""Decorators of the program itself: what they are given, and what they put around it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from evener.doctor.program.module import Function, Module
from evener.doctor.program.values import returns_of

if TYPE_CHECKING:
    from evener.doctor.program.program import Program


class Decorations:
    """What the decorators of a program do, where they are functions of the program.

    Args:
        program: The program.
    """

    def __init__(self, program: Program) -> None:
        self.given_to: dict[ast.AST, list[tuple[Module, ast.AST]]] = {}
        self.wrappers_of: dict[ast.AST, list[tuple[Module, Function]]] = {}
        for module, node in program.nodes(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef):
            for decorator in getattr(node, "decorator_list", []):
                for where, function in _taking(program, module, decorator):
                    self.given_to.setdefault(function, []).append((module, node))
                    wrapper = _returned(function)
                    if wrapper is not None and _calls_parameter(wrapper, function):
                        self.wrappers_of.setdefault(node, []).append((where, wrapper))


def _taking(
    program: Program, module: Module, decorator: ast.expr
) -> Iterator[tuple[Module, Function]]:
    """Yield the functions that are given the decorated one."""
    named = decorator.func if isinstance(decorator, ast.Call) else decorator
    found = []
    if isinstance(named, ast.Name):
        found = list(program.bindings(module, named))
    elif isinstance(named, ast.Attribute):
        symbol = program.symbol(module, named)
        found = [symbol] if symbol is not None else []
    for where, binding in found:
        function: Function | None = None
        if isinstance(binding.definition, ast.FunctionDef | ast.AsyncFunctionDef):
            function = binding.definition
        if function is not None and isinstance(decorator, ast.Call):
            function = _returned(function)
        if function is not None:
            yield where, function


def _returned(function: Function) -> Function | None:
    """Return the function that is made in another and returned by it."""
    if isinstance(function, ast.Lambda):
        return function.body if isinstance(function.body, ast.Lambda) else None
    made = {one.name: one for one in function.body if isinstance(one, ast.FunctionDef)}
    for returned in returns_of(function):
        if isinstance(returned, ast.Lambda):
            return returned
        if isinstance(returned, ast.Name) and returned.id in made:
            return made[returned.id]
    return None


def _calls_parameter(wrapper: Function, function: Function) -> bool:
    """Return whether a wrapper uses what the function around it was given."""
    positional = [*function.args.posonlyargs, *function.args.args]
    return bool(positional) and any(
        isinstance(node, ast.Name) and node.id == positional[0].arg for node in ast.walk(wrapper)
    )
