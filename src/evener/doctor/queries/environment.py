"""Environment variables that a program sets, with their lines and order."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from evener.analysis import Location, Module, Program, argument

_ENVIRON = "os.environ"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A line that sets an environment variable.

    Args:
        module: Module that contains it.
        node: The assignment or call.
        name: The variable.
        value: Value; None if it is not known.
    """

    module: Module
    node: ast.AST
    name: str
    value: str | None

    @property
    def location(self) -> Location:
        """Return its line."""
        return self.module.location(self.node)


def settings(program: Program) -> list[Setting]:
    """Return the lines that set environment variables, file by file."""
    found = [*_assigned(program), *_called(program)]
    return sorted(found, key=lambda setting: (setting.location.path, setting.location.line))


def reads(program: Program, name: str) -> bool:
    """Return whether a program looks at an environment variable."""
    for call in program.calls("os.environ.get", "os.getenv"):
        if program.constant(call.module, call.argument(0, "key")) == name:
            return True
    for module, node in program.nodes(ast.Subscript, ast.Compare):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            if program.name_of(module, node.value) == _ENVIRON:
                if program.constant(module, node.slice) == name:
                    return True
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            if program.name_of(module, node.comparators[0]) == _ENVIRON:
                if program.constant(module, node.left) == name:
                    return True
    return False


def _assigned(program: Program) -> Iterator[Setting]:
    for module, node in program.nodes(ast.Assign):
        assert isinstance(node, ast.Assign)
        for target in node.targets:
            if isinstance(target, ast.Subscript):
                if program.name_of(module, target.value) == _ENVIRON:
                    yield from _setting(program, module, node, target.slice, node.value)


def _called(program: Program) -> Iterator[Setting]:
    for call in program.calls("os.environ.setdefault", "os.putenv"):
        name, value = call.argument(0, "key"), call.argument(1, "value")
        if name is not None and value is not None:
            yield from _setting(program, call.module, call.node, name, value)


def _setting(
    program: Program, module: Module, node: ast.AST, name: ast.expr, value: ast.expr
) -> Iterator[Setting]:
    named = name.value if isinstance(name, ast.Constant) else program.constant(module, name)
    if isinstance(named, str):
        yield Setting(module=module, node=node, name=named, value=_text(program, module, value))


def _text(program: Program, module: Module, node: ast.expr) -> str | None:
    """Return the text of a constant, also within ``str(...)``."""
    if isinstance(node, ast.Call) and program.name_of(module, node.func) == "str":
        node = argument(node, 0, "object") or node
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = program.constant(module, node.operand)
        return None if inner is None else f"-{inner}"
    value = program.constant(module, node)
    return None if value is None else str(value)
