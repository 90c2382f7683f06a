"""Gradients that a program computes, and their losses."""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass

from evener.analysis import Call, Kind, Module, Program
from evener.doctor.queries.strategies import spreads
from evener.doctor.queries.training import is_for_keras


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """A call that computes gradients.

    Args:
        call: ``tape.gradient(...)`` or ``optimizer.minimize(...)``.
        loss: Expression that is differentiated.
        sources: Variables of the gradient; None if none are given.
        in_replicas: Whether it runs in the replicas of a strategy.
    """

    call: Call
    loss: ast.expr
    sources: ast.expr | None
    in_replicas: bool


@functools.lru_cache(maxsize=4)
def gradients_of(program: Program) -> tuple[Gradient, ...]:
    """Return all gradients that a program takes, from top to bottom."""
    found: list[Gradient] = []
    for call in program.all_calls:
        function = call.node.func
        if not isinstance(function, ast.Attribute):
            continue
        if function.attr == "gradient":
            loss, sources = call.argument(0, "target"), call.argument(1, "sources")
            if Kind.TAPE not in program.kinds(call.module, function.value) and not _is_tape(call):
                continue
        elif function.attr == "minimize":
            loss, sources = call.argument(0, "loss"), call.argument(1, "var_list")
        else:
            continue
        if loss is not None:
            found.append(
                Gradient(
                    call=call,
                    loss=loss,
                    sources=sources,
                    in_replicas=_in_replicas(program, call.module, call.node),
                )
            )
    return tuple(found)


def _is_tape(call: Call) -> bool:
    return call.owner is not None and "tape" in ast.unparse(call.owner).lower()


def _in_replicas(program: Program, module: Module, node: ast.AST) -> bool:
    """Return whether a node runs in ``strategy.run``, called by the program or by Keras."""
    if program.context.in_replica(module, node) is not False:
        return True
    return is_for_keras(program, module, node) and spreads(program)
