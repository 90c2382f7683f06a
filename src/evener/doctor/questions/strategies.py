"""Which strategies a program makes, and over how many devices they spread."""

from __future__ import annotations

import ast
import functools

from evener.doctor.program import Call, Kind, Module, Program
from evener.doctor.rule import Case

# They are of one replica wherever they run.
_ALONE = ("tf.distribute.OneDeviceStrategy", "tf.distribute.CentralStorageStrategy")
_ASKED = ("tf.distribute.get_strategy", "tf.distribute.Strategy")
EVENER = "evener.Strategy"
_WORKERS = "tf.distribute.MultiWorkerMirroredStrategy"


@functools.lru_cache(maxsize=4)
def strategies_made(program: Program) -> tuple[Call, ...]:
    """Return the calls that make a strategy."""
    return tuple(
        call
        for call in program.calls("tf.distribute.*Strategy", EVENER)
        if call.name not in _ASKED and call.name.count(".") <= 2
    )


@functools.lru_cache(maxsize=4)
def spreads(program: Program) -> bool:
    """Return whether the program has a strategy that may have several replicas.

    A strategy that is only taken as a parameter, and made nowhere, may have several.
    """
    made = strategies_made(program)
    if made:
        return any(call.name not in _ALONE for call in made)
    return any(
        Kind.STRATEGY in program.kinds(call.module, call.node.func.value)
        for call in program.all_calls
        if isinstance(call.node.func, ast.Attribute) and call.node.func.attr in ("scope", "run")
    )


def is_only_evener(program: Program) -> bool:
    """Return whether all strategies of the program are evener's."""
    made = strategies_made(program)
    if not made:
        # It comes from elsewhere: most likely from the library that the program imports.
        return any(
            line.startswith(("import evener", "from evener"))
            for module in program.modules
            for line in module.lines
        )
    return all(call.name == EVENER for call in made)


def has_workers(program: Program) -> bool:
    """Return whether the program trains by several workers that are all alike."""
    return any(call.name == _WORKERS for call in strategies_made(program))


def num_replicas(case: Case) -> int | None:
    """Return over how many devices of this machine the program spreads; None if not known."""
    for call in strategies_made(case.program):
        devices = call.argument(0, "devices")
        if devices is not None and call.name not in _ALONE:
            for value in case.program.origins(call.module, devices):
                if isinstance(value.node, ast.List | ast.Tuple) and not value.steps:
                    return len(value.node.elts)
            return None
    return len(case.surroundings.gpus) or None


def counts_replicas(program: Program, module: Module, node: ast.AST, depth: int = 0) -> bool:
    """Return whether an expression is a number of replicas or devices, or made from one."""
    for one in ast.walk(node):
        name = one.attr if isinstance(one, ast.Attribute) else getattr(one, "id", "")
        if any(part in name.lower() for part in ("replica", "num_gpu", "n_gpu", "world_size")):
            return True
        if name.lower() in ("num_devices", "n_devices", "ngpus", "num_workers", "gpus"):
            return True
    if depth > 3:
        return False
    return any(
        counts_replicas(program, value.module, value.node, depth + 1)
        for one in ast.walk(node)
        if isinstance(one, ast.Name | ast.Attribute)
        for value in program.origins(module, one)
        if value.node is not one and isinstance(value.node, ast.expr)
    )


def is_global_batch(program: Program, module: Module, node: ast.AST) -> bool:
    """Return whether an expression is the size of a batch over all replicas."""
    text = ast.unparse(node).lower()
    if "global" in text and "batch" in text:
        return True
    return any(
        isinstance(value.node, ast.BinOp)
        and isinstance(value.node.op, ast.Mult)
        and counts_replicas(program, value.module, value.node)
        for value in program.origins(module, node)
    )
