"""Which strategies a program makes, over how many devices, and what it does with them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from evener.doctor.program import Call, Kind, Module, Program, Value
from evener.doctor.questions.gpus import makes_logical_devices, visible_gpus
from evener.doctor.rule import Case

# Of these, `tf.distribute.get_strategy()` makes none.
_CLASSES = ("tf.distribute.*Strategy", "evener.Strategy")
_NO_MAKING = ("tf.distribute.experimental_set_strategy", "tf.distribute.Strategy")
_SEVERAL = ("MirroredStrategy", "CentralStorageStrategy")
SCOPES = ("scope",)
RUNS = ("run", "experimental_run_v2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A strategy that is made.

    Args:
        call: The call that makes it.
        name: The class's short name, such as ``"MirroredStrategy"``.
    """

    call: Call
    name: str

    @property
    def devices(self) -> ast.expr | None:
        """Return what it is told about devices, if anything."""
        if self.name == "MirroredStrategy":
            return self.call.argument(0, "devices")
        if self.name == "CentralStorageStrategy":
            return self.call.argument(0, "compute_devices")
        if self.name == "OneDeviceStrategy":
            return self.call.argument(0, "device")
        return self.call.argument(None, "devices")


def strategies(program: Program) -> list[Made]:
    """Return the strategies that a program makes, file by file, from top to bottom."""
    found = []
    for call in program.calls(*_CLASSES):
        if call.name in _NO_MAKING:
            continue
        short = call.name.rpartition(".")[2]
        found.append(Made(call=call, name="evener" if call.name.startswith("evener") else short))
    return found


def sets_one_for_all(program: Program) -> bool:
    """Return whether a strategy is entered for the whole program, not by a ``with`` block."""
    return any(True for _ in program.calls("tf.distribute.experimental_set_strategy"))


def uses(program: Program, *methods: str) -> list[Call]:
    """Return the calls of a strategy's methods, also of what is one by its name only."""
    found = []
    for call in program.all_calls:
        function = call.node.func
        if not isinstance(function, ast.Attribute) or function.attr not in methods:
            continue
        if is_strategy(program, call.module, function.value):
            found.append(call)
    return found


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


def num_replicas(case: Case, made: Made) -> int | None:
    """Return how many replicas a strategy will have on this machine; None if not known."""
    if made.name == "OneDeviceStrategy":
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
    if len(given) != 1:
        return None
    return _length(given[0])


def the_number_of_replicas(case: Case) -> int | None:
    """Return the number of replicas that all strategies of a program have; None if unclear."""
    numbers = {num_replicas(case, made) for made in strategies(case.program)}
    return numbers.pop() if len(numbers) == 1 else None


def _length(value: Value) -> int | None:
    if isinstance(value.node, ast.List | ast.Tuple) and not value.steps:
        if not any(isinstance(one, ast.Starred) for one in value.node.elts):
            return len(value.node.elts) or None
    return None


def scopes_entered(program: Program) -> Iterator[tuple[Module, ast.With | ast.AsyncWith]]:
    """Yield the ``with`` blocks that enter a strategy's scope."""
    for module, node in program.nodes(ast.With, ast.AsyncWith):
        assert isinstance(node, ast.With | ast.AsyncWith)
        if any(program.around.is_scope(module, item.context_expr) for item in node.items):
            yield module, node
