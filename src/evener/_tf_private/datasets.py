"""Datasets: loops over them in traced functions, the batches they give, and pipelines in parts.

::

    files.shuffle(..) .map(decode).map(crop) .batch(64) .map(normalize) .prefetch(2)
    elements           maps of rows           batches    maps of batches behind them

Why: a dataset tells neither what it does to its input nor how; there is no public way to take one
apart. If it changes: `LastMaps.of` says so in its reason, and every worker maps whole batches.
"""

from __future__ import annotations

import contextlib
import functools
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import tensorflow as tf

from evener._tf_private.functions import converted_as_by, leave_to_autograph
from evener._tf_private.graphs import is_operation, is_stateful
from evener._tf_private.patches import Patch, setting, wrap_with

RunBody: TypeAlias = "Callable[[Callable[[Any], Any], Any], Any]"
"""Called with the body of a loop, as a function of a batch, and the batch; returns its results."""


class _Loops(threading.local):
    run: RunBody | None = None  # what runs bodies of loops that are traced
    graph: Any = None  # the graph whose first batch ends its trace
    given: tuple[Any, Any] | None = None  # an iterator, and the batch that it gives next


_here = _Loops()


_LOOPS = Patch(
    "loops over datasets",
    *(
        f"tensorflow.python.autograph.operators.control_flow:for_loop_registry._registry[{kind}]"
        for kind in ("DatasetV2", "OwnedIterator")
    ),
    why="A traced function that loops over its data holds all steps in one operation. AutoGraph "
    "has a registry of how to loop over what, and no public name for it.",
    if_it_changes="Such functions train on one device, and `evener run` says so at its end.",
)


def running_bodies(run: RunBody | None) -> contextlib.AbstractContextManager[None]:
    """Let bodies of loops over datasets be run by ``run``, where this thread traces them."""
    _LOOPS.apply(wrap_with(_loop))
    return setting(_here, run=run)


def _loop(
    original: Callable[..., None],
    feed: Any,
    extra_test: Any,
    body: Any,
    get_state: Any,
    set_state: Any,
    *rest: Any,
) -> None:
    """Run a loop by AutoGraph; its body gives a function of a batch and the batch to `run`."""
    run = _here.run

    def run_body(iterate: Any) -> None:
        assert run is not None
        # AutoGraph keeps the variables of a loop, as tensors, in names that the body closes over:
        # the body begins with those of the graph around it, whenever it is traced.
        before = get_state()

        def step(batch: Any) -> Any:
            set_state(before)
            # A loop in a loop is part of the step.
            with running_bodies(None):
                body(batch)
            return get_state()

        # Its body has been converted.
        leave_to_autograph(step)
        set_state(run(step, iterate))

    original(feed, extra_test, body if run is None else run_body, get_state, set_state, *rest)


_TAKEN = Patch(
    "batches that functions take",
    "tensorflow.python.data.ops.iterator_ops:OwnedIterator._next_internal",
    why="What a traced function computes of a batch that it takes is a step of that batch.",
    if_it_changes="Such functions train on one device, and `evener run` says so at its end.",
)


class _Batch(BaseException):
    """Ends the trace of a function at the first batch that it takes; no program catches it."""


def take_batches(function: Any) -> None:
    """Let `running_bodies` run what a `tf.function` computes of the first batch that it takes.

    The trace ends where it takes a batch, and begins anew as a body that is given the batch.

    Why: a script's own `tf.function` can be decorated until it is traced, by a private method.
    If it changes: as for the patch.
    """

    def decorate(original: Callable[..., Any]) -> Callable[..., Any]:
        # The decorators of TensorFlow's that are noted at the original do not lie around this one.
        @functools.wraps(original, updated=())
        def call(*args: Any, **kwargs: Any) -> Any:
            run = _here.run
            body = converted_as_by(function, original)
            if run is None or tf.executing_eagerly():
                return body(*args, **kwargs)
            _TAKEN.apply(wrap_with(_next_batch))
            _here.graph = tf.compat.v1.get_default_graph()
            try:
                return body(*args, **kwargs)
            except _Batch as taken:
                iterator, batch = taken.args
            finally:
                _here.graph = None

            def step(batch: Any) -> Any:
                _here.given = (iterator, batch)
                # Further batches, and loops over data, are part of the step.
                with running_bodies(None):
                    results, _here.given = body(*args, **kwargs), None
                return results

            leave_to_autograph(step)
            return run(step, batch)

        leave_to_autograph(call)
        return call

    if not function._jit_compile:
        with contextlib.suppress(ValueError):
            function._decorate(decorate)


def _next_batch(original: Callable[[Any], Any], iterator: Any) -> Any:
    given = _here.given
    if given is not None and given[0] is iterator:
        _here.given = None
        return given[1]
    graph: Any = tf.compat.v1.get_default_graph()
    # What changes state before would do so twice; a batch in a condition is not always taken.
    is_first = graph is _here.graph and not any(
        op.op_def.is_stateful and op.type != "ReadVariableOp" for op in graph.get_operations()
    )
    _here.graph, batch = None, original(iterator)
    if is_first:
        raise _Batch(iterator, batch)
    return batch


_ITERATORS = (
    "tensorflow.python.data.ops.iterator_ops:OwnedIterator",
    "tensorflow.python.distribute.input_lib:DistributedIteratorBase",
)
_NEXT = ("__next__", "get_next", "get_next_as_optional")
NEXT_BATCHES = Patch(
    "batches of iterators",
    *(f"{kind}.{name}" for kind in _ITERATORS for name in _NEXT),
    why="To time the wait for batches, in Python and in graphs. The classes have no public names.",
    if_it_changes="The doctor takes all pipelines to be quick.",
)


# Input pipelines in parts.

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
    """Maps, one behind the other."""

    compute: Compute | None = None  # All of them; None for none
    # Most parallel calls of one of them; -1 for as many as TensorFlow chooses; None if they are
    # called one after another
    num_parallel: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LastMaps:
    """A pipeline whose last maps are maps of rows."""

    elements: Any  # Dataset of what is mapped
    of_rows: Maps  # Maps of single elements
    of_batches: Maps  # Maps of batches, which may be of any rows
    row_spec: Any  # Spec of an element behind its maps
    spec: Any  # Spec of a batch behind its maps
    batch_size: int  # Number of elements in a batch
    drops_rest: bool  # Whether a last batch with fewer is dropped
    # Function of the dataset of batches; it does what is done behind them
    finish: Callable[[Any], Any]

    @classmethod
    def of(cls, dataset: Any, is_row_wise: IsRowWise) -> LastMaps:
        """Take a pipeline apart."""
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
    function, compute_before = dataset._map_func.function, before.compute
    definition = function.graph.as_graph_def()
    nodes: list[Any] = [*definition.node]
    for each in definition.library.function:
        nodes += each.node_def
    for node in nodes:
        if node.op in _READS or node.op in _CALLS or not is_operation(node.op):
            continue
        if is_stateful(node.op):
            raise CannotSplitError(f"a map has a state, or does more than to return ({node.op})")
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
    """Return the maps of datasets of batches, of which the first comes first."""
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


def _check_spec(spec: Any, what: str) -> None:
    """Refuse elements that cannot be replaced by zeros, or put in batches."""
    leaves: Sequence[Any] = tf.nest.flatten(spec)
    for leaf in leaves:
        if not isinstance(leaf, tf.TensorSpec) or leaf.dtype in (tf.resource, tf.variant):
            raise CannotSplitError(f"{what} are not tensors alone ({type(leaf).__name__})")
        if not leaf.shape.is_fully_defined():
            raise CannotSplitError(f"{what} has no fixed shape ({leaf.shape})")
