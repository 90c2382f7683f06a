"""The ``with tf.device(...)`` blocks of a program, and the devices they name."""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import dataclass

from evener.analysis import Location, Module, Program
from evener.doctor.queries.source_text import shown

_DEVICE = re.compile(r"(gpu|cpu|tpu|xla_gpu)(?::(\d+))?$", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pin:
    """A ``with`` block that enters ``tf.device``.

    Args:
        module: Module that contains it.
        block: The ``with`` statement.
        call: ``tf.device(...)``.
        device: Name of the device, such as ``"GPU:1"``; ``""`` if it is not known.
    """

    module: Module
    block: ast.With
    call: ast.Call
    device: str

    @property
    def location(self) -> Location:
        """Return the line of ``tf.device``."""
        return self.module.location(self.call)

    @property
    def key(self) -> str:
        """Return the name of the device, or the expression if the name is not known."""
        if self.device:
            return self.device
        return "GPU:0" if self.named.endswith("[0]") else self.named

    @property
    def named(self) -> str:
        """Return the device as it is written in the program."""
        return shown(self.call.args[0]) if self.call.args else "?"


@functools.lru_cache(maxsize=4)
def pins_of(program: Program) -> tuple[Pin, ...]:
    """Return the blocks under `tf.device`, file by file, from top to bottom."""
    found: list[Pin] = []
    for module, node in program.nodes(ast.With):
        if not isinstance(node, ast.With):
            continue
        for item in node.items:
            for value in program.origins(module, item.context_expr):
                made = value.node
                if isinstance(made, ast.Call) and is_device(program, value.module, made):
                    found.append(
                        Pin(
                            module=module,
                            block=node,
                            call=item.context_expr
                            if isinstance(item.context_expr, ast.Call)
                            else made,
                            device=device_named(program, value.module, made),
                        )
                    )
    return tuple(sorted(found, key=lambda pin: (pin.module.path, pin.block.lineno)))


def is_device(program: Program, module: Module, node: ast.AST) -> bool:
    """Return whether an expression is a call of `tf.device`."""
    return isinstance(node, ast.Call) and program.name_of(module, node.func) in (
        "tf.device",
        "keras.device",
    )


def device_named(program: Program, module: Module, call: ast.Call) -> str:
    """Return the device that ``tf.device(...)`` names, such as ``"GPU:1"``; else ``""``."""
    named = program.constant(module, call.args[0]) if call.args else None
    match = _DEVICE.search(str(named)) if isinstance(named, str) else None
    if match is None:
        return ""
    return f"{match[1].upper()}:{match[2] or 0}"
