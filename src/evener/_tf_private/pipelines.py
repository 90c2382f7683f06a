"""Input pipelines in parts: elements, maps of single elements, batches.

::

    files.shuffle(..) .map(decode).map(crop) .batch(64) .prefetch(2)
    elements           maps                   batches    behind the batches

Why: a dataset tells neither what it does to its input nor how; there is no public way to take one
apart. If it changes: `LastMaps.of` says so in its reason, and every worker maps whole batches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from evener._tf_private.operation_types import is_operation, is_stateful

Compute = Callable[[list[Any]], list[Any]]
"""Function of the flat tensors of an element, which returns those of what it is mapped to."""

_READS = frozenset(
    {
        "Assert",
        "LookupTableFindV2",
        "LookupTableSizeV2",
        "Placeholder",
        "ReadVariableOp",
        "ResourceGather",
        "ResourceGatherNd",
        "VarHandleOp",
    }
)
"""Operations that TensorFlow calls stateful, but that give the same whoever ran before."""
_CALLS = frozenset({"If", "StatefulPartitionedCall", "While"})
"""Operations that are as stateful as the functions that they call."""
_SAME_ELEMENTS: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "_PrefetchDataset": lambda made: lambda dataset: dataset.prefetch(int(made._buffer_size)),
    "_RepeatDataset": lambda made: lambda dataset: dataset.repeat(int(made._count)),
    "_SkipDataset": lambda made: lambda dataset: dataset.skip(int(made._count)),
    "_TakeDataset": lambda made: lambda dataset: dataset.take(int(made._count)),
    # The options of the whole pipeline are set at its end.
    "_OptionsDataset": lambda _: lambda dataset: dataset,
}
"""Datasets that choose or repeat elements by their number alone: how to make them of others."""


class CannotSplitError(Exception):
    """A pipeline does not end with maps of single elements and a batch; the reason, as a clause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mapped:
    """A dataset as another one whose elements are mapped.

    Attributes:
        elements: The other one.
        compute: Maps of its elements; None for none.
        num_parallel: Most parallel calls of a map; -1 for as many as TensorFlow chooses.
    """

    elements: Any
    compute: Compute | None = None
    num_parallel: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LastMaps:
    """A pipeline whose last maps are maps of single elements.

    Attributes:
        elements: Dataset of what is mapped.
        compute: The maps.
        spec: Spec of what they return.
        num_parallel: Parallel calls of the maps; -1 for as many as TensorFlow chooses.
        batch_size: Number of elements in a batch.
        drops_rest: Whether a last batch with fewer is dropped.
        finish: Function of the dataset of batches; it does what is done behind them.
    """

    elements: Any
    compute: Compute
    spec: Any
    num_parallel: int
    batch_size: int
    drops_rest: bool
    finish: Callable[[Any], Any]

    @classmethod
    def of(cls, dataset: Any) -> LastMaps:
        """Take a pipeline apart.

        Raises:
            CannotSplitError: If it is another kind of pipeline.
        """
        options = dataset.options()
        if options.deterministic is False:
            raise CannotSplitError("its options leave the order of its elements to chance")
        behind: list[Callable[[Any], Any]] = []
        below = dataset
        while type(below).__name__ in _SAME_ELEMENTS:
            behind.append(_SAME_ELEMENTS[type(below).__name__](below))
            below = _input(below)
        if type(below).__name__ not in ("_BatchDataset", "_ParallelBatchDataset"):
            raise CannotSplitError(f"it does not end with .batch(), but with {_called(below)}")
        rows = _mapped(_input(below))
        if rows.compute is None:
            raise CannotSplitError(
                f"no map comes before its .batch(), but {_called(_input(below))}"
            )
        spec = _input(below).element_spec
        for each, what in ((rows.elements.element_spec, "what it maps"), (spec, "what it maps to")):
            _check_spec(each, what)

        def finish(batches: Any) -> Any:
            for step in reversed(behind):
                batches = step(batches)
            return batches.with_options(options)

        return cls(
            elements=rows.elements,
            compute=rows.compute,
            spec=spec,
            num_parallel=rows.num_parallel,
            batch_size=int(below._batch_size),
            drops_rest=bool(below._drop_remainder),
            finish=finish,
        )


def _input(dataset: Any) -> Any:
    return dataset._input_dataset


def _called(dataset: Any) -> str:
    """Return the method that has made a dataset, such as ``".padded_batch()"``."""
    name = type(dataset).__name__.strip("_").removesuffix("V2").removesuffix("Dataset")
    words = re.findall("[A-Z][a-z0-9]*", name.removeprefix("Parallel"))
    return f".{'_'.join(words).lower()}()"


def _mapped(dataset: Any) -> _Mapped:
    """Return a dataset with its maps taken off."""
    kind = type(dataset).__name__
    if kind in _SAME_ELEMENTS:
        below = _mapped(_input(dataset))
        if below.compute is None:
            return _Mapped(elements=dataset)
        return replace(below, elements=_SAME_ELEMENTS[kind](dataset)(below.elements))
    if kind == "_ZipDataset":
        return _zipped(dataset)
    if kind not in ("_MapDataset", "_ParallelMapDataset"):
        return _Mapped(elements=dataset)
    below = _mapped(_input(dataset))
    function, before = dataset._map_func.function, below.compute
    _check_function(function)
    if getattr(dataset, "_deterministic", "default") == "false":
        raise CannotSplitError("a map leaves the order of its elements to chance")

    def compute(flat: list[Any]) -> list[Any]:
        return list(function(*(flat if before is None else before(flat))))

    own = int(getattr(dataset, "_num_parallel_calls", 1))
    counts = (below.num_parallel, own)
    num_parallel = -1 if -1 in counts else max(counts)
    return replace(below, compute=compute, num_parallel=num_parallel)


def _zipped(dataset: Any) -> _Mapped:
    inputs = [_mapped(each) for each in dataset._inputs()]
    computes = [each.compute for each in inputs]
    if not any(computes):
        return _Mapped(elements=dataset)
    sizes = [len(tf.nest.flatten(each.elements.element_spec)) for each in inputs]

    def compute(flat: list[Any]) -> list[Any]:
        found, begin = [], 0
        for size, each in zip(sizes, computes, strict=True):
            own = flat[begin : begin + size]
            found += own if each is None else each(own)
            begin += size
        return found

    counts = [each.num_parallel for each in inputs]
    return _Mapped(
        elements=tf.data.Dataset.zip(tuple(each.elements for each in inputs)),
        compute=compute,
        num_parallel=-1 if -1 in counts else max(counts),
    )


def _check_function(function: Any) -> None:
    """Refuse a map whose result depends on the calls before it, or that does more than to return.

    Raises:
        CannotSplitError: If it is one.
    """
    definition = function.graph.as_graph_def()
    nodes: list[Any] = [*definition.node]
    for each in definition.library.function:
        nodes += each.node_def
    for node in nodes:
        if node.op in _READS or node.op in _CALLS or not is_operation(node.op):
            continue
        if is_stateful(node.op):
            raise CannotSplitError(f"a map has a state, or does more than to return ({node.op})")


def _check_spec(spec: Any, what: str) -> None:
    """Refuse elements that cannot be replaced by zeros, or put in batches.

    Raises:
        CannotSplitError: If they are.
    """
    leaves: Sequence[Any] = tf.nest.flatten(spec)
    for leaf in leaves:
        if not isinstance(leaf, tf.TensorSpec) or leaf.dtype in (tf.resource, tf.variant):
            raise CannotSplitError(f"{what} are not tensors alone ({type(leaf).__name__})")
        if not leaf.shape.is_fully_defined():
            raise CannotSplitError(f"{what} has no fixed shape ({leaf.shape})")
