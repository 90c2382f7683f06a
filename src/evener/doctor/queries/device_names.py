"""The names of devices that a program passes to TensorFlow."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from evener.analysis import Call, Module, Program

_ARGUMENTS = {
    "tf.device": "device_name",
    "keras.device": "device_name",
    "tf.distribute.OneDeviceStrategy": "device",
    "tf.distribute.MirroredStrategy": "devices",
    "tf.distribute.CentralStorageStrategy": "compute_devices",
}
# Where a text is filled in, by % or by format.
_FIELD = re.compile(r"%[ds]|\{\d*\}")


def named_devices(program: Program) -> Iterator[tuple[Call, str]]:
    """Yield the calls that name devices, with each name that is written as a constant."""
    for call in program.calls(*_ARGUMENTS):
        given = call.argument(0, _ARGUMENTS[call.name])
        if given is not None:
            yield from ((call, name) for name in _names(program, call.module, given))


def _names(program: Program, module: Module, node: ast.AST) -> Iterator[str]:
    for value in program.origins(module, node):
        origin = value.node
        if isinstance(origin, ast.List | ast.Tuple) and not value.steps:
            for element in origin.elts:
                yield from _names(program, value.module, element)
        elif isinstance(origin, ast.Constant) and isinstance(origin.value, str) and not value.steps:
            yield origin.value
        elif isinstance(origin, ast.ListComp) and not value.steps:
            yield from _last_name(program, value.module, origin.elt)
        else:
            yield from _last_name(program, value.module, origin)


def _last_name(program: Program, module: Module, node: ast.AST) -> Iterator[str]:
    """Yield the last of the names ``"gpu:" + str(i)`` for a counter of ``range(number)``."""
    parts = list(ast.walk(node))
    texts = [
        part.value
        for part in parts
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    ]
    for part in parts if texts and not isinstance(node, ast.Constant) else ():
        for value in program.origins(module, part) if isinstance(part, ast.Name) else ():
            if value.steps != ("each",) or not isinstance(value.node, ast.Call):
                continue
            ends = [
                end.node.value if isinstance(end.node, ast.Constant) else None
                for given in value.node.args[-1:]
                for end in program.origins(value.module, given)
            ]
            numbers = [end for end in ends if isinstance(end, int)]
            is_range = program.name_of(value.module, value.node.func) == "range"
            if is_range and numbers and len(numbers) == len(ends):
                yield f"{_FIELD.split(texts[0])[0]}{max(numbers) - 1}"
