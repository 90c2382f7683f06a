"""The losses that Keras models are compiled with, and whether a strategy spreads them."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass

from evener.doctor.program import FUNCTIONS, Call, Function, Module, Place, Program
from evener.doctor.questions.scalars import scalar_returns
from evener.doctor.questions.strategies import spreads
from evener.doctor.questions.trainings import is_of_model

Line = tuple[Module, ast.AST, ast.AST]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledLoss:
    """A loss of the program's own that is given to ``compile``.

    Args:
        name: What it is called.
        place: The line of ``compile``.
        module: Where the function stands.
        function: The function of true and predicted values; None for a loss of Keras.
        scalar_lines: See `scalar_returns`.
        in_strategy: Whether the model trains under a strategy.
    """

    name: str
    place: Place
    module: Module
    function: Function | None
    scalar_lines: tuple[Line, ...]
    in_strategy: bool


def compiles(program: Program) -> Iterator[Call]:
    """Yield the calls of ``compile`` of Keras models."""
    for call in program.all_calls:
        if call.method == "compile" and is_of_model(program, call):
            yield call


@functools.lru_cache(maxsize=4)
def losses_compiled(program: Program) -> tuple[CompiledLoss, ...]:
    """Return the program's own losses that models are compiled with."""
    found: list[CompiledLoss] = []
    for call in compiles(program):
        loss = call.argument(1, "loss")
        if loss is None:
            continue
        under = _is_under_strategy(program, call)
        for module, node in _single(program, call.module, loss):
            for where, function, name in _own(program, module, node):
                lines = tuple(scalar_returns(program, where, function))
                found.append(
                    CompiledLoss(
                        name=name,
                        place=call.place,
                        module=where,
                        function=function,
                        scalar_lines=lines,
                        in_strategy=under,
                    )
                )
    return tuple(found)


def _single(program: Program, module: Module, node: ast.expr) -> Iterator[tuple[Module, ast.expr]]:
    """Yield the losses of a list or a dictionary one by one."""
    for value in program.origins(module, node):
        if isinstance(value.node, ast.List | ast.Tuple):
            yield from ((value.module, one) for one in value.node.elts)
        elif isinstance(value.node, ast.Dict):
            yield from ((value.module, one) for one in value.node.values)
        else:
            yield module, node
            return


def _own(
    program: Program, module: Module, node: ast.expr
) -> Iterator[tuple[Module, Function, str]]:
    for value in program.origins(module, node):
        if value.steps:
            continue
        if isinstance(value.node, FUNCTIONS):
            yield value.module, value.node, getattr(value.node, "name", "a lambda")
        elif isinstance(value.node, ast.Call):
            for where, target in program.targets(value.module, value.node):
                if not isinstance(target, ast.ClassDef):
                    continue
                for place, method, _ in program.classes.attributes(where, target, "call"):
                    if isinstance(method, FUNCTIONS):
                        yield place, method, target.name


def _is_under_strategy(program: Program, call: Call) -> bool:
    if not spreads(program):
        return False
    if program.around.in_scope(call.module, call.node) is not False:
        return True
    owner = call.owner
    if owner is None:
        return False
    return any(
        program.around.in_scope(value.module, value.node) is not False
        for value in program.origins(call.module, owner)
    )
