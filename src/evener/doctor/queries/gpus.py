"""Number of GPUs that a program sees, and lines that concern GPUs."""

from __future__ import annotations

import ast
import re

from evener.analysis import Call, Module, Program
from evener.doctor.queries.branches import conditions
from evener.doctor.queries.device_initialization import is_too_late
from evener.doctor.queries.environment import settings
from evener.doctor.rule import Case
from evener.doctor.surroundings import HIDING

_LISTS = (
    "tf.config.list_physical_devices",
    "tf.config.list_logical_devices",
    "tf.config.get_visible_devices",
)
_GPU_NAME = re.compile(r"gpu", re.IGNORECASE)


def hides_all(value: str) -> bool:
    """Return whether a value of ``CUDA_VISIBLE_DEVICES`` leaves no GPU.

    CUDA stops at the first entry that is not a GPU.

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
    for part in value.split(","):
        text = part.strip()
        if text.isdigit() and int(text) < num_gpus:
            count += 1
        elif text.startswith(("GPU-", "MIG-")):
            count += 1
        else:
            break
    return min(count, num_gpus)


def visible_gpus(case: Case) -> int | None:
    """Return how many GPUs the program will see; None if that is not known."""
    num_gpus = len(case.surroundings.gpus)
    set_here = [setting for setting in settings(case.program) if setting.name == HIDING]
    if (
        any(setting.value is None for setting in set_here)
        or len({setting.value for setting in set_here}) > 1
    ):
        return None
    value = set_here[0].value if set_here else case.surroundings.environment.get(HIDING)
    num_shown = num_gpus if value is None else shown(value, num_gpus)
    for call in choices_of_gpus(case.program):
        chosen = chosen_by(case.program, call, num_shown)
        if chosen is None:
            return None
        num_shown = chosen
    return num_shown


def choices_of_gpus(program: Program) -> list[Call]:
    """Return the calls that choose which GPUs the program sees.

    Those are left out that never run, or too late: they raise, and choose nothing.
    """
    found = []
    for call in program.calls("tf.config.set_visible_devices"):
        kind = call.argument(1, "device_type")
        named = program.constant(call.module, kind)
        is_other = isinstance(named, str) and named.upper() != "GPU"
        runs = program.order.of(call.node) is not None
        if not is_other and runs and not is_too_late(program, call.node):
            found.append(call)
    return found


def chosen_by(program: Program, call: Call, num_gpus: int) -> int | None:
    """Return how many of some GPUs ``set_visible_devices`` leaves; None if that is not known."""
    kind = program.constant(call.module, call.argument(1, "device_type"))
    devices = call.argument(0, "devices")
    if not isinstance(kind, str) or kind.upper() != "GPU" or devices is None:
        return None
    tests = conditions(program, call.module, call.node)
    if not all(asks_for_gpus(program, test, call.module) for test in tests):
        return None
    return _length(program, call.module, devices, num_gpus)


def _length(program: Program, module: Module, node: ast.expr, num_gpus: int) -> int | None:
    """Return how many GPUs an expression gives, such as ``gpus``, ``gpus[0]`` or ``gpus[:2]``."""
    if isinstance(node, ast.Name):
        bindings = list(program.bindings(module, node))
        if len(bindings) != 1 or bindings[0][1].value is None or bindings[0][1].steps:
            return None
        module, node = bindings[0][0], bindings[0][1].value
    if isinstance(node, ast.List | ast.Tuple):
        # Each element is one GPU.
        is_plain = all(_length(program, module, element, num_gpus) == 1 for element in node.elts)
        return len(node.elts) if is_plain else None
    if not lists_gpus(program, module, node):
        return None
    if not isinstance(node, ast.Subscript):
        return num_gpus if isinstance(node, ast.Call) else None
    if not isinstance(node.slice, ast.Slice):
        is_negative = isinstance(node.slice, ast.UnaryOp)
        return 1 if is_negative or isinstance(program.constant(module, node.slice), int) else None
    bounds = [program.constant(module, bound) for bound in (node.slice.lower, node.slice.upper)]
    known = [bound if isinstance(bound, int) else None for bound in bounds]
    return len(range(num_gpus)[slice(*known)])


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
        for value in program.origins(module, node) if isinstance(node, ast.Name) else ():
            # last = len(gpus) - 1
            parts = ast.walk(value.node) if isinstance(value.node, ast.BinOp) else ()
            if any(counts_gpus(program, value.module, part) for part in parts):
                return True
    return False


def means_gpus(program: Program) -> bool:
    """Return whether a program names GPUs anywhere."""
    for call in program.calls("tf.device", "tf.distribute.OneDeviceStrategy"):
        given = call.argument(0)
        if given is not None and _GPU_NAME.search(ast.unparse(given)):
            return True
    names = ("tf.distribute.*MirroredStrategy", "tf.config.set_memory_growth", "evener.pin")
    return any(True for _ in program.calls(*names))


def makes_logical_devices(program: Program) -> bool:
    """Return whether a program cuts hardware into logical devices, and not too late."""
    names = ("tf.config.set_logical_device_configuration",)
    calls = program.calls(*names, "tf.config.set_virtual_device_configuration")
    return any(not is_too_late(program, call.node) for call in calls)
