"""Strategies that a program makes, their devices, and their uses."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass

from evener.analysis import Call, Kind, Module, Program
from evener.doctor.queries.gpus import makes_logical_devices, visible_gpus
from evener.doctor.rule import Case

SCOPES = ("scope",)
RUNS = ("run",)
# The base class.
_BASE = "tf.distribute.Strategy"
# Strategies with one replica per device.
_SEVERAL = ("MirroredStrategy", "CentralStorageStrategy")
_ALONE = "OneDeviceStrategy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A strategy that is made.

    Args:
        call: The call that makes it.
        name: The class's short name, such as ``"MirroredStrategy"``; ``"evener"`` for its own.
    """

    call: Call
    name: str

    @property
    def is_evener(self) -> bool:
        """Return whether it is evener's own."""
        return self.name == "evener"

    @property
    def devices(self) -> ast.expr | None:
        """Return the argument that names its devices, if there is one."""
        if self.name == "MirroredStrategy":
            return self.call.argument(0, "devices")
        if self.name == "CentralStorageStrategy":
            return self.call.argument(0, "compute_devices")
        if self.name == _ALONE:
            return self.call.argument(0, "device")
        return self.call.argument(None, "devices")


@functools.lru_cache(maxsize=4)
def strategies(program: Program) -> tuple[Made, ...]:
    """Return the strategies that a program makes, file by file, from top to bottom."""
    found = []
    for call in program.calls("tf.distribute.*Strategy", "evener.Strategy"):
        if call.name != _BASE:
            own = call.name.startswith("evener")
            found.append(Made(call=call, name="evener" if own else call.name.rpartition(".")[2]))
    return tuple(found)


def sets_one_for_all(program: Program) -> bool:
    """Return whether a strategy is entered for the whole program, not by a ``with`` block."""
    return any(True for _ in program.calls("tf.distribute.experimental_set_strategy"))


def uses(program: Program, *methods: str) -> list[Call]:
    """Return the calls of a strategy's methods, also of what is one by its name only."""
    return [
        call
        for call, owner in program.calls_of(*methods)
        if is_strategy(program, call.module, owner)
    ]


def is_strategy(program: Program, module: Module, node: ast.expr) -> bool:
    """Return whether an expression is a strategy, by its kind or by its name."""
    if Kind.STRATEGY in program.kinds(module, node):
        return True
    return "strategy" in ast.unparse(node).lower() and not program.name_of(module, node)


def runs(program: Program) -> list[Call]:
    """Return the calls of ``strategy.run``."""
    return uses(program, *RUNS)


def scopes(program: Program) -> list[Call]:
    """Return the calls of ``strategy.scope``."""
    return uses(program, *SCOPES)


def scopes_entered(program: Program) -> Iterator[tuple[Module, ast.With | ast.AsyncWith]]:
    """Yield the ``with`` blocks that enter a strategy's scope."""
    for module, node in program.nodes(ast.With, ast.AsyncWith):
        if any(program.context.is_scope(module, item.context_expr) for item in node.items):
            yield module, node


@functools.lru_cache(maxsize=4)
def spreads(program: Program) -> bool:
    """Return whether the program has a strategy that may have several replicas.

    A strategy that is only taken as a parameter, and made nowhere, may have several.
    """
    made = strategies(program)
    if made:
        return any(strategy.name != _ALONE for strategy in made)
    return bool(uses(program, *SCOPES, *RUNS))


def is_only_evener(program: Program) -> bool:
    """Return whether all strategies of the program are evener's."""
    made = strategies(program)
    if not made:
        # It comes from elsewhere: most likely from the library that the program imports.
        return any(
            line.startswith(("import evener", "from evener"))
            for module in program.modules
            for line in module.lines
        )
    return all(strategy.is_evener for strategy in made)


def has_workers(program: Program) -> bool:
    """Return whether the program trains by several workers that are all alike."""
    return any(strategy.name == "MultiWorkerMirroredStrategy" for strategy in strategies(program))


def num_replicas(case: Case, made: Made) -> int | None:
    """Return how many replicas a strategy will have on this machine; None if not known."""
    if made.name == _ALONE:
        return 1
    if made.name not in _SEVERAL:
        return None
    devices = made.devices
    if devices is None:
        if makes_logical_devices(case.program):
            return None
        visible = visible_gpus(case)
        return None if visible is None else max(1, visible)
    given = case.program.origins(made.call.module, devices)
    if len(given) != 1 or given[0].steps:
        return None
    node = given[0].node
    if isinstance(node, ast.List | ast.Tuple):
        if not any(isinstance(element, ast.Starred) for element in node.elts):
            return len(node.elts) or None
    return None


def the_number_of_replicas(case: Case) -> int | None:
    """Return the number of replicas that all strategies of a program have; None if unclear."""
    numbers = {num_replicas(case, made) for made in strategies(case.program)}
    return numbers.pop() if len(numbers) == 1 else None


def has_one_replica(program: Program) -> bool:
    """Return whether all strategies of the program are evener's.

    Such a strategy has one replica: what is wrong in several replicas is right there.
    """
    made = strategies(program)
    return bool(made) and all(strategy.is_evener for strategy in made)
