"""Where a program trains: ``fit`` and loops of its own."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from evener.doctor.program import FUNCTIONS, Call, Function, Kind, Module, Program

_UPDATES = ("apply_gradients", "minimize", "apply")
_BY_KERAS = ("train_step", "compute_loss_and_updates")


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """A line of a loop of the program's own that changes weights.

    Args:
        call: ``optimizer.apply_gradients(...)`` or the like.
        step: The line that takes a step: the call, in a loop, that leads to it.
        module: Where that line stands.
    """

    call: Call
    step: ast.AST
    module: Module


def fits(program: Program) -> list[Call]:
    """Return the calls of ``fit`` and ``train_on_batch`` of Keras models."""
    found = []
    for call in program.all_calls:
        function = call.node.func
        if not isinstance(function, ast.Attribute):
            continue
        if function.attr not in ("fit", "fit_generator", "train_on_batch"):
            continue
        kinds = program.kinds(call.module, function.value)
        if Kind.MODEL in kinds or (not kinds - {Kind.LAYER} and _is_called_model(function.value)):
            found.append(call)
    return found


def updates(program: Program) -> list[Update]:
    """Return the updates of loops of the program's own, not those that Keras's ``fit`` takes."""
    found = []
    for call in program.all_calls:
        function = call.node.func
        if not isinstance(function, ast.Attribute) or function.attr not in _UPDATES:
            continue
        kinds = program.kinds(call.module, function.value)
        if Kind.OPTIMIZER not in kinds and (function.attr == "apply" or kinds):
            continue
        if not is_for_keras(program, call.module, call.node):
            module, step = _step_to(program, call.module, call.node)
            found.append(Update(call=call, step=step, module=module))
    return found


def is_for_keras(program: Program, module: Module, node: ast.AST) -> bool:
    """Return whether a node is in what ``fit`` calls: ``train_step`` of a model's class."""
    for outer in module.around(node):
        if isinstance(outer, FUNCTIONS) and getattr(outer, "name", "") in _BY_KERAS:
            parent = module.parents.get(outer)
            if isinstance(parent, ast.ClassDef):
                return program.kind_of_class(module, parent) is Kind.MODEL
    return False


def _step_to(program: Program, module: Module, node: ast.AST) -> tuple[Module, ast.AST]:
    """Climb from an update to the call that a loop makes, as far as there is one way."""
    seen = set[ast.AST]()
    while next(program.around.loops(module, node), None) is None:
        function: Function | None = program.around.function(module, node)
        sites = program.call_sites(function) if function is not None else []
        if function is None or not sites or function in seen:
            break
        seen.add(function)
        module, node = sites[0].module, sites[0].call
    return module, node


def _is_called_model(node: ast.expr) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return "model" in name.lower() or name.lower() in ("net", "network", "autoencoder", "vae")
