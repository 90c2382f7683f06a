"""The program's own losses that Keras models are compiled with."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass

from evener.analysis import FUNCTIONS, Call, Function, Module, Program
from evener.doctor.queries.strategies import spreads
from evener.doctor.queries.training import compiles


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledLoss:
    """A loss of the program's own that is given to ``compile``.

    Args:
        name: Name of the loss.
        call: ``compile``.
        module: Module that contains the function.
        function: The function of true and predicted values.
        in_strategy: Whether the model trains under a strategy.
    """

    name: str
    call: Call
    module: Module
    function: Function
    in_strategy: bool


@functools.lru_cache(maxsize=4)
def losses_compiled(program: Program) -> tuple[CompiledLoss, ...]:
    """Return the program's own losses that models are compiled with."""
    return tuple(
        CompiledLoss(
            name=name,
            call=call,
            module=where,
            function=function,
            in_strategy=_is_under_strategy(program, call),
        )
        for call in compiles(program)
        if (loss := call.argument(1, "loss")) is not None
        for where, function, name in _functions(program, call.module, loss)
    )


def _functions(
    program: Program, module: Module, node: ast.expr
) -> Iterator[tuple[Module, Function, str]]:
    for value in program.origins(module, node):
        if value.steps:
            continue
        if isinstance(value.node, ast.List | ast.Tuple):
            for element in value.node.elts:
                yield from _functions(program, value.module, element)
        elif isinstance(value.node, FUNCTIONS):
            yield value.module, value.node, getattr(value.node, "name", "a lambda")
        elif isinstance(value.node, ast.Call):
            for where, target in program.targets(value.module, value.node):
                if isinstance(target, ast.ClassDef):
                    for source, method, _ in program.classes.attributes(where, target, "call"):
                        if isinstance(method, FUNCTIONS):
                            yield source, method, target.name


def _is_under_strategy(program: Program, call: Call) -> bool:
    if not spreads(program) or call.owner is None:
        return False
    made = program.made_by(call.module, call.owner)
    calls = [(call.module, call.node), *made]
    return any(program.context.in_scope(*found) is not False for found in calls)
