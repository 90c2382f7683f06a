"""Source code as findings show it."""

from __future__ import annotations

import ast

from evener.analysis import Call, Location, Module, Program
from evener.doctor.watch import Line

_LONGEST = 60


def shown(node: ast.AST) -> str:
    """Return an expression as text, cut where it is long."""
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def method_location(call: Call) -> Location:
    """Return the line on which the method's name stands, in a chain over several lines."""
    function = call.node.func
    if isinstance(function, ast.Attribute) and function.end_lineno is not None:
        return location_of_line(call.module, function.end_lineno)
    return call.location


def location_of_line(module: Module, line: int) -> Location:
    """Return a line of a module by its number."""
    return Location(path=module.path, line=line, text=module.lines[line - 1].strip())


def observed_location(program: Program, line: Line | None) -> Location:
    """Return the location of a line that a run has shown; the script as a whole for None."""
    if line is None:
        return Location(path=program.script, line=0)
    for module in program.modules:
        if module.path == line.file and 0 < line.line <= len(module.lines):
            return location_of_line(module, line.line)
    return Location(path=line.file, line=line.line)
