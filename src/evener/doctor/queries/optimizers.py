"""The optimizers of a program: where they are made, and whether they keep slots."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.analysis import Call, Kind, Module, Program, argument

_NO_SLOTS = ("keras.optimizers.SGD",)


def made_by(program: Program, module: Module, node: ast.AST) -> Iterator[tuple[Module, ast.Call]]:
    """Yield the calls that make the optimizer that an expression gives."""
    for where, made in program.made_by(module, node):
        if Kind.OPTIMIZER in program.kinds(where, made):
            yield where, made


def keeps_slots(program: Program, module: Module, made: ast.Call) -> bool:
    """Return whether an optimizer has state of its own for each variable."""
    name = program.name_of(module, made.func)
    if name in ("keras.optimizers.get", "keras.optimizers.deserialize"):
        return str(program.constant(module, made.args[0]) if made.args else "").lower() != "sgd"
    if "LossScaleOptimizer" in name:
        inner = argument(made, 0, "inner_optimizer")
        return inner is not None and any(
            keeps_slots(program, where, call) for where, call in made_by(program, module, inner)
        )
    if name not in _NO_SLOTS:
        return True
    momentum = argument(made, 1, "momentum")
    return momentum is not None and program.constant(module, momentum) not in (0, 0.0)


def builds(program: Program) -> list[Call]:
    """Return the calls of ``build`` of optimizers."""
    return [
        call
        for call, owner in program.calls_of("build")
        if Kind.OPTIMIZER in program.kinds(call.module, owner)
        or "opt" in ast.unparse(owner).lower()
    ]
