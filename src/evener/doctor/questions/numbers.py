"""What a number of the program is, in terms of the number of replicas."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from evener.doctor.program import Module, Program, argument, last_name
from evener.doctor.questions.gpus import counts_gpus

_DEEPEST = 12
_DEEPEST_COUNT = 3
_PER_REPLICA = re.compile(
    r"(per|each)_?(replica|gpu|device|worker|tower|card)|(local|replica)_batch|"
    r"micro_?batch|batch_(size_)?(per|each)",
    re.IGNORECASE,
)
_COUNTS = re.compile(
    r"replica|num_gpu|n_gpu|world_size|^((num|n)_devices|ngpus|num_workers|gpus)$", re.IGNORECASE
)
_GLOBAL = re.compile(r"(global|total|overall|effective)_?batch", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A number ``value * R ** power``, with R the number of replicas.

    Args:
        value: The factor.
        power: How often the number of replicas is in it.
    """

    value: float
    power: int = 0

    def at(self, num_replicas: int | None) -> float | None:
        """Return it for a number of replicas."""
        if not self.power:
            return self.value
        return None if num_replicas is None else self.value * num_replicas**self.power

    def whole_at(self, num_replicas: int | None) -> int | None:
        """Return it for a number of replicas, if it is a whole number above 0."""
        value = self.at(num_replicas)
        return int(value) if value is not None and value >= 1 and value == int(value) else None


def number(program: Program, module: Module, node: ast.AST | None, depth: int = 0) -> Number | None:
    """Return what number an expression is, or None if that cannot be told.

    Defaults of ``argparse`` count as the numbers.
    """
    if node is None or depth > _DEEPEST:
        return None
    if isinstance(node, ast.BinOp):
        return _of_arithmetic(program, module, node, depth)
    if counts_gpus(program, module, node):
        return Number(value=1.0, power=1)
    values = program.origins(module, node)
    found = {_of_value(program, one.module, one.node, one.steps, depth) for one in values}
    return found.pop() if len(found) == 1 else None


def names_in(program: Program, module: Module, node: ast.AST | None) -> list[str]:
    """Return the names by which a number is known, where it is used and where it comes from."""
    if node is None:
        return []
    names = [last_name(one) for one in ast.walk(node) if isinstance(one, ast.Name | ast.Attribute)]
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        names.append(str(node.slice.value))
    return [one for one in names if one]


def is_said_per_replica(name: str) -> bool:
    """Return whether a name says that a number is for each replica.

    >>> is_said_per_replica("BATCH_SIZE_PER_REPLICA"), is_said_per_replica("batch_size")
    (True, False)
    """
    return _PER_REPLICA.search(name) is not None


def is_said_global(name: str) -> bool:
    """Return whether a name says that a number is for all replicas together."""
    return _GLOBAL.search(name) is not None


def counts_replicas(program: Program, module: Module, node: ast.AST, depth: int = 0) -> bool:
    """Return whether an expression is a number of replicas or devices, or made from one.

    By what it is, or by a name that says so.
    """
    parts = [one for one in ast.walk(node) if isinstance(one, ast.Name | ast.Attribute)]
    if any(_COUNTS.search(last_name(one)) for one in parts):
        return True
    if depth > _DEEPEST_COUNT:
        return False
    return any(
        counts_gpus(program, value.module, value.node)
        or counts_replicas(program, value.module, value.node, depth + 1)
        for one in parts
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


def _of_value(
    program: Program, module: Module, node: ast.AST, steps: tuple[str | int, ...], depth: int
) -> Number | None:
    if steps:
        return None
    if isinstance(node, ast.Constant):
        if isinstance(node.value, int | float) and not isinstance(node.value, bool):
            return Number(value=float(node.value))
        return None
    if isinstance(node, ast.BinOp):
        return _of_arithmetic(program, module, node, depth + 1)
    if isinstance(node, ast.Attribute):
        return number(program, module, default_of_flag(program, module, node), depth + 1)
    if isinstance(node, ast.Call):
        return _of_call(program, module, node, depth)
    return None


def _of_call(program: Program, module: Module, node: ast.Call, depth: int) -> Number | None:
    name = program.name_of(module, node.func)
    if name in ("int", "float", "round", "np.int64", "tf.cast") and node.args:
        return number(program, module, node.args[0], depth + 1)
    if isinstance(node.func, ast.Attribute) and node.func.attr == "get_per_replica_batch_size":
        whole = number(program, module, argument(node, 0, "global_batch_size"), depth + 1)
        return None if whole is None else Number(value=whole.value, power=whole.power - 1)
    return None


def _of_arithmetic(program: Program, module: Module, node: ast.BinOp, depth: int) -> Number | None:
    left = number(program, module, node.left, depth + 1)
    right = number(program, module, node.right, depth + 1)
    if left is None or right is None:
        return None
    if isinstance(node.op, ast.Mult):
        return Number(value=left.value * right.value, power=left.power + right.power)
    if isinstance(node.op, ast.Div | ast.FloorDiv) and right.value:
        value = left.value / right.value
        if isinstance(node.op, ast.FloorDiv) and left.power == right.power == 0:
            value = float(left.value // right.value)
        return Number(value=value, power=left.power - right.power)
    if left.power != right.power:
        return None
    if isinstance(node.op, ast.Add):
        return Number(value=left.value + right.value, power=left.power)
    if isinstance(node.op, ast.Sub):
        return Number(value=left.value - right.value, power=left.power)
    if isinstance(node.op, ast.Pow) and not left.power and abs(right.value) < 64:
        return Number(value=left.value**right.value)
    return None


def default_of_flag(program: Program, module: Module, node: ast.Attribute) -> ast.expr | None:
    """Return the default of the command line's option that an attribute is, if it is one."""
    for value in program.origins(module, node.value):
        if isinstance(value.node, ast.Call) and isinstance(value.node.func, ast.Attribute):
            if value.node.func.attr in ("parse_args", "parse_known_args"):
                return _default_named(program, node.attr)
        if isinstance(value.node, ast.Attribute):
            # absl: FLAGS.batch_size, where DEFINE_integer("batch_size", 32, ...) is.
            if program.name_of(value.module, value.node) == "absl.flags.FLAGS":
                return _defined(program, node.attr)
    return None


def _default_named(program: Program, name: str) -> ast.expr | None:
    for call in program.all_calls:
        if not isinstance(call.node.func, ast.Attribute):
            continue
        if call.node.func.attr != "add_argument":
            continue
        for flag in call.node.args:
            text = program.constant(call.module, flag)
            if isinstance(text, str) and text.lstrip("-").replace("-", "_") == name:
                return call.argument(None, "default")
    return None


def _defined(program: Program, name: str) -> ast.expr | None:
    for call in program.calls("absl.flags.DEFINE_*"):
        if program.constant(call.module, call.argument(0, "name")) == name:
            return call.argument(1, "default")
    return None
