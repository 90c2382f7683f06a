"""Conditions about the version of TensorFlow or Keras, which are known for the installed one."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from typing import Any

from evener.analysis import Module, Program, last_name
from evener.analysis.api import public

_VERSIONS = {"tf": "tensorflow", "keras": "keras"}
_PARSERS = ("LooseVersion", "StrictVersion", "Version", "parse", "parse_version")
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
# Text, number, or the numbers of a parsed version.
_Value = str | int | float | tuple[int, ...]


def holds(program: Program, module: Module, test: ast.expr) -> bool | None:
    """Return whether a condition holds with the installed versions; None if that is not known."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        known = holds(program, module, test.operand)
        return None if known is None else not known
    if isinstance(test, ast.BoolOp):
        every = [holds(program, module, operand) for operand in test.values]
        decisive = isinstance(test.op, ast.Or)
        if decisive in every:
            return decisive
        return None if None in every else not decisive
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _compared(program, module, test)
    if isinstance(test, ast.Call) and isinstance(test.func, ast.Attribute):
        owner, given = test.func.value, test.args[0] if len(test.args) == 1 else None
        text = _value(program, module, owner) if test.func.attr == "startswith" else None
        if isinstance(text, str) and isinstance(given, ast.Constant):
            return text.startswith(given.value) if isinstance(given.value, str) else None
    return None


def runs(program: Program, module: Module, branch: ast.If | ast.IfExp, inner: ast.AST) -> bool:
    """Return whether a part of a branch certainly runs, as its condition is about versions."""
    known = holds(program, module, branch.test)
    if known is None:
        return False
    part = branch.body if known else branch.orelse
    return inner in part if isinstance(part, list) else inner is part


def _compared(program: Program, module: Module, test: ast.Compare) -> bool | None:
    compare = _COMPARISONS.get(type(test.ops[0]))
    sides = test.left, test.comparators[0]
    if compare is None or not any(_is_of_version(program, module, side) for side in sides):
        return None
    left, right = (_value(program, module, side) for side in sides)
    if isinstance(left, tuple) != isinstance(right, tuple):
        # LooseVersion also compares with a text.
        left, right = (_numbers(side) if isinstance(side, str) else side for side in (left, right))
    if left is None or right is None or _kind(left) is not _kind(right):
        return None
    return compare(left, right)


def _kind(value: _Value) -> type:
    return float if isinstance(value, int) else type(value)


def _is_of_version(program: Program, module: Module, node: ast.expr, deepest: int = 3) -> bool:
    """Return whether a value comes from the version of a library."""
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and _installed(program, module, part) is not None:
            return True
        bound = _only_binding(program, module, part) if isinstance(part, ast.Name) else None
        if bound is not None and deepest and _is_of_version(program, *bound, deepest - 1):
            return True
    return False


def _only_binding(
    program: Program, module: Module, node: ast.Name
) -> tuple[Module, ast.expr] | None:
    """Return the value of a name that is bound in one place only."""
    bindings = list(program.bindings(module, node))
    if len(bindings) != 1:
        return None
    where, binding = bindings[0]
    return None if binding.steps or binding.value is None else (where, binding.value)


def _installed(program: Program, module: Module, node: ast.Attribute) -> str | None:
    name = program.name_of(module, node.value)
    if node.attr == "__version__" and name in _VERSIONS:
        return public.version_of(_VERSIONS[name])
    if node.attr == "VERSION" and name == "tf.version":
        return public.version_of("tensorflow")
    return None


def _value(program: Program, module: Module, node: ast.expr, deepest: int = 6) -> _Value | None:
    if not deepest:
        return None
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str | int | float) else None
    if isinstance(node, ast.Attribute):
        return _installed(program, module, node)
    if isinstance(node, ast.Name):
        bound = _only_binding(program, module, node)
        return None if bound is None else _value(program, *bound, deepest - 1)
    if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
        given = _value(program, module, node.args[0], deepest - 1)
        return _converted(last_name(node.func), given)
    if isinstance(node, ast.Subscript):
        return _part(program, module, node, deepest - 1)
    return None


def _converted(function: str, given: _Value | None) -> _Value | None:
    if not isinstance(given, str):
        return None
    if function in _PARSERS:
        return _numbers(given)
    if function == "int":
        return int(given) if given.isdecimal() else None
    if function == "float":
        return float(given) if re.fullmatch(r"\d+(\.\d+)?", given) else None
    return None


def _part(program: Program, module: Module, node: ast.Subscript, deepest: int) -> _Value | None:
    """Return ``"2"`` of ``version.split(".")[0]``, ``version[0]`` or ``version[:1]``."""
    whole = node.value
    index = node.slice
    if isinstance(whole, ast.Call) and isinstance(whole.func, ast.Attribute):
        if whole.func.attr != "split" or not isinstance(index, ast.Constant):
            return None
        text = _value(program, module, whole.func.value, deepest)
        parts = text.split(".") if isinstance(text, str) else []
        place = index.value
        return parts[place] if isinstance(place, int) and 0 <= place < len(parts) else None
    text = _value(program, module, whole, deepest)
    if not isinstance(text, str) or not text:
        return None
    if isinstance(index, ast.Constant) and index.value == 0:
        return text[0]
    if isinstance(index, ast.Slice) and index.lower is None and index.step is None:
        if isinstance(index.upper, ast.Constant) and isinstance(index.upper.value, int):
            return text[: index.upper.value]
    return None


def _numbers(text: str) -> tuple[int, ...] | None:
    """Return the numbers of a version, without zeros at its end: 2.0.0 is 2.0."""
    if re.fullmatch(r"\d+(\.\d+)*", text) is None:
        return None
    numbers = [int(part) for part in text.split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
