"""How many GPUs a program will see, and which lines mean GPUs."""

from __future__ import annotations

import ast
import re

from evener.doctor.program import Module, Program
from evener.doctor.questions.environment import settings
from evener.doctor.rule import Case

HIDING = "CUDA_VISIBLE_DEVICES"
_LISTS = (
    "tf.config.list_physical_devices",
    "tf.config.list_logical_devices",
    "tf.config.get_visible_devices",
)
_GPU_NAME = re.compile(r"gpu", re.IGNORECASE)


def hides_all(value: str) -> bool:
    """Return whether a value of ``CUDA_VISIBLE_DEVICES`` leaves no GPU.

    CUDA goes through the list and stops at the first thing that is no GPU.

    >>> hides_all(""), hides_all("-1"), hides_all("gpu:0"), hides_all("0,1"), hides_all("GPU-5a")
    (True, True, True, False, False)
    """
    first = value.split(",")[0].strip()
    return not (first.isdigit() or first.startswith(("GPU-", "MIG-")))


def shown(value: str, num_gpus: int) -> int:
    """Return how many GPUs a value of ``CUDA_VISIBLE_DEVICES`` shows.

    >>> shown("0", 2), shown("0,1,7", 4), shown("-1", 2), shown("0,-1,1", 2)
    (1, 2, 0, 1)
    """
    count = 0
    for one in value.split(","):
        text = one.strip()
        if text.isdigit() and int(text) < num_gpus:
            count += 1
        elif text.startswith(("GPU-", "MIG-")):
            count += 1
        else:
            break
    return min(count, num_gpus)


def visible_gpus(case: Case) -> int | None:
    """Return how many GPUs the program will see; None if it says so itself, unreadably."""
    num_gpus = len(case.surroundings.gpus)
    set_here = [one for one in settings(case.program) if one.name == HIDING]
    if any(one.value is None for one in set_here) or len(set_here) > 1:
        return None
    value = set_here[0].value if set_here else case.surroundings.environment.get(HIDING)
    if _chooses_visible(case.program):
        return None
    return num_gpus if value is None else shown(value, num_gpus)


def _chooses_visible(program: Program) -> bool:
    return any(True for _ in program.calls("tf.config.set_visible_devices"))


def lists_gpus(program: Program, module: Module, node: ast.AST) -> bool:
    """Return whether an expression is a list of the machine's devices, or a part of it."""
    for value in program.origins(module, node):
        if isinstance(value.node, ast.Call):
            if program.name_of(value.module, value.node.func) in _LISTS:
                return True
    return False


def counts_gpus(program: Program, module: Module, node: ast.AST) -> bool:
    """Return whether an expression is ``len(gpus)`` or a strategy's number of replicas."""
    for value in program.origins(module, node):
        if isinstance(value.node, ast.Attribute) and value.node.attr == "num_replicas_in_sync":
            return True
        if isinstance(value.node, ast.Call) and value.node.args:
            if program.name_of(value.module, value.node.func) == "len":
                if lists_gpus(program, value.module, value.node.args[0]):
                    return True
    return False


def asks_for_gpus(program: Program, test: ast.expr, module: Module) -> bool:
    """Return whether a condition asks which GPUs there are."""
    for node in ast.walk(test):
        if isinstance(node, ast.Name | ast.Call | ast.Attribute):
            if lists_gpus(program, module, node) or counts_gpus(program, module, node):
                return True
            name = program.name_of(module, node.func) if isinstance(node, ast.Call) else ""
            if name.startswith("tf.test."):
                return True
        if isinstance(node, ast.Name) and node is not test:
            for value in program.origins(module, node):
                # last = len(gpus) - 1
                if isinstance(value.node, ast.BinOp):
                    if asks_for_gpus(program, value.node, value.module):
                        return True
    return False


def means_gpus(program: Program) -> bool:
    """Return whether a program says anywhere that it wants GPUs."""
    for call in program.calls("tf.device", "tf.distribute.OneDeviceStrategy"):
        given = call.argument(0)
        if given is not None and _GPU_NAME.search(ast.unparse(given)):
            return True
    names = ("tf.distribute.*MirroredStrategy", "tf.config.set_memory_growth", "evener.pin")
    return any(True for _ in program.calls(*names))


def makes_logical_devices(program: Program) -> bool:
    """Return whether a program cuts hardware into logical devices."""
    names = ("tf.config.set_logical_device_configuration",)
    return any(True for _ in program.calls(*names, "tf.config.set_virtual_device_configuration"))
