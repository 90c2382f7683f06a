"""How large the batches are that a program trains on, and where that is written."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from evener.doctor.program import Call, Kind, Module, Place, Program
from evener.doctor.program.values import Value
from evener.doctor.questions.numbers import Number, number
from evener.doctor.questions.trainings import fits

_BATCHING = ("batch", "padded_batch", "ragged_batch")
_READING = ("keras.utils.*_dataset_from_directory", "keras.utils.timeseries_dataset_from_array")
_ARRAYS = frozenset({Kind.ARRAY, Kind.TENSOR})
# What fit takes of arrays where nothing is said.
_OF_KERAS = 32.0
_DISTRIBUTING = ("experimental_distribute_dataset",)
_BY_FUNCTION = (
    "distribute_datasets_from_function",
    "experimental_distribute_datasets_from_function",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSize:
    """The size of the batches of one training.

    Args:
        module: Where the size is given.
        call: ``.batch(...)``, or ``fit(..., batch_size=...)``.
        node: The expression that is given; None for the default of ``fit``.
        use: What takes the batches: ``fit`` or ``experimental_distribute_dataset``.
        size: What it is, as far as can be told.
        is_fit: Whether Keras's ``fit`` takes them.
        is_per_replica: Whether the dataset gives each replica its own batches.
    """

    module: Module
    call: ast.Call
    node: ast.expr | None
    use: Call
    size: Number | None
    is_fit: bool
    is_per_replica: bool = False

    @property
    def for_each(self) -> Number | None:
        """Return how many samples each replica is given."""
        if self.size is None or self.is_per_replica:
            return self.size
        return Number(value=self.size.value, power=self.size.power - 1)

    @property
    def place(self) -> Place:
        """Return the line on which the size is given."""
        return self.module.place(self.node if self.node is not None else self.call)


def batch_sizes(program: Program) -> list[BatchSize]:
    """Return the sizes of the batches that a program trains on under a strategy."""
    found = [one for call in fits(program) for one in sizes_of_fit(program, call)]
    found += [*_of_distributed(program), *_of_functions(program)]
    unique: dict[tuple[ast.AST, bool, bool], BatchSize] = {}
    for one in found:
        unique.setdefault((one.node or one.call, one.is_fit, one.is_per_replica), one)
    return list(unique.values())


def sizes_of_fit(program: Program, call: Call) -> Iterator[BatchSize]:
    """Yield the sizes of the batches of one call of ``fit``."""
    data, size = call.argument(0, "x"), call.argument(2, "batch_size")
    kinds = program.kinds(call.module, data) if data is not None else frozenset()
    if size is not None and not kinds & {Kind.DATASET, Kind.DISTRIBUTED}:
        yield _size(program, call.module, call.node, size, call, is_fit=True)
    elif data is not None and Kind.DATASET in kinds:
        for batched, module, node in _batchings(program, call.module, data):
            yield _size(program, module, batched, node, call, is_fit=True)
    elif size is None and kinds <= _ARRAYS and (kinds or call.argument(1, "y") is not None):
        yield BatchSize(
            module=call.module,
            call=call.node,
            node=None,
            use=call,
            size=Number(value=_OF_KERAS),
            is_fit=True,
        )


def _of_distributed(program: Program) -> Iterator[BatchSize]:
    for call, _ in program.calls_of(*_DISTRIBUTING):
        data = call.argument(0, "dataset")
        if data is not None and not _is_for_evaluation(data):
            for batched, module, node in _batchings(program, call.module, data):
                yield _size(program, module, batched, node, call, is_fit=False)


def _of_functions(program: Program) -> Iterator[BatchSize]:
    for call in program.all_calls:
        if call.method in _BY_FUNCTION:
            given = call.argument(0, "dataset_fn")
            for module, target in program.functions_of(call.module, given) if given else ():
                for node in ast.walk(target):
                    if isinstance(node, ast.Call) and _is_batching(node) and node.args:
                        yield _size(
                            program,
                            module,
                            node,
                            node.args[0],
                            call,
                            is_fit=False,
                            is_per_replica=True,
                        )


def _size(
    program: Program,
    module: Module,
    batched: ast.Call,
    node: ast.expr,
    use: Call,
    *,
    is_fit: bool,
    is_per_replica: bool = False,
) -> BatchSize:
    return BatchSize(
        module=module,
        call=batched,
        node=node,
        use=use,
        size=number(program, module, node),
        is_fit=is_fit,
        is_per_replica=is_per_replica,
    )


def _batchings(
    program: Program, module: Module, data: ast.AST
) -> Iterator[tuple[ast.Call, Module, ast.expr]]:
    """Yield the calls that make the batches of a dataset, the last ``batch`` of each chain."""
    waiting: list[Value] = list(program.origins(module, data))
    seen = set[ast.AST]()
    while waiting:
        value = waiting.pop()
        node = value.node
        if not isinstance(node, ast.Call) or node in seen:
            continue
        seen.add(node)
        name = program.name_of(value.module, node.func)
        if name.startswith("keras.utils."):
            for keyword in node.keywords:
                if keyword.arg == "batch_size":
                    yield node, value.module, keyword.value
            continue
        if _is_batching(node):
            sizes = [*node.args[:1], *(k.value for k in node.keywords if k.arg == "batch_size")]
            if sizes:
                yield node, value.module, sizes[0]
                continue
        if isinstance(node.func, ast.Attribute) and not name:
            if node.func.attr in _DISTRIBUTING and node.args:
                waiting += program.origins(value.module, node.args[0])
            else:
                waiting += program.origins(value.module, node.func.value)


def _is_batching(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Attribute) and node.func.attr in _BATCHING


def _is_for_evaluation(data: ast.expr) -> bool:
    text = ast.unparse(data).lower()
    return any(word in text for word in ("test", "val", "eval", "dev_ds", "predict"))
