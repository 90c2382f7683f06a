"""Whether a loop goes once through the shards of a batch, or the devices, and not over batches.

Read from the text alone. It says so only of what can be nothing else: a batch is split into as
many parts as there are replicas, or the loop counts the replicas or goes through the devices.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_NUMBER_OF_REPLICAS = "num_replicas_in_sync"
_PER_REPLICA = ("experimental_local_results", "local_results")
_DEVICES = ("list_logical_devices", "list_physical_devices", "list_local_devices")
_WORKERS = ("worker_devices", "parameter_devices")
_SPLITS = ("split", "array_split", "vsplit")
_NUM_SPLITS = ("num_or_size_splits", "indices_or_sections")
_WRAPPERS = ("enumerate", "list", "tuple", "zip", "reversed", "sorted")
_MOST_STEPS = 8


def is_over_devices(iterated: ast.expr, tree: ast.AST) -> bool:
    """Return whether a loop goes through devices or shards, and so is none over batches."""
    return _is_over_shards(iterated, _Names(values=_assigned(tree)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Names:
    """What the names of a script were given, all of it, whatever came first."""

    values: Mapping[str, list[ast.expr]]
    steps: int = 0

    def of(self, name: str) -> list[ast.expr]:
        return self.values.get(name, []) if self.steps < _MOST_STEPS else []

    def deeper(self) -> _Names:
        return _Names(values=self.values, steps=self.steps + 1)


def _assigned(tree: ast.AST) -> dict[str, list[ast.expr]]:
    values: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                for name, value in _pairs(target, node.value):
                    values.setdefault(name, []).append(value)
    return values


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, ast.Name | ast.Attribute):
        yield _last_name(target), value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, other in zip(target.elts, value.elts, strict=False):
            yield from _pairs(one, other)


def _is_over_shards(iterated: ast.expr, names: _Names) -> bool:
    if isinstance(iterated, ast.Call):
        return _call_gives_shards(iterated, names)
    if isinstance(iterated, ast.ListComp | ast.GeneratorExp):
        return _is_over_shards(iterated.generators[0].iter, names)
    if isinstance(iterated, ast.IfExp):
        return any(_is_over_shards(one, names) for one in (iterated.body, iterated.orelse))
    if isinstance(iterated, ast.BoolOp):
        return any(_is_over_shards(one, names) for one in iterated.values)
    if isinstance(iterated, ast.Name | ast.Attribute):
        name = _last_name(iterated)
        if name in _WORKERS:
            return True
        return any(_is_over_shards(value, names.deeper()) for value in names.of(name))
    return False


def _call_gives_shards(call: ast.Call, names: _Names) -> bool:
    name = _last_name(call.func)
    if name in _WRAPPERS:
        return any(_is_over_shards(argument, names) for argument in call.args)
    if name in (*_PER_REPLICA, *_DEVICES):
        return True
    if name == "range":
        return len(call.args) == 1 and _counts_replicas(call.args[0], names)
    if name in _SPLITS:
        count = _number_of_parts(call)
        return count is not None and _counts_replicas(count, names)
    return False


def _number_of_parts(call: ast.Call) -> ast.expr | None:
    named = [keyword.value for keyword in call.keywords if keyword.arg in _NUM_SPLITS]
    return next(iter([*named, *call.args[1:2]]), None)


def _counts_replicas(expression: ast.expr, names: _Names) -> bool:
    """Return whether this is the number of replicas or of devices, whatever that may be."""
    if isinstance(expression, ast.Call) and _last_name(expression.func) == "len":
        return any(_is_over_shards(argument, names) for argument in expression.args)
    if not isinstance(expression, ast.Name | ast.Attribute):
        return False
    name = _last_name(expression)
    return name == _NUMBER_OF_REPLICAS or any(
        _counts_replicas(value, names.deeper()) for value in names.of(name)
    )


def _last_name(expression: ast.expr) -> str:
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return expression.id if isinstance(expression, ast.Name) else ""
