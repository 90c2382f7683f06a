"""Input pipelines in parts: elements, maps of single elements, batches, maps of batches.

::

    files.shuffle(..) .map(decode).map(crop) .batch(64) .map(normalize) .prefetch(2)
    elements           maps of rows           batches    maps of batches behind them

Why: a dataset tells neither what it does to its input nor how; there is no public way to take one
apart. If it changes: `LastMaps.of` says so in its reason, and every worker maps whole batches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from evener._tf_private.operation_types import is_operation, is_stateful

Compute = Callable[[list[Any]], list[Any]]
"""Function of flat tensors, which returns those of what they are mapped to."""
IsRowWise = Callable[[Callable[..., Sequence[Any]], Sequence[tf.TensorSpec]], bool]
"""Function that returns whether another one, of a batch, computes each row from that row alone."""

_READS = frozenset(
    {
        "Assert",
        "CheckNumerics",
        "CheckNumericsV2",
        "LookupTableFindV2",
        "LookupTableSizeV2",
        "Placeholder",
        "ReadVariableOp",
        "ResourceGather",
        "ResourceGatherNd",
        "VarHandleOp",
    }
)
"""Operations that TensorFlow calls stateful, but that give the same whatever ran before."""
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


_MAPS = frozenset({"_MapDataset", "_ParallelMapDataset"})
_BATCHES = frozenset({"_BatchDataset", "_ParallelBatchDataset"})


class CannotSplitError(Exception):
    """A pipeline does not end with maps of rows and a batch; the reason, as a clause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Maps:
    """Maps, one behind the other.

    Attributes:
        compute: All of them; None for none.
        num_parallel: Most parallel calls of one of them; -1 for as many as TensorFlow chooses; None
            if they are called one after another.
    """

    compute: Compute | None = None
    num_parallel: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LastMaps:
    """A pipeline whose last maps are maps of rows.

    Attributes:
        elements: Dataset of what is mapped.
        of_rows: Maps of single elements.
        of_batches: Maps of batches, which may be of any rows.
        row_spec: Spec of an element behind its maps.
        spec: Spec of a batch behind its maps.
        batch_size: Number of elements in a batch.
        drops_rest: Whether a last batch with fewer is dropped.
        finish: Function of the dataset of batches; it does what is done behind them.
    """

    elements: Any
    of_rows: Maps
    of_batches: Maps
    row_spec: Any
    spec: Any
    batch_size: int
    drops_rest: bool
    finish: Callable[[Any], Any]

    @classmethod
    def of(cls, dataset: Any, is_row_wise: IsRowWise) -> LastMaps:
        """Take a pipeline apart.

        Args:
            dataset: The pipeline.
            is_row_wise: Function that decides whether maps of batches are maps of rows.

        Raises:
            CannotSplitError: If it is another kind of pipeline.
        """
        options = dataset.options()
        if options.deterministic is False:
            raise CannotSplitError("its options leave the order of its elements to chance")
        behind: list[Callable[[Any], Any]] = []
        maps: list[Any] = []
        below = dataset
        while (kind := type(below).__name__) in _MAPS or kind in _SAME_ELEMENTS:
            if kind in _MAPS:
                maps.append(below)
            else:
                behind.append(_SAME_ELEMENTS[kind](below))
            below = _input(below)
        if kind not in _BATCHES:
            raise CannotSplitError(f"it does not end with .batch(), but with {_called(below)}")
        elements, of_rows = _mapped(_input(below))
        of_batches = _mapped_batches(maps[::-1], is_row_wise)
        if of_rows.compute is None and of_batches.compute is None:
            raise CannotSplitError(
                f"no map comes before its .batch(), but {_called(_input(below))}"
            )
        _check_spec(elements.element_spec, "what it maps")
        _check_spec(_input(below).element_spec, "what it maps to")

        def finish(batches: Any) -> Any:
            for step in reversed(behind):
                batches = step(batches)
            return batches.with_options(options)

        return cls(
            elements=elements,
            of_rows=of_rows,
            of_batches=of_batches,
            row_spec=_input(below).element_spec,
            spec=dataset.element_spec,
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


def _mapped(dataset: Any) -> tuple[Any, Maps]:
    """Return a dataset as another one and the maps of its elements."""
    kind = type(dataset).__name__
    if kind in _SAME_ELEMENTS:
        elements, maps = _mapped(_input(dataset))
        return _SAME_ELEMENTS[kind](dataset)(elements) if maps.compute else dataset, maps
    if kind in _MAPS:
        elements, maps = _mapped(_input(dataset))
        return elements, _behind(maps, dataset)
    return _zipped(dataset) if kind == "_ZipDataset" else (dataset, Maps())


def _behind(before: Maps, dataset: Any) -> Maps:
    """Return maps, and that of a dataset behind them."""
    function, compute_before = dataset._map_func.function, before.compute
    _check_function(function)
    if getattr(dataset, "_deterministic", "default") == "false":
        raise CannotSplitError("a map leaves the order of its elements to chance")

    def compute(flat: list[Any]) -> list[Any]:
        return list(function(*(flat if compute_before is None else compute_before(flat))))

    own = int(dataset._num_parallel_calls) if hasattr(dataset, "_num_parallel_calls") else None
    return Maps(compute=compute, num_parallel=_most([before.num_parallel, own]))


def _most(counts: Sequence[int | None]) -> int | None:
    """Return the largest number of parallel calls."""
    known = [count for count in counts if count is not None]
    return -1 if -1 in known else max(known, default=None)


def _zipped(dataset: Any) -> tuple[Any, Maps]:
    inputs = [_mapped(each) for each in dataset._inputs()]
    computes = [maps.compute for _, maps in inputs]
    if not any(computes):
        return dataset, Maps()
    sizes = [len(tf.nest.flatten(elements.element_spec)) for elements, _ in inputs]

    def compute(flat: list[Any]) -> list[Any]:
        found, begin = [], 0
        for size, each in zip(sizes, computes, strict=True):
            own = flat[begin : begin + size]
            found += own if each is None else each(own)
            begin += size
        return found

    elements = tf.data.Dataset.zip(tuple(elements for elements, _ in inputs))
    num_parallel = _most([maps.num_parallel for _, maps in inputs])
    return elements, Maps(compute=compute, num_parallel=num_parallel)


def _mapped_batches(datasets: Sequence[Any], is_row_wise: IsRowWise) -> Maps:
    """Return the maps of datasets of batches, of which the first comes first.

    Raises:
        CannotSplitError: If one of them cannot map some rows of a batch alone.
    """
    found = Maps()
    for dataset in datasets:
        specs: list[Any] = tf.nest.flatten(_input(dataset).element_spec)
        results: list[Any] = tf.nest.flatten(dataset.element_spec)
        for spec in (*specs, *results):
            if not isinstance(spec, tf.TensorSpec) or not spec.shape[1:].is_fully_defined():
                raise CannotSplitError("a map behind its .batch() has tensors without fixed shapes")
            if spec.shape[0] is not None:
                raise CannotSplitError("a map behind its .batch() is made for one size of batches")
        found = _behind(found, dataset)
        if not is_row_wise(dataset._map_func.function, specs):
            raise CannotSplitError("a map behind its .batch() may use other rows than its own")
    return found


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
