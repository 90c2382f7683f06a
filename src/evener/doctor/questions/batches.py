"""How large the batches of a program are."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from evener.doctor.program import Call, Kind, Module, Program
from evener.doctor.questions.strategies import counts_replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A batch size that is written in the program.

    Args:
        call: ``dataset.batch(...)`` or ``model.fit(...)``.
        size: In samples.
        is_per_replica: Whether it is multiplied by the number of replicas where it is used.
    """

    call: Call
    size: int
    is_per_replica: bool


def batches_of(program: Program) -> Iterator[Batch]:
    """Yield the batch sizes that datasets are batched by and that ``fit`` is given."""
    for call in program.all_calls:
        function = call.node.func
        if not isinstance(function, ast.Attribute):
            continue
        if function.attr in ("batch", "padded_batch"):
            given = call.argument(0, "batch_size")
            if Kind.DATASET not in program.kinds(call.module, function.value):
                continue
        elif function.attr == "fit":
            given = call.argument(2, "batch_size")
        elif call.name.endswith(("_from_directory", "timeseries_dataset_from_array")):
            given = call.argument(None, "batch_size")
        else:
            continue
        size = None if given is None else number(program, call.module, given)
        if given is not None and size is not None:
            per_replica = counts_replicas(program, call.module, given)
            yield Batch(call=call, size=size, is_per_replica=per_replica)


def number(program: Program, module: Module, node: ast.AST, depth: int = 0) -> int | None:
    """Return a whole number that an expression gives, the number of replicas counted as 1."""
    if depth > 8:
        return None
    constant = program.constant(module, node)
    if isinstance(constant, int):
        return constant
    if isinstance(node, ast.Attribute) and node.attr == "num_replicas_in_sync":
        return 1
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.FloorDiv):
        left = number(program, module, node.left, depth + 1)
        right = number(program, module, node.right, depth + 1)
        if left is None or not right:
            return None
        return left * right if isinstance(node.op, ast.Mult) else left // right
    for value in program.origins(module, node):
        if value.node is not node and not value.steps:
            found = number(program, value.module, value.node, depth + 1)
            if found is not None:
                return found
    return None
