"""GPUs on which blocks under ``tf.device`` do the work of a training."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.analysis import Kind, Module, Program
from evener.doctor.queries.pins import Pin, pins_of
from evener.doctor.queries.training import trainings, updates

# Functions called in a block are followed so deep.
_DEEPEST = 3
_WORK = (Kind.MODEL, Kind.LAYER, Kind.TAPE, Kind.VARIABLE, Kind.OPTIMIZER)


def working_pins(program: Program) -> Iterator[Pin]:
    """Yield the blocks under ``tf.device`` that create or train models, or call them.

    A block that only computes with tensors, such as a trial or a step of the input, spreads no
    training over devices.
    """
    trained = {call.node for call in trainings(program)}
    trained |= {update.call.node for update in updates(program)}
    for pin in pins_of(program):
        if _works(program, pin.module, pin.block.body, trained, _DEEPEST):
            yield pin


def _works(
    program: Program,
    module: Module,
    body: list[ast.stmt],
    trained: set[ast.Call],
    depth: int,
) -> bool:
    calls = [
        node for statement in body for node in ast.walk(statement) if isinstance(node, ast.Call)
    ]
    for call in calls:
        if call in trained or _is_work(program, module, call):
            return True
    return depth > 0 and any(
        _works(program, where, target.body, trained, depth - 1)
        for call in calls
        for where, target in program.targets(module, call)
        if isinstance(target, ast.FunctionDef)
    )


def _is_work(program: Program, module: Module, call: ast.Call) -> bool:
    """Return whether a call creates or calls something that is trained."""
    kinds = program.kinds(module, call) | program.kinds(module, call.func)
    return bool(kinds.intersection(_WORK))


def is_repeated(program: Program, pin: Pin) -> bool:
    """Return whether a block may be entered more than once, each time for another device."""
    function = program.context.function(pin.module, pin.block)
    is_in_loop = next(program.context.loops(pin.module, pin.block), None) is not None
    # A parameter may have another value in each call.
    return is_in_loop or function is not None
