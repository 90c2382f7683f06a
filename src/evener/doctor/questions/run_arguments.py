"""What ``strategy.run`` gives to the replicas."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from evener.doctor.program import Call, Kind, Module, Program, argument
from evener.doctor.program.values import Value
from evener.doctor.questions.strategies import runs

# What makes a number, or a thing of one number for all, and not samples.
_NUMBERS = (
    "np.float32",
    "np.float64",
    "np.int32",
    "np.int64",
    "np.prod",
    "np.mean",
    "np.sum",
    "np.sqrt",
    "np.log",
    "tf.cast",
    "tf.shape",
    "tf.size",
)
_MAKERS = (
    "np.",
    "tf.random.",
    "tf.zeros",
    "tf.ones",
    "tf.stack",
    "tf.concat",
    "tf.gather",
    "tf.constant",
    "tf.convert_to_tensor",
    "tf.image.",
    "keras.datasets.",
    "keras.random.",
    "keras.utils.to_categorical",
    "sklearn.",
    "pandas.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """One of the values that a call of ``run`` gives to the replicas.

    Args:
        call: The call of ``run``.
        module: Where the value stands.
        node: The value.
    """

    call: Call
    module: Module
    node: ast.expr


@lru_cache(maxsize=4)
def given_to_run(program: Program) -> tuple[Given, ...]:
    """Return what the calls of ``strategy.run`` give, one value each."""
    return tuple(one for call in runs(program) for one in _given(program, call))


def _given(program: Program, call: Call) -> Iterator[Given]:
    args, kwargs = argument(call.node, 1, "args"), argument(call.node, 2, "kwargs")
    for group in (args, kwargs):
        if group is None:
            continue
        for value in program.origins(call.module, group):
            if isinstance(value.node, ast.Tuple | ast.List) and not value.steps:
                for one in value.node.elts:
                    yield Given(call=call, module=value.module, node=one)
            elif isinstance(value.node, ast.Dict) and not value.steps:
                for one in value.node.values:
                    yield Given(call=call, module=value.module, node=one)
            elif group is args and value.node is not group:
                yield Given(call=call, module=call.module, node=group)
                break


def is_per_replica(program: Program, given: Given) -> bool:
    """Return whether a value may be one per replica."""
    kinds = program.kinds(given.module, given.node)
    return Kind.PER_REPLICA in kinds or Kind.DISTRIBUTED in kinds


def samples_in(program: Program, given: Given) -> Value | None:
    """Return what makes it whole samples, an array or tensor for all; None if nothing does."""
    kinds = program.kinds(given.module, given.node)
    if is_per_replica(program, given) or Kind.BATCH in kinds:
        return None
    for value in program.origins(given.module, given.node):
        if isinstance(value.node, ast.Tuple | ast.List) and not value.steps:
            parts = [replace(given, module=value.module, node=one) for one in value.node.elts]
            found = [made for part in parts if (made := samples_in(program, part))]
            return found[0] if found else None
    if not kinds & {Kind.ARRAY, Kind.TENSOR} and not isinstance(given.node, ast.Subscript):
        return None
    for value in program.origins(given.module, given.node):
        if _is_samples(program, value):
            return value
    return None


def _is_samples(program: Program, value: Value) -> bool:
    node = value.node
    if not isinstance(node, ast.Call):
        return False
    name = program.name_of(value.module, node.func)
    if not name and isinstance(node.func, ast.Attribute):
        # A method of an array or tensor gives one again: x.astype(...), rng.normal(...).
        kinds = program.kinds(value.module, node)
        return bool(kinds & {Kind.ARRAY}) and node.func.attr not in ("sum", "mean", "item")
    if name in _NUMBERS or not name.startswith(_MAKERS):
        return False
    return not _is_one_number(program, value.module, name, node)


def _is_one_number(program: Program, module: Module, name: str, node: ast.Call) -> bool:
    """Return whether what is made has no axis for samples: ``tf.constant(0.1)``."""
    first = node.args[0] if node.args else None
    if first is None:
        return not node.keywords
    if name in ("tf.constant", "tf.convert_to_tensor", "np.array", "np.asarray"):
        return isinstance(program.constant(module, first), int | float) or not (
            program.kinds(module, first) or isinstance(first, ast.List | ast.Tuple)
        )
    if isinstance(first, ast.Tuple | ast.List) and not first.elts:
        return True
    return name.startswith("np.random.") and not (len(node.args) > 1 or node.keywords)
