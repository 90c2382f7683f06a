"""Sizes of the batches that a program trains on, and the lines that set them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from evener.analysis import Call, Kind, Location, Module, Program, Value, argument
from evener.doctor.queries.numbers import Number, number
from evener.doctor.queries.training import fits

_BATCHING = ("batch", "padded_batch", "ragged_batch")
_DISTRIBUTING = "experimental_distribute_dataset"
_ARRAYS = frozenset({Kind.ARRAY, Kind.TENSOR})
# The batch size of fit for arrays, if none is given.
_KERAS_DEFAULT = Number(value=32.0)
_FOR_EVALUATION = ("test", "val", "eval", "dev_ds", "predict")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSize:
    """The size of the global batches of one training.

    Args:
        module: Module in which the size is given.
        call: ``.batch(...)``, or ``fit(..., batch_size=...)``.
        node: The expression that is given; None for the default of ``fit``.
        use: Call that takes the batches: ``fit`` or ``experimental_distribute_dataset``.
        size: Size, as far as it is known.
        is_fit: Whether Keras's ``fit`` takes them.
    """

    module: Module
    call: ast.Call
    node: ast.expr | None
    use: Call
    size: Number | None
    is_fit: bool

    @property
    def location(self) -> Location:
        """Return the line on which the size is given."""
        return self.module.location(self.node if self.node is not None else self.call)


def batch_sizes(program: Program) -> list[BatchSize]:
    """Return the sizes of the batches that a program trains on."""
    found = [batch_size for call in fits(program) for batch_size in sizes_of_fit(program, call)]
    for call, _ in program.calls_of(_DISTRIBUTING):
        data = call.argument(0, "dataset")
        text = "" if data is None else ast.unparse(data).lower()
        if data is not None and not any(word in text for word in _FOR_EVALUATION):
            found += _sizes_of_dataset(program, call, data, is_fit=False)
    return list(
        {
            (batch_size.node or batch_size.call, batch_size.is_fit): batch_size
            for batch_size in reversed(found)
        }.values()
    )


def sizes_of_fit(program: Program, call: Call) -> Iterator[BatchSize]:
    """Yield the sizes of the batches of one call of ``fit``."""
    data, given = call.argument(0, "x"), call.argument(2, "batch_size")
    kinds = program.kinds(call.module, data) if data is not None else frozenset[Kind]()
    if data is not None and kinds & {Kind.DATASET, Kind.DISTRIBUTED}:
        yield from _sizes_of_dataset(program, call, data, is_fit=True)
    elif given is not None or (kinds <= _ARRAYS and (kinds or call.argument(1, "y") is not None)):
        size = _KERAS_DEFAULT if given is None else number(program, call.module, given)
        yield BatchSize(
            module=call.module, call=call.node, node=given, use=call, size=size, is_fit=True
        )


def _sizes_of_dataset(
    program: Program, use: Call, data: ast.expr, *, is_fit: bool
) -> Iterator[BatchSize]:
    """Yield the arguments of the last ``batch`` of each chain that makes a dataset."""
    waiting: list[Value] = list(program.origins(use.module, data))
    seen = set[ast.AST]()
    while waiting:
        value = waiting.pop()
        node, module = value.node, value.module
        if not isinstance(node, ast.Call) or node in seen:
            continue
        seen.add(node)
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        is_reader = program.name_of(module, node.func).startswith("keras.utils.")
        if is_reader or method in _BATCHING:
            given = argument(node, None if is_reader else 0, "batch_size")
            if given is not None:
                yield BatchSize(
                    module=module,
                    call=node,
                    node=given,
                    use=use,
                    size=number(program, module, given),
                    is_fit=is_fit,
                )
                continue
        if method == _DISTRIBUTING and node.args:
            waiting += program.origins(module, node.args[0])
        elif isinstance(node.func, ast.Attribute):
            waiting += program.origins(module, node.func.value)
