"""Spot check of a step: it takes samples of a batch, and compares them in a thread.

::

    first run that is due    rows of the batch ──► host
    thread, meanwhile                               └► copies of the variables ──► both sides
                                                        ──► differences ──► warning, if any
    later runs               nothing: one comparison of two numbers

Both sides are one function, of the parts' own functions and the step as a whole:

::

    rows, variables ─┬─► whole ───────────────┬──► expected
                     │     │ behind writes    │
                     └─► parts (2, 1, 2) ─────┴──► actual

The parts read results of tasks with writes from the other side. The results of the step are
compared, and the tensors that tasks with writes read: sums of gradients, new statistics.

The whole step is computed without parts, rules and writes::

    the traced step     read w ─► gradient ─► assign m ─► read m ─► assign w ─► result
    the function        read w ─► gradient                read m ─────────────► result

Reads behind writes return the values from before the step. Both sides do so, and must agree all
the same.

A run never waits for a check and never fails by it: if a check is impossible, its result is "not
done", with the reason.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from evener._tf_private import graphs
from evener._tf_private.random_numbers import is_deterministic
from evener._tf_private.tensors import is_eager_tensor, plain_variable
from evener.errors import EvenerWarning, warn
from evener.graph.draws import StreamState
from evener.graph.functions import FunctionBuilder, NumberArgument, TensorArgument
from evener.graph.inference import Inference
from evener.graph.nodes import Graph, Node, Tensor
from evener.graph.ops.states import REPLICATED, Sharding
from evener.graph.trace import TracedStep, fits_one_batch_size
from evener.partition.build import NodeFunction, add_functional, draws_numbers
from evener.partition.emit import PartitionedStep
from evener.partition.memory import node_flops
from evener.partition.order import sources_of
from evener.partition.report import line_of
from evener.partition.shard import symbols_read
from evener.partition.tasks import HOST, TaskFunction
from evener.strategy.rounding import as_array, find_differences, rounding_of

LARGEST_ARGUMENTS = 1 << 26
"""Most bytes of the arguments of a check."""
LARGEST_BATCH = 64
"""Most samples of a batch of which no samples can be left out."""
LARGEST_VARIABLES = 1 << 30
"""Most bytes of variables that are copied to the host for a check."""
PART_OF_RUN = 0.01
"""Largest part of the run so far that a check may take."""
SHORT_RUN_SECONDS = 60.0
"""Least duration that is assumed of a run."""
_SECONDS_PER_NODE = 250e-6
_FLOPS_PER_SECOND = 10e9
_BYTES_PER_SECOND = 0.5e9
_LONGEST_REASON = 300
_SMALL_BATCHES = 3
_SIZES = ((2, 1, 2), (2, 1), (1, 1))
"""Samples of each part, for batches of at least so many: unequal parts where possible."""
_LOG = logging.getLogger("evener")
_ONE_AT_A_TIME = threading.Lock()
_RUNNING: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotCheck:
    """Result of the check of a step.

    Attributes:
        reason: Reason why it was not done, or an empty text.
        differences: Name and difference of every tensor that differs, relative to its largest
            number.
        num_samples: Number of samples that were computed.
        num_tensors: Number of tensors that were compared.
        seconds: Duration of the check, which runs beside the training.
    """

    state: Literal["agrees", "differs", "not done"]
    reason: str = ""
    differences: tuple[tuple[str, float], ...] = ()
    num_samples: int = 0
    num_tensors: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        if self.state == "not done":
            return f"not done: {self.reason}"
        noun = "sample" if self.num_samples == 1 else "samples"
        different = "; ".join(f"{name} differs by {by:.1e}" for name, by in self.differences)
        return f"{self.num_samples} {noun} computed again on one device: {different or 'equal'}"


class NotDoneError(Exception):
    """Step or batch that cannot be checked; the text is the reason."""


def not_done(error: Exception) -> SpotCheck:
    reason = f"{type(error).__name__}: {' '.join(str(error).split())[:_LONGEST_REASON]}"
    if isinstance(error, NotDoneError):
        reason = str(error)
    return SpotCheck(state="not done", reason=reason)


class StepChecker:
    def __init__(
        self,
        step: PartitionedStep,
        traced: TracedStep,
        when_checked: Callable[[SpotCheck], None],
        *,
        takes_all: bool = False,
    ) -> None:
        self._when_checked = when_checked
        self._takes_all = takes_all or fits_one_batch_size(traced.graph)
        self._num_small = 0
        self._step, self._traced = step, traced
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._due: tf.Variable | None = None
        self._begin = float("inf")
        variables = traced.concrete.graph.variables
        num_bytes = sum((v.shape.num_elements() or 0) * v.dtype.size for v in variables)
        reason = _find_obstacle(step, traced, num_bytes)
        if reason:
            self._end(SpotCheck(state="not done", reason=reason))
            return
        self._sizes = _SIZES[0] if len(step.partition.layout.micro_batches) > 2 else _SIZES[1]
        # Processor seconds for building and running both sides, known before they are built.
        nodes = list(traced.graph)
        num_samples = LARGEST_BATCH if self._takes_all else sum(self._sizes)
        flops = 2 * sum(node_flops(node, num_samples) for node in nodes)
        making = len(nodes) * _SECONDS_PER_NODE * (1 + len(self._sizes))
        seconds = making + flops / _FLOPS_PER_SECOND + num_bytes / _BYTES_PER_SECOND
        # Nothing may read the clock where all operations have to be deterministic.
        self._is_timed = not is_deterministic()
        self._delay = begins_after(seconds)
        self._begin = time.time() + self._delay if self._is_timed else 0.0

    @property
    def num_rows(self) -> int | None:
        """Number of the first samples that it still reads; None for all of a batch."""
        if self._begin == float("inf"):
            return 0
        return None if self._takes_all else sum(self._sizes)

    def offer(self, tensors: Sequence[Any]) -> None:
        """Take the first samples of a batch, outside of graphs, if a check is due."""
        if self._begin <= time.time():
            try:
                rows = [as_array(tensor) for tensor in self._rows(tensors)]
            except Exception as error:
                self._end(not_done(error))
                return
            self._take(*rows)

    def offer_in_graph(self, tensors: Sequence[Any]) -> None:
        """Let the graph that is being built take the first samples of a batch once."""
        if self._begin == float("inf"):
            return
        if self._due is None:
            with tf.init_scope(), tf.device(HOST):
                self._due = plain_variable(self._begin, tf.float64)
        due = self._due
        outer = list(filter(_is_value_of_outer_graph, self._traced.captures))

        def give() -> tf.Operation:
            rows = [*self._rows(tensors), *outer]
            begin = tf.numpy_function(self._take, rows, tf.float64)
            return due.assign(tf.ensure_shape(begin, []), read_value=False)

        with tf.name_scope("evener_spot_check"), tf.device(HOST):
            now = tf.timestamp() if self._is_timed else tf.constant(0.0, tf.float64)
            tf.cond(due.read_value() <= now, give, tf.no_op)

    def _rows(self, tensors: Sequence[Any]) -> list[Any]:
        count = sum(self._sizes)
        rows = []
        for tensor, axis in zip(tensors, self._traced.batch_axes, strict=True):
            if axis is None or self._takes_all:
                rows.append(tensor)
            else:
                rows.append(tensor[(*[slice(None)] * axis, slice(count))])
        return rows

    def _take(self, *arrays: Any) -> float:
        """Begin the check with samples of a batch; return when to take those of another one."""
        try:
            with self._lock:
                if self._thread is None:
                    # TensorFlow may use the memory again.
                    self._begin_with([np.array(array) for array in arrays])
        except Exception as error:
            self._end(not_done(error))
        return np.float64(self._begin)  # pyright: ignore[reportReturnType]

    def _begin_with(self, arrays: list[np.ndarray]) -> None:
        axes = [*self._traced.batch_axes, *[None] * len(arrays)]
        pairs = list(zip(arrays, axes, strict=False))
        counts = {array.shape[axis] for array, axis in pairs if axis is not None}
        if len(counts) != 1:
            raise NotDoneError("the arguments have different numbers of samples")
        count = counts.pop()
        if count < 2:
            self._num_small += 1
            if self._num_small < _SMALL_BATCHES:
                return  # A later batch may do.
            raise NotDoneError("the batches have one sample")
        if sum(array.nbytes for array in arrays) > LARGEST_ARGUMENTS:
            raise NotDoneError("the arguments are large")
        if self._takes_all and count > LARGEST_BATCH:
            raise NotDoneError(f"no sample of the batch can be left out, and it has {count}")
        self._begin = float("inf")
        sizes = next(s for s in _SIZES if sum(s) <= count and len(s) <= len(self._sizes))
        if self._takes_all:
            sizes = (*sizes[:-1], count - sum(sizes[:-1]))
        arrays = [
            array if axis is None else array.take(range(sum(sizes)), axis) for array, axis in pairs
        ]
        # Not ended by force with the program, as a thread of one of TensorFlow's would be.
        self._thread = threading.Thread(
            target=self._check, args=(arrays, sizes), name="evener-spot-check", daemon=False
        )
        _RUNNING.add(self._thread)
        self._thread.start()

    def _check(self, arrays: list[np.ndarray], sizes: tuple[int, ...]) -> None:
        """Check, in a thread of its own; the interpreter waits for it to end."""
        with _ONE_AT_A_TIME:
            began = time.perf_counter()
            try:
                result = self._compare(arrays, sizes)
            # A program that was not written for a few samples may raise anything.
            except Exception as error:
                result = not_done(error)
            self._end(dataclasses.replace(result, seconds=time.perf_counter() - began))

    def _compare(self, arrays: Sequence[np.ndarray], sizes: Sequence[int]) -> SpotCheck:
        traced = self._traced
        self._go_on()
        sides = Sides(self._step, traced, sizes)
        self._go_on()
        fed, variables, closed = _inputs(traced, sides.needed_inputs(), arrays)
        # One after the other, so that no device holds more than one of them twice.
        values = [variable.numpy() for variable in variables.values()]
        with tf.device(HOST):
            copies = [plain_variable(value, tf.as_dtype(value.dtype)) for value in values]
        closed |= {tensor: copy.handle for tensor, copy in zip(variables, copies, strict=True)}
        specs = {tensor: tf.TensorSpec(array.shape, tensor.dtype) for tensor, array in fed.items()}
        function = sides.trace(closed, specs)

        def compute(inputs: Sequence[np.ndarray]) -> Any:
            self._go_on()
            for copy, value in zip(copies, inputs[len(fed) :], strict=True):
                copy.assign(value)
            tensors = [
                tf.constant(n, s.dtype) for n, s in zip(inputs, specs.values(), strict=False)
            ]
            return [[as_array(tensor) for tensor in side] for side in function(*tensors)]

        with tf.device(HOST):
            kinds = [reader is None for reader in sides.compared.values()]
            differences = find_differences(
                compute, [*fed.values(), *values], rounding_of(traced), kinds
            )
        compared = list(sides.compared.items())
        return SpotCheck(
            state="differs" if differences else "agrees",
            differences=tuple(
                (_name(traced, *compared[number]), by) for number, by in differences.items()
            ),
            num_samples=sum(sizes),
            num_tensors=len(compared),
        )

    def _go_on(self) -> None:
        """Give a long check up where the program has ended and waits for it alone."""
        if self._delay and not threading.main_thread().is_alive():
            raise NotDoneError("the program has ended")

    def _end(self, result: SpotCheck) -> None:
        self._begin = float("inf")
        _LOG.debug("spot check of a step: %s", result)
        self._when_checked(result)
        if result.state != "differs":
            return
        name, by = max(result.differences, key=lambda difference: difference[1])
        others = len(result.differences) - 1
        and_more = f", and {others} more" if others else ""
        with contextlib.suppress(EvenerWarning):
            warn(
                "ENG-089",
                f"A step on several devices differs from one device: {name}, by {by:.1e} of its "
                f"largest number{and_more}.",
                why=f"{result.num_samples} samples of a batch were computed in parts and as a "
                "whole. The difference is more than rounding, and stays with other numbers.",
                fix="Run the program on one device, or with verify=True to compare the whole first "
                "step. This is a fault of evener: please report it.",
            )


def begins_after(seconds: float) -> float:
    """Return how long after the first step a check of so many seconds may begin."""
    return max(0.0, seconds / PART_OF_RUN - SHORT_RUN_SECONDS)


def wait_for_checks(timeout_seconds: float | None = None) -> None:
    """Wait for the checks that have begun, each up to a limit."""
    for thread in list(_RUNNING):
        thread.join(timeout_seconds)


def _find_obstacle(step: PartitionedStep, traced: TracedStep, num_bytes: int) -> str:
    """Return why a step cannot be checked, whatever its batches are, or an empty text."""
    layout = step.partition.layout
    if len(layout.micro_batches) < 2:
        return "the step has one part"
    if all(axis is None for axis in traced.batch_axes):
        return "the step has no batch"
    if traced.inference.num_samples is not None:
        return "the step was traced for batches of one size"
    if layout.batch_norm == "per_device":
        return "BatchNormalization by device is not that of one device"
    compiled = [function for function in step.functions if function.by_xla]
    if any(draws_numbers(node) for function in compiled for node in function.task.nodes):
        return "XLA draws other random numbers"
    if num_bytes > LARGEST_VARIABLES:
        return f"the variables of the step have {num_bytes} bytes"
    arguments = traced.graph.inputs[: len(traced.batch_axes)]
    if any(tensor.dtype in (tf.resource, tf.variant) for tensor in arguments):
        return "the step is given a resource"
    return ""


def _is_value_of_outer_graph(capture: Any) -> bool:
    """Return whether a capture is a value of the function that calls the step."""
    is_value = capture.dtype not in (tf.resource, tf.variant)
    return is_value and not is_eager_tensor(capture)


def _inputs(
    traced: TracedStep, needed: set[Tensor], arrays: Sequence[np.ndarray]
) -> tuple[dict[Tensor, np.ndarray], dict[Tensor, tf.Variable], dict[Tensor, Any]]:
    """Return arrays that are fed, variables that are copied, and captures of both sides."""
    arguments = traced.graph.inputs[: len(traced.batch_axes)]
    fed = dict(zip(arguments, arrays, strict=False))
    outer = iter(arrays[len(arguments) :])
    variables: dict[Tensor, tf.Variable] = {}
    closed: dict[Tensor, Any] = {}
    captured = captured_variables(traced)
    for tensor, capture in zip(traced.capture_inputs, traced.captures, strict=True):
        if _is_value_of_outer_graph(capture):
            fed[tensor] = next(outer)
        elif tensor not in needed:
            continue
        elif tensor in captured:
            variables[tensor] = captured[tensor]
        elif is_eager_tensor(capture):
            closed[tensor] = capture
        else:
            raise NotDoneError("the step uses a resource of the function around it")
    if traced.streams is not None:
        closed[traced.streams.counters] = StreamState().counters_of(traced.streams.names)
    fed = {tensor: array for tensor, array in fed.items() if tensor in needed}
    return fed, variables, closed


def _name(traced: TracedStep, tensor: Tensor, reader: TaskFunction | None) -> str:
    """Return the name of a tensor that differs, with the source line of its operation."""
    if reader is None:
        name = f"result {traced.graph.outputs.index(tensor)} of the step"
    else:
        names = {handle: variable.name for handle, variable in captured_variables(traced).items()}
        written = next(written_names(reader, tensor, names), "")
        name = f"what updates {written}" if written else tensor.node.name
    line = line_of(tensor.node)
    return f"{name} ({line})" if line else name


def captured_variables(traced: TracedStep) -> dict[Tensor, tf.Variable]:
    """Return the variables of a step by the tensors of their handles."""
    by_handle = {id(variable.handle): variable for variable in traced.concrete.graph.variables}
    pairs = zip(traced.capture_inputs, traced.captures, strict=True)
    return {tensor: by_handle[id(value)] for tensor, value in pairs if id(value) in by_handle}


# Both sides in one function.

_STATELESS_DRAWS = {
    "RandomUniform": "StatelessRandomUniform",
    "RandomStandardNormal": "StatelessRandomNormal",
    "TruncatedNormal": "StatelessTruncatedNormal",
}
"""Operations that draw from seeds of the check, which leave the program's generators alone."""

_READS = ("RngReadAndSkip",)
_NOT_COMPARED = (tf.resource, tf.variant, tf.string)


def _find_extent(
    step: PartitionedStep,
) -> tuple[frozenset[int], tuple[Tensor, ...], dict[Tensor, TaskFunction | None]]:
    """Return which functions run again, by number, what they are given, and what is compared.

    No variable changes: what functions with writes would compute is given by the whole side. Each
    compared tensor has the function with writes that reads it, or None for results of the step.
    """
    partition = step.partition
    graph = partition.graph
    inputs = {tensor.node for tensor in graph.inputs}
    known: set[Node] = set()
    for node in graph:
        is_computable = not node.has_side_effect or node.op in (*_STATELESS_DRAWS, *_READS)
        if node in inputs or (is_computable and all(t.node in known for t in node.inputs)):
            known.add(node)
    produced: set[Tensor] = set()
    given: set[Tensor] = set()
    runs: set[int] = set()
    for number, function in enumerate(step.functions):
        sources = [t for a in function.builder.arguments for t, _ in sources_of(partition, a)]
        is_pure = not function.is_stateful or function.is_read_only
        if is_pure and all(
            tensor in produced or tensor in given or tensor.node not in partition.task_of
            for tensor in sources
        ):
            runs.add(number)
            produced.update(function.task.fetches)
        else:
            given.update(tensor for tensor in function.task.fetches if tensor.node in known)
    compared: dict[Tensor, TaskFunction | None] = {}
    for number, function in enumerate(step.functions):
        if number not in runs:
            for argument in function.builder.arguments:
                if isinstance(argument, TensorArgument):
                    compared.setdefault(argument.tensor, function)
    for tensor in graph.outputs:
        compared.setdefault(tensor, None)
    compared = {
        tensor: reader
        for tensor, reader in compared.items()
        if tensor in produced and tensor.node in known and tensor.dtype not in _NOT_COMPARED
    }
    resources = {tensor for tensor in given if tensor.dtype == tf.resource}
    return frozenset(runs), tuple(given - resources), compared


def build_reference(
    graph: Graph, inference: Inference, targets: Sequence[Tensor], keeps: Any
) -> FunctionBuilder:
    """Make a function of the arguments of a step that returns some of its tensors.

    Sizes are computed as the program asked for them, and not from the symbols of the traced step,
    except in bodies of loops and conditions.
    """
    whole = Sharding()
    whole.states = {tensor: REPLICATED for node in graph for tensor in node.outputs}
    needed: set[Node] = set()
    stack = [tensor.node for tensor in targets]
    while stack:
        node = stack.pop()
        if node in needed:
            continue
        needed.add(node)
        stack.extend(tensor.node for tensor in node.inputs)
        if node.bodies:
            names = symbols_read(whole, node, inference.symbols)
            stack.extend(inference.symbols[name].tensor.node for name in names)
    builder = NodeFunction("whole", whole, table=inference)
    references = builder.references
    arguments = {tensor.node for tensor in graph.inputs}
    seeds = itertools.count(1)
    for node in graph:
        if node not in needed:
            continue
        if node in arguments:
            for tensor in node.outputs:
                argument = TensorArgument(tensor, REPLICATED)
                references[tensor] = builder.argument(argument, tensor.dtype)
            continue
        builder.origin = node.source
        inputs = [references[tensor] for tensor in node.inputs]
        if node.bodies:
            outputs: Sequence[str] = add_functional(builder, node, inputs, None)
        elif node.op in _READS:
            # It returns the state from before.
            outputs = builder.op("ReadVariableOp", inputs[:1], {"dtype": node.outputs[0].dtype})
        elif node.op in _STATELESS_DRAWS:
            drawn = builder.constant(np.array([0, next(seeds)]), tf.int32)
            attrs = {"dtype": node.outputs[0].dtype, "T": node.inputs[0].dtype, "Tseed": tf.int32}
            outputs = builder.op(_STATELESS_DRAWS[node.op], [inputs[0], drawn], attrs)
        else:
            outputs = builder.copy(node.op, node.name, inputs, node.attrs)
        references.update(zip(node.outputs, outputs, strict=True))
    for tensor in targets:
        builder.output(references[tensor], tensor.dtype)
    builder.register(keeps)
    return builder


class Sides:
    def __init__(self, step: PartitionedStep, traced: TracedStep, sizes: Sequence[int]) -> None:
        self._step = step
        self._sizes = tuple(sizes)
        self._runs, self._given, self.compared = _find_extent(step)
        if not self.compared:
            raise NotDoneError("nothing that the parts compute can be computed again")
        targets = [*self.compared, *self._given]
        self._whole = build_reference(
            traced.graph, step.partition.inference, targets, traced.concrete
        )
        for argument in self._whole.arguments:
            if isinstance(argument, NumberArgument) and argument.name != "B":
                raise NotDoneError(f"the size {argument.name} is not known")

    def needed_inputs(self) -> set[Tensor]:
        """Return the arguments of the step that one of the sides reads."""
        functions = [self._step.functions[number] for number in self._runs]
        builders = [self._whole, *(function.builder for function in functions)]
        arguments = {argument for builder in builders for argument in builder.arguments}
        tensors = {a.tensor for a in arguments if isinstance(a, TensorArgument)}
        return tensors.intersection(self._step.partition.graph.inputs)

    def trace(self, inputs: Mapping[Tensor, Any], specs: Mapping[Tensor, Any]) -> Any:
        """Return TensorFlow's function: tensors by `specs` -> expected and actual tensors."""
        order = list(specs)

        def run(*tensors: tf.Tensor) -> Any:
            values = {**inputs, **dict(zip(order, tensors, strict=True))}
            graph: Any = tf.compat.v1.get_default_graph()
            # The outermost device decides: all devices of the plan are the host here.
            with graph.device(lambda _: HOST):
                total = tf.constant(sum(self._sizes))
                arguments = [
                    values[argument.tensor] if isinstance(argument, TensorArgument) else total
                    for argument in self._whole.arguments
                ]
                whole = graphs.call(
                    self._whole.function, arguments, self._whole.outputs, stateful=True
                )
                count = len(self.compared)
                given = dict(zip(self._given, whole[count:], strict=True))
                sizes = [tf.constant(size) for size in self._sizes]
                flat = [values.get(tensor) for tensor in self._step.partition.graph.inputs]
                actual = self._step.run_some(flat, sizes, self._runs, given, self.compared)
                return whole[:count], actual

        function: Any = tf.function(run, autograph=False)
        return function.get_concrete_function(*specs.values())


def written_names(
    reader: TaskFunction, tensor: Tensor, names: Mapping[Tensor, str]
) -> Iterator[str]:
    """Yield the names of the variables that a task writes after reading a tensor, nearest first."""
    reached: set[Tensor] = {tensor}
    for node in reader.task.nodes:
        if not reached.isdisjoint(node.inputs):
            reached.update(node.outputs)
            if node.has_side_effect:
                yield from (names[handle] for handle in node.inputs if handle in names)
