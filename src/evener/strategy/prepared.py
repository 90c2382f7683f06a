"""A step that was traced and partitioned for arguments of one kind.

And one on one device, timed as a whole.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf

from evener._tf_private.functions import leave_to_autograph, trained_variables
from evener._tf_private.graphs import written_resources
from evener._tf_private.random_numbers import counting_from, is_deterministic
from evener._tf_private.tapes import keep_order_of_variables
from evener._tf_private.tensors import in_xla
from evener.auditing.records import write_gathered
from evener.base.user_code import is_own, short_path
from evener.devices.names import device_name, kind_of
from evener.errors import DataError
from evener.graph.dims import Size, evaluate, symbols_of
from evener.graph.draws import Streams, StreamState, draws, draws_from_seeds
from evener.graph.nodes import Graph, Node, Tensor
from evener.graph.ops.states import Sharded
from evener.graph.trace import repack, trace_step
from evener.partition.build import draws_numbers
from evener.partition.emit import PartitionedStep, partition_step
from evener.partition.layout import Layout, WorkerGroup
from evener.partition.memory import MemoryLimits
from evener.partition.report import StepReport, warn_at_user_line
from evener.partition.tasks import HOST
from evener.partition.times import STEP, Recorder, SpanInfo, clock_after
from evener.strategy.arguments import Arguments, read_arguments
from evener.strategy.rounding import rounding_of
from evener.strategy.shares import ShareController
from evener.strategy.spot_check import SpotCheck, StepChecker
from evener.strategy.verify import Verifier
from evener.workers.late import pack_results

# Settings that a step shares with the bodies of its loops.


class Prepared(Protocol):
    """Step that was traced, and has not run yet."""

    @property
    def trains(self) -> bool:
        """Whether it writes variables by gradients."""
        ...

    @property
    def variables(self) -> list[tf.Variable]:
        """Variables that it uses."""
        ...

    def can_change_plan(self) -> bool:
        """Return whether another trace can go on where this one was, also after a failure."""
        ...

    def draws_numbers(self) -> bool:
        """Return whether it may draw random numbers, of which XLA has others than TensorFlow."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSettings:
    """Settings that a step shares with the bodies of its loops."""

    layout: Layout  # Devices, stages and micro-batches of each replica
    # Shares that can change between the runs of a graph, with the times of the devices; None for
    # shares of the step alone
    controller: ShareController | None = None
    verify: bool | None = None  # See `evener.distribute`
    # Function that returns the bytes of all variables on each device, such as ``"gpu:0"``; None for
    # those of the step alone
    owned_bytes: Callable[[], Mapping[str, int]] | None = None
    # Function that is called with every partitioned step that is kept
    when_traced: Callable[[PartitionedStep], object] | None = None
    # Function that is called with every step that was traced, before it runs
    when_prepared: Callable[[Prepared], object] | None = None
    # Function that returns the paths of the variables of the program, whose layers a plan may name
    paths: Callable[[], Iterable[str]] = tuple
    # Function that returns the owner of a variable in the common partition of several workers, by
    # its handle; None for the device where it is
    owner_of_handle: Callable[[Any], str | None] = lambda _: None


# Names of steps in messages.


def step_name(step: Callable[..., Any], *, trains: bool) -> str:
    """Return the name of a step: the function with its line, or the kind of step of Keras's."""
    function = inspect.unwrap(step)
    function = getattr(function, "python_function", function)
    code = getattr(function, "__code__", None)
    if code is not None and is_own(code.co_filename):
        name = code.co_name if code.co_name != "<lambda>" else "the step"
        return f"{name} ({short_path(code.co_filename)}:{code.co_firstlineno})"
    return "the training step" if trains else "a step that does not train"


# Steps that can be computed more than once: all that they change can be put back.

_HARMLESS = ("Assert", "NoOp", "Print", "PrintV2")


def can_run_twice(
    graph: Graph, variables: Collection[Tensor], streams: Streams | None = None
) -> bool:
    """Return whether a step can be computed once more, and warn if not."""
    found = [f"{node.op} ({node.name})" for node in not_put_back(graph.nodes, variables)]
    found += [name[0] for name in streams.names] if streams is not None else []
    if not found:
        return True
    warn_at_user_line(
        "ENG-087",
        "A step cannot be verified: it would not run on one device as it runs without "
        "verification.",
        why=f"It has the operation {found[0]}, which changes or draws from what is "
        "not a variable, so its effect cannot be undone.",
        fix="Verify a step without it; for random numbers, use tf.random.Generator or a seed of "
        "Keras's.",
    )
    return False


def not_put_back(nodes: Iterable[Node], variables: Collection[Tensor]) -> Iterator[Node]:
    """Yield the operations whose effects stay when variables are put back."""
    for node in nodes:
        if not node.has_side_effect or node.op in _HARMLESS:
            continue
        resources = [tensor for tensor in node.inputs if tensor.dtype == tf.resource]
        if any(tensor not in variables for tensor in resources):
            yield node
        elif node.bodies:
            for body in node.bodies.values():
                handles = [tensor for tensor in body.inputs if tensor.dtype == tf.resource]
                yield from not_put_back(body.nodes, handles)
        elif not resources:
            yield node


# A step that was traced and partitioned for arguments of one kind.


class PreparedStep:
    """A step that was traced for arguments of one kind."""

    def __init__(
        self,
        step: Callable[..., Any],
        arguments: Arguments,
        specs: Sequence[tf.TensorSpec],
        settings: StepSettings,
        *,
        streams: StreamState,
        num_samples: int | None = None,
        first_draw: int | None = None,
        verifier: Verifier | None = None,
        when_checked: Callable[[SpotCheck], None] | None = None,
    ) -> None:
        is_traced = False

        def flat(*tensors: Any) -> Any:
            nonlocal is_traced
            args, kwargs = arguments.pack(tensors)
            makes_variables = False

            def noted(make: Callable[..., Any], **kwargs: Any) -> Any:
                nonlocal makes_variables
                makes_variables = True
                return make(**kwargs)

            drawn = streams.tracing(counts=not is_traced)
            counted = counting_from(first_draw)
            with tf.variable_creator_scope(noted), counted, drawn:
                results = step(*args, **kwargs)
            if makes_variables and not is_traced:
                # TensorFlow traces such a function once more, and runs that trace.
                streams.begin_again()
            is_traced |= not makes_variables
            return results

        leave_to_autograph(flat)

        layout, controller = settings.layout, settings.controller
        if layout.group is not None:
            keep_order_of_variables()
        self.specs = tuple(specs)
        self._traced = trace_step(
            flat,
            specs,
            arguments.axes,
            autograph=True,
            unknown=arguments.unknown,
            num_samples=num_samples,
            with_layers=layout.is_scheduled,
            batch_norm_per_device=layout.batch_norm == "per_device",
            # Workers take the numbers that one of them has drawn.
            takes_streams=tf.executing_eagerly() and layout.group is None,
        )
        self.partitioned: PartitionedStep = partition_step(
            self._traced, layout, settings.paths(), settings.owner_of_handle
        )
        if layout.group is not None:
            self._tell(layout.group)
        if settings.when_prepared is not None:
            settings.when_prepared(self)
        self._gathered = StepReport.of([self.partitioned]).gathered
        _warn_about_obstacles(self.partitioned)
        self._num_replicas = len(layout.replicas)
        self._first_device = layout.first_device
        self._devices = layout.devices
        self._name = step_name(step, trains=self._traced.trains)
        self._verifier = verifier if verifier and self._can_run_twice() else None
        self._checker: StepChecker | None = None
        if when_checked is not None:
            self._checker = StepChecker(
                self.partitioned,
                self._traced,
                when_checked,
                # Rows of composite tensors do not belong to a single sample.
                takes_all=arguments.has_composites,
            )
        self._recorder: ShareController | None = None
        self.memory_limits: MemoryLimits | None = None
        if controller is not None and self._traced.trains:
            # Nothing may read the clock where all operations have to be deterministic.
            can_be_timed = not is_deterministic()
            if can_be_timed and (self._num_replicas > 1 or controller.counts):
                self._recorder = controller
            if controller.has_memory_limits:
                owned_bytes = settings.owned_bytes or self.owned_bytes
                self.memory_limits = MemoryLimits(
                    self.partitioned, controller.memory_bytes, owned_bytes
                )

    def _tell(self, group: WorkerGroup) -> None:
        """Tell the workers which variables the step uses, in the order of its captures."""
        by_handle = {id(variable.handle): variable for variable in self.variables}
        written = set(self.partitioned.written)
        for tensor, value in zip(self._traced.capture_inputs, self._traced.captures, strict=True):
            variable = by_handle.get(id(value))
            if variable is not None:
                group.track(variable, is_written=tensor in written)

    @property
    def batch_axes(self) -> tuple[int | None, ...]:
        """For every tensor the axis that counts samples, or None."""
        return self._traced.batch_axes

    @property
    def equal_sizes(self) -> tuple[tuple[int, ...], ...]:
        """Sets of tensors whose first sizes have to be equal."""
        return self._traced.equal_sizes

    @property
    def may_change_members(self) -> bool:
        """Whether workers take part, of which one may die."""
        return self.partitioned.partition.layout.group is not None

    @property
    def rows_without_batch(self) -> int:
        """The number of rows that the step draws and splits; 1 if it draws none."""
        states = self.partitioned.partition.sharding.states.values()
        rows = (state.rows for state in states if isinstance(state, Sharded))
        return max((size for size in rows if isinstance(size, int)), default=1)

    def serves(self, specs: Sequence[tf.TensorSpec]) -> bool:
        """Return whether tensors of other specs can be given to it."""
        return all(
            mine.is_compatible_with(other) and mine.shape.is_compatible_with(other.shape)
            for mine, other in zip(self.specs, specs, strict=True)
        ) and all(
            _is_as_general(mine.shape, other.shape)
            for mine, other in zip(self.specs, specs, strict=True)
        )

    def draws_from_seeds(self) -> bool:
        """Return whether kernels of its own draw, and begin with a fixed seed."""
        return draws_from_seeds(self._traced.graph)

    def can_change_plan(self) -> bool:
        """Return whether another trace can go on where this one was, also after a failure.

        Streams that begin with a fixed seed belong to the steps of one plan. What a step has
        taken from a queue or an iterator is lost if a plan fails, since variables alone are put
        back. Draws without a seed may be others.
        """
        if self.draws_from_seeds() or self._traced.streams is not None:
            return False
        return all(map(draws, not_put_back(self._traced.graph.nodes, self._variable_inputs())))

    def draws_numbers(self) -> bool:
        """Return whether it may draw random numbers, of which XLA has others than TensorFlow."""
        return any(map(draws_numbers, self._traced.graph))

    @functools.cached_property
    def _run(self) -> Any:
        """The partitioned step as a function of its own, for calls outside of graphs."""
        specs = list(self.specs)
        if self._traced.streams is not None:
            specs.append(tf.TensorSpec([len(self._traced.streams.names), 2], tf.uint64))
        signature = [tf.TensorSpec([self._num_replicas], tf.int32), specs]

        def run(sizes: tf.Tensor, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            return self._results(tensors, sizes)

        function: Any = tf.function(run, input_signature=signature, autograph=False)
        return function.get_concrete_function()

    def __call__(self, tensors: Sequence[Any], sizes: Sequence[int], state: StreamState) -> Any:
        """Run the step outside of graphs."""
        if self._checker is not None:
            self._checker.offer(tensors)
        streams = self._traced.streams
        given = [*tensors, *([state.counters_of(streams.names)] if streams is not None else [])]
        results = self._run(tf.constant(sizes), given)
        if streams is not None:
            state.advance(streams.names, results[-1])
        return repack(self._traced.structure, results)

    def trace(self) -> Sequence[Any]:
        """Return the handles of its variables; see `evener.workers.late.Outline`."""
        return [variable.handle for variable in self.variables]

    def pack(self, arrays: Sequence[Any]) -> Any:
        """Return arrays in the structure of the results."""
        outputs = pack_results(list(self._traced.concrete.outputs), arrays)
        return repack(self._traced.structure, outputs)

    def plain(self, tensors: Sequence[Any], device: str) -> Any:
        """Run the step as it was traced, on one device."""
        with tf.device(device):
            return repack(self._traced.structure, self._traced.concrete(*tensors))

    def _results(self, tensors: Sequence[Any], sizes: tf.Tensor) -> Any:
        """Return the flat results of the step in the graph that is being made."""
        write_gathered(self._gathered)

        def partitioned() -> Any:
            count = len(self.specs)
            inputs = [*tensors[:count], *self._traced.captures, *tensors[count:]]
            return self.partitioned(inputs, sizes, self._recorder, first_rows=self._rows_of_checks)

        if self._verifier is None:
            return partitioned()

        def plain(given: Sequence[Any]) -> Any:
            with tf.device(self._first_device):
                return self._traced.concrete(*given)

        return self._verifier.run(
            plain,
            partitioned,
            self.variables,
            tensors=tensors,
            step=self._name,
            epsilon=rounding_of(self._traced, self._devices),
        )

    def _rows_of_checks(self) -> int | None:
        """Return how many of the first samples checks still read; None for all."""
        if self._verifier is not None:
            return None
        return 0 if self._checker is None else self._checker.num_rows

    @property
    def trains(self) -> bool:
        """Whether it writes variables by gradients."""
        return self._traced.trains

    @property
    def variables(self) -> list[tf.Variable]:
        """The variables that the step uses."""
        return list(self._traced.concrete.graph.variables)

    def owned_bytes(self) -> dict[str, int]:
        """Return the bytes of the variables of the step on each device, such as ``"gpu:0"``."""
        found: Counter[str] = Counter()
        for variable in self.variables:
            count = variable.shape.num_elements() or 0
            found[device_name(variable.device)] += count * variable.dtype.size
        return dict(found)

    def _can_run_twice(self) -> bool:
        return can_run_twice(self._traced.graph, self._variable_inputs(), self._traced.streams)

    def _variable_inputs(self) -> set[Tensor]:
        """Return the arguments of the graph that are handles of variables."""
        handles = {id(variable.handle) for variable in self.variables}
        captures = zip(self._traced.capture_inputs, self._traced.captures, strict=True)
        return {tensor for tensor, value in captures if id(value) in handles}

    def inline(self, tensors: Sequence[Any], sizes: tf.Tensor, num_samples: int | None) -> Any:
        """Run the step in the graph that is being made."""
        if self._checker is not None:
            self._checker.offer_in_graph(tensors)
        results = self._results(tensors, sizes)
        if num_samples is not None:
            for traced, result in zip(self._traced.graph.outputs, results, strict=True):
                result.set_shape(_shape_for(traced.shape, num_samples))
        return repack(self._traced.structure, results)


def _shape_for(shape: Sequence[Size] | None, num_samples: int) -> Any:
    """Return a shape for a batch of a known size."""
    if shape is None:
        return None
    return [
        evaluate(size, {"B": num_samples}) if symbols_of(size) <= {"B"} else None for size in shape
    ]


def _is_as_general(mine: tf.TensorShape, other: tf.TensorShape) -> bool:
    if mine.rank is None:
        return True
    if other.rank is None:
        return False
    return all(a is None or a == b for a, b in zip(mine, other, strict=True))


def _warn_about_obstacles(step: PartitionedStep) -> None:
    """Warn of parts of a function with ``jit_compile=True`` that run without XLA: ENG-082."""
    found = [function for function in step.functions if function.obstacle]
    if not found:
        return
    drawn = any(draws_numbers(node) for function in found for node in function.task.nodes)
    numbers = (
        " Random numbers that are drawn there are not those that XLA draws on one device: "
        "the results differ."
        if drawn
        else " The results are the same up to rounding."
    )
    warn_at_user_line(
        "ENG-082",
        f"{len(found)} of {len(step.functions)} parts of a step with jit_compile=True run without "
        "XLA.",
        why=f"XLA compiles each part of a step by itself, and {found[0].obstacle}.{numbers}",
        fix="Leave out jit_compile=True, or use one device.",
    )


# Time of a step on one device in one part, measured in the graph that it is part of.
#
# ::
#
#     batch is there ──► forward, backward passes, updates ──► results and variables are there
#        clock                                                   clock
#
# Such a step is not traced by evener, and its operations stay as they are: clocks are read beside
# it.
# On a CPU the step waits for the first clock, or a busy host would read it late.


@tf.autograph.experimental.do_not_convert
def run_timed(
    run_once: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    device: str,
    recorder: Recorder,
) -> Any:
    """Run a step in the graph that is being made, and record its times if it trains.

    Steps without a batch, steps that XLA compiles together with their caller, and steps with
    operations that have to be deterministic are not timed.
    """
    graph: Any = tf.compat.v1.get_default_graph()
    cannot_be_timed = is_deterministic() or in_xla(graph)
    found = None if cannot_be_timed else _with_batch((args, kwargs))
    if found is None:
        return run_once(args=args, kwargs=kwargs)
    began = clock_after(found.batch, device)
    if not kind_of(device).has_own_processor:
        args, kwargs = found.waiting_for(began)
    first = len(graph.get_operations())
    with trained_variables() as trained:
        results = run_once(args=args, kwargs=kwargs)
    writes = _writes(graph, graph.get_operations()[first:], trained)
    if writes is None:
        return results
    tensors = tf.nest.flatten(results, expand_composites=True)
    ended = clock_after([*filter(tf.is_tensor, tensors), *writes], device)
    with tf.device(HOST):
        samples = tf.reshape(tf.cast(tf.shape(found.batch[0])[0], tf.float64), [1])
        recorder.record_totals(began, samples, {device: ended - began})
        if recorder.keeps_spans:
            span = SpanInfo(device=device_name(device), kind=STEP, replica=0)
            recorder.record_spans([span], tf.stack([[began], [ended]]))
    return results


@dataclasses.dataclass(frozen=True, slots=True)
class _Batch:
    """Arguments with tensors that have a row for each sample."""

    arguments: Arguments

    @property
    def batch(self) -> list[Any]:
        """The tensors with a row for each sample."""
        pairs = zip(self.arguments.tensors, self.arguments.axes, strict=True)
        return [tensor for tensor, axis in pairs if axis == 0]

    def waiting_for(self, begin: tf.Tensor) -> Any:
        """Return the nested arguments, whose tensors are there when a clock was read."""
        with tf.control_dependencies([begin]):
            return self.arguments.pack([*map(tf.identity, self.arguments.tensors)])


def _with_batch(arguments: Any) -> _Batch | None:
    """Return what is known of nested arguments; None if no tensor of them has samples."""
    try:
        found = _Batch(read_arguments(arguments))
    except DataError:
        return None
    return found if found.batch else None


def _writes(
    graph: Any, operations: Sequence[tf.Operation], trained: Sequence[tf.Variable]
) -> list[tf.Operation] | None:
    """Return the operations that write variables; None if they write none that is trained."""
    handles = {graph.capture(variable.handle).ref() for variable in trained}
    resources_of = written_resources
    written = {operation: resources_of(operation) for operation in operations}
    if not any(r.ref() in handles for resources in written.values() for r in resources):
        return None
    return [operation for operation, resources in written.items() if resources]
