"""Values of numbers in a program, in terms of the number of replicas."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from evener.analysis import Call, Module, Program, last_name
from evener.doctor.queries.gpus import counts_gpus

_DEEPEST = 12
_DEEPEST_COUNT = 3
_COUNTS = re.compile(
    r"replica|num_gpu|n_gpu|world_size|^((num|n)_devices|ngpus|num_workers|gpus)$", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A number ``value * R ** power``, with R the number of replicas.

    Args:
        value: The factor.
        power: Exponent of the number of replicas in it.
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
    """Return what number an expression is, or None if that is not known.

    Defaults of ``argparse`` count as the numbers.
    """
    if node is None or depth > _DEEPEST:
        return None
    if isinstance(node, ast.BinOp):
        return _of_arithmetic(program, module, node, depth)
    if counts_gpus(program, module, node):
        return Number(value=1.0, power=1)
    values = program.origins(module, node)
    found = {_of_value(program, value.module, value.node, value.steps, depth) for value in values}
    return found.pop() if len(found) == 1 else None


def counts_replicas(program: Program, module: Module, node: ast.AST, depth: int = 0) -> bool:
    """Return whether an expression is a number of replicas or devices, or made from one.

    By its value, or by its name.
    """
    parts = [part for part in ast.walk(node) if isinstance(part, ast.Name | ast.Attribute)]
    if any(_COUNTS.search(last_name(part)) for part in parts):
        return True
    if depth > _DEEPEST_COUNT:
        return False
    return any(
        counts_gpus(program, value.module, value.node)
        or counts_replicas(program, value.module, value.node, depth + 1)
        for part in parts
        for value in program.origins(module, part)
        if value.node is not part and isinstance(value.node, ast.expr)
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
        return number(program, module, _default_of_option(program, module, node), depth + 1)
    if isinstance(node, ast.Call):
        return _of_call(program, module, node, depth)
    return None


def _of_call(program: Program, module: Module, node: ast.Call, depth: int) -> Number | None:
    name = program.name_of(module, node.func)
    if name in ("int", "float", "round", "np.int64", "tf.cast") and node.args:
        return number(program, module, node.args[0], depth + 1)
    return None


def _of_arithmetic(program: Program, module: Module, node: ast.BinOp, depth: int) -> Number | None:
    left = number(program, module, node.left, depth + 1)
    right = number(program, module, node.right, depth + 1)
    if left is None or right is None:
        return None
    if isinstance(node.op, ast.Mult):
        return Number(value=left.value * right.value, power=left.power + right.power)
    if isinstance(node.op, ast.Div | ast.FloorDiv) and right.value:
        return Number(value=left.value / right.value, power=left.power - right.power)
    return None


def _default_of_option(program: Program, module: Module, node: ast.Attribute) -> ast.expr | None:
    """Return the default of the command line's option that an attribute is, if it is one."""
    origins = program.origins(module, node.value)
    is_parsed = any(
        isinstance(origin.node, ast.Call) and ast.unparse(origin.node.func).endswith("parse_args")
        for origin in origins
    )
    is_flag = any(program.name_of(v.module, v.node) == "absl.flags.FLAGS" for v in origins)
    if not (is_parsed or is_flag):
        return None
    for call in (*program.calls("absl.flags.DEFINE_*"), *_added_arguments(program)):
        for flag in call.node.args:
            text = program.constant(call.module, flag)
            if isinstance(text, str) and text.lstrip("-").replace("-", "_") == node.attr:
                return call.argument(1 if is_flag else None, "default")
    return None


def _added_arguments(program: Program) -> list[Call]:
    return [call for call, _ in program.calls_of("add_argument")]
