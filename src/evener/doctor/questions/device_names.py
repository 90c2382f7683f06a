"""The names of devices that a program gives to TensorFlow."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from evener.doctor.program import Call, Module, Place, Program
from evener.doctor.questions.numbers import number

_TAKING = (
    ("tf.device", "device_name"),
    ("keras.device", "device_name"),
    ("tf.distribute.OneDeviceStrategy", "device"),
    ("tf.distribute.MirroredStrategy", "devices"),
    ("tf.distribute.CentralStorageStrategy", "compute_devices"),
)
_HOLE = "\0"
_MOST_ROUNDS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A device that is named in a call.

    Args:
        call: ``tf.device(...)``, or the making of a strategy.
        module: Where the name's text is.
        node: The expression that is the name.
        text: The name, with a number for what is counted; None if it is not known.
    """

    call: Call
    module: Module
    node: ast.AST
    text: str | None

    @property
    def place(self) -> Place:
        """Return the line of the call."""
        return self.call.place


def named_devices(program: Program) -> Iterator[Named]:
    """Yield the devices that are named in ``tf.device`` and in strategies."""
    for call in program.all_calls:
        for function, keyword in _TAKING:
            if call.name == function:
                given = call.argument(0, keyword)
                if given is not None:
                    yield from _in(program, call, call.module, given)


def _in(program: Program, call: Call, module: Module, given: ast.AST) -> Iterator[Named]:
    for value in program.origins(module, given):
        node = value.node
        if isinstance(node, ast.List | ast.Tuple) and not value.steps:
            for one in node.elts:
                yield from _in(program, call, value.module, one)
        elif isinstance(node, ast.ListComp | ast.GeneratorExp) and not value.steps:
            yield from _in(program, call, value.module, node.elt)
        else:
            whole = not value.steps
            for text in _texts(program, value.module, node) if whole else (None,):
                yield Named(call=call, module=value.module, node=node, text=text)


def _texts(program: Program, module: Module, node: ast.AST) -> list[str | None]:
    """Return the texts that an expression may be, the last round of a loop included."""
    if isinstance(node, ast.Constant):
        return [node.value if isinstance(node.value, str) else None]
    pattern, holes = _pattern(node)
    if pattern is None:
        return [None]
    if pattern.count(_HOLE) != 1:
        return [None]
    return [
        None if last is None else pattern.replace(_HOLE, str(last))
        for last in (last_round(program, module, holes[0]),)
    ]


def _pattern(node: ast.AST) -> tuple[str | None, list[ast.expr]]:
    """Return a text with a mark for what is put into it, and what that is."""
    if isinstance(node, ast.JoinedStr):
        text, holes = "", list[ast.expr]()
        for one in node.values:
            if isinstance(one, ast.Constant):
                text += str(one.value)
            elif isinstance(one, ast.FormattedValue):
                text += _HOLE
                holes.append(one.value)
        return text, holes
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod | ast.Add):
        return _of_operator(node)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        inner = node.func.value
        if node.func.attr == "format" and isinstance(inner, ast.Constant) and node.args:
            return re.sub(r"\{\d*\}", _HOLE, str(inner.value)), list(node.args)
    return None, []


def _of_operator(node: ast.BinOp) -> tuple[str | None, list[ast.expr]]:
    if not isinstance(node.left, ast.Constant) or not isinstance(node.left.value, str):
        return None, []
    if isinstance(node.op, ast.Mod):
        right = node.right
        holes = list(right.elts) if isinstance(right, ast.Tuple) else [right]
        return re.sub(r"%[ds]", _HOLE, node.left.value), holes
    right = node.right
    if isinstance(right, ast.Call) and getattr(right.func, "id", "") == "str" and right.args:
        right = right.args[0]
    return node.left.value + _HOLE, [right]


def last_round(program: Program, module: Module, node: ast.AST) -> int | None:
    """Return the largest value that a counter of a loop over ``range(constant)`` takes."""
    values = program.origins(module, node)
    if len(values) != 1:
        return None
    value = values[0]
    if isinstance(value.node, ast.Constant) and not value.steps:
        return value.node.value if isinstance(value.node.value, int) else None
    if not isinstance(value.node, ast.Call):
        return None
    called = program.name_of(value.module, value.node.func)
    if called != "range" or value.steps != ("each",) or not value.node.args:
        return None
    end = value.node.args[1] if len(value.node.args) > 1 else value.node.args[0]
    last = number(program, value.module, end)
    rounds = None if last is None or last.power else last.value
    if rounds is None:
        rounds = _largest_of_list(program, value.module, end)
    if rounds is None or not 0 < rounds <= _MOST_ROUNDS:
        return None
    return int(rounds) - 1


def _largest_of_list(program: Program, module: Module, node: ast.expr) -> int | None:
    """Return the largest number that the counter of a loop over ``[1, 2, 4]`` takes."""
    if not isinstance(node, ast.Name):
        return None
    bindings = list(program.bindings(module, node))
    if len(bindings) != 1 or bindings[0][1].steps != ("each",):
        return None
    found = list[int]()
    for value in program.origins(module, node):
        if not isinstance(value.node, ast.Constant) or not isinstance(value.node.value, int):
            return None
        found.append(value.node.value)
    return max(found, default=None)
