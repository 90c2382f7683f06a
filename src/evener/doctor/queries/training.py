"""Lines of a program that train: calls of ``fit``, and updates in custom loops."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass

from evener.analysis import FUNCTIONS, Call, Kind, Location, Module, Program, last_name

_FITS = ("fit", "fit_generator")
_UPDATES = ("apply_gradients", "minimize", "apply")
# Libraries whose models have a `fit` too, and run on no device of TensorFlow.
_OTHERS = ("catboost", "lightgbm", "prophet", "sklearn", "statsmodels", "xgboost")
# Methods that Keras calls in the steps of fit.
_BY_KERAS = ("train_step", "compute_loss_and_updates")


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """A line of a custom loop that changes weights.

    Args:
        call: ``optimizer.apply_gradients(...)`` or the like.
        step: The line that takes a step: the call, in a loop, that leads to it.
        module: Module that contains that line.
    """

    call: Call
    step: ast.AST
    module: Module


@functools.lru_cache(maxsize=4)
def trainings(program: Program) -> tuple[Call, ...]:
    """Return the calls of ``fit`` and ``train_on_batch`` of Keras models."""
    return tuple(
        call for call, _ in program.calls_of(*_FITS, "train_on_batch") if is_of_model(program, call)
    )


@functools.lru_cache(maxsize=4)
def fits(program: Program) -> tuple[Call, ...]:
    """Return the calls of ``fit`` of Keras models."""
    return tuple(call for call in trainings(program) if call.method in _FITS)


def steps_of_keras(program: Program) -> tuple[Call, ...]:
    """Return the calls that train, evaluate or predict by Keras, those that train first."""
    others = (
        call for call, _ in program.calls_of("evaluate", "predict") if is_of_model(program, call)
    )
    return (*trainings(program), *others)


def compiles(program: Program) -> Iterator[Call]:
    """Yield the calls of ``compile`` of Keras models."""
    for call, _ in program.calls_of("compile"):
        if is_of_model(program, call):
            yield call


def is_of_model(program: Program, call: Call) -> bool:
    """Return whether a method is one of a Keras model, by its kind or by its name."""
    if call.owner is None:
        return False
    kinds = program.kinds(call.module, call.owner)
    if Kind.MODEL in kinds:
        return True
    if _is_of_others(program, call.module, call.owner):
        return False
    name = last_name(call.owner).lower()
    is_called_model = "model" in name or name in ("net", "network", "autoencoder", "vae")
    return is_called_model and not kinds - {Kind.LAYER}


def _is_of_others(program: Program, module: Module, model: ast.expr) -> bool:
    """Return whether all possible values of a model are made by other libraries."""
    names = {program.callee(*made) for made in program.made_by(module, model)}
    return bool(names) and all(name.partition(".")[0] in _OTHERS for name in names)


def is_beside_strategy(program: Program, fit: Call) -> bool:
    """Return whether ``fit`` trains a model that is certainly made outside of every scope.

    A model that a function makes is made where the function is called.
    """
    owner = fit.owner
    if not isinstance(owner, ast.Name):
        return False
    if program.context.in_scope(fit.module, fit.node) is not False:
        return False
    bindings = list(program.bindings(fit.module, owner))
    made = [(where, binding.value) for where, binding in bindings if binding.value is not None]
    if not made or len(made) != len(bindings):
        return False
    made += program.made_by(fit.module, owner)
    here = [program.context.in_scope(*site) is False for site in made[: len(bindings)]]
    return all(here) and not any(program.context.in_scope(*site) for site in made)


@functools.lru_cache(maxsize=4)
def update_calls(program: Program) -> tuple[Call, ...]:
    """Return the calls of optimizers that change weights, those in ``train_step`` too."""
    found = []
    for call, owner in program.calls_of(*_UPDATES):
        if _is_in_optimizer(program, call):
            continue
        kinds = program.kinds(call.module, owner)
        # What is known and none of Keras's is one of TensorFlow 1, or no optimizer at all.
        if Kind.OPTIMIZER in kinds or not (call.method == "apply" or kinds):
            found.append(call)
    return tuple(found)


def _is_in_optimizer(program: Program, call: Call) -> bool:
    """Return whether a call is in an optimizer of the program, which wraps another one."""
    return any(
        isinstance(outer, ast.ClassDef)
        and program.kind_of_class(call.module, outer) is Kind.OPTIMIZER
        for outer in call.module.around(call.node)
    )


@functools.lru_cache(maxsize=4)
def updates(program: Program) -> tuple[Update, ...]:
    """Return the updates of custom loops, without those that Keras's ``fit`` makes."""
    found = []
    for call in update_calls(program):
        ways = ways_to(program, call.module, call.node, set())
        own = ((module, step) for module, step in ways if not _is_from_keras(program, module, step))
        way = next(own, None)
        if way is not None:
            found.append(Update(call=call, step=way[1], module=way[0]))
    return tuple(found)


def _is_from_keras(program: Program, module: Module, node: ast.AST) -> bool:
    """Return whether a node runs only in steps of ``fit``, whatever functions lie between."""
    seen: set[ast.AST] = set()
    waiting = [(module, node)]
    is_reached = False
    while waiting:
        module, node = waiting.pop()
        if is_for_keras(program, module, node):
            is_reached = True
            continue
        function = program.context.function(module, node)
        if function is None:
            return False
        if function in seen:
            continue
        seen.add(function)
        uses = [*_uses_of(program, module, function)]
        if not uses:
            return False
        waiting += uses
    return is_reached


def _uses_of(
    program: Program, module: Module, function: ast.AST
) -> Iterator[tuple[Module, ast.AST]]:
    """Yield the calls of a function, and the places that pass it on: ``tf.cond(ok, f, g)``."""
    yield from ((site.module, site.call) for site in program.call_sites(function))
    if isinstance(function, ast.Lambda):
        yield module, module.parents[function]
        return
    name = getattr(function, "name", "")
    for node in module.every(ast.Name, ast.Attribute):
        given = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
        parent = module.parents.get(node)
        if given == name and isinstance(parent, ast.Call) and node in parent.args:
            yield module, parent


def trains(program: Program) -> bool:
    """Return whether a program trains anything."""
    return bool(trainings(program) or updates(program))


def training_lines(program: Program) -> list[Location]:
    """Return the lines that train: calls of ``fit``, then steps of custom loops."""
    lines = [call.location for call in trainings(program)]
    return lines + [update.module.location(update.step) for update in updates(program)]


def first_training(program: Program) -> Location | None:
    """Return the first line that trains: of the script itself, else of another module."""
    return min(
        training_lines(program),
        key=lambda location: (location.path != program.script, location.line),
        default=None,
    )


def is_for_keras(program: Program, module: Module, node: ast.AST) -> bool:
    """Return whether a node is in a method that ``fit`` calls: ``train_step`` of a model class."""
    for outer in module.around(node):
        if isinstance(outer, FUNCTIONS) and getattr(outer, "name", "") in _BY_KERAS:
            parent = module.parents.get(outer)
            if isinstance(parent, ast.ClassDef):
                return program.kind_of_class(module, parent) is Kind.MODEL
    return False


def ways_to(
    program: Program, module: Module, node: ast.AST, seen: set[ast.AST]
) -> Iterator[tuple[Module, ast.AST]]:
    """Climb from a node to the calls that lead to it: each the first in a loop, or at the top.

    Args:
        program: The program.
        module: Module that contains the node.
        node: The node, which may be in a loop itself.
        seen: The functions that were left on the way; they are not entered again.

    Yields:
        The calls, or the node.
    """
    waiting: list[tuple[Module, ast.AST]] = [(module, node)]
    while waiting:
        module, node = waiting.pop()
        if next(program.context.loops(module, node), None) is None:
            function = program.context.function(module, node)
            if function is not None and function not in seen:
                seen.add(function)
                sites = program.call_sites(function)
                waiting += [(site.module, site.call) for site in reversed(sites)]
                if sites:
                    continue
        yield module, node
