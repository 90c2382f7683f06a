"""A step that was traced and partitioned for arguments of one kind; and one that runs as a whole.

::

    step, specs of its tensors ──► traced ──► partitioned ──► function of tensors and sizes of parts
                                                 │   checks: verification, or a few samples
                                                 └── recorder of times, memory limits

A step on one device in one part is not traced: clocks are read beside it, in its caller's graph.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from evener._tf_private.functions import leave_to_autograph, trained_variables
from evener._tf_private.graphs import TRACE_AS_PROGRAM, written_resources
from evener._tf_private.random_numbers import counting_from, is_deterministic
from evener._tf_private.tapes import keep_order_of_variables
from evener._tf_private.tensors import in_xla
from evener.auditing import write_gathered
from evener.base.user_code import is_own, short_path
from evener.devices.names import device_name, kind_of, without_worker
from evener.errors import DataError, EngineError
from evener.graph.dims import evaluate, symbols_of
from evener.graph.draws import StreamState, draws, draws_from_seeds
from evener.graph.nodes import Node, Tensor
from evener.graph.ops.states import Sharded
from evener.graph.trace import check_trace, repack, trace_step
from evener.partition import memory
from evener.partition.build import draws_numbers
from evener.partition.emit import PartitionedStep, partition_step
from evener.partition.layout import Layout
from evener.partition.report import StepReport, warn_at_user_line
from evener.partition.tasks import HOST
from evener.partition.times import STEP, SpanInfo, StepTimes, clock_after
from evener.plan import Plan, Replica
from evener.strategy.arguments import Arguments, read_arguments
from evener.strategy.ownership import OwnerRegistry
from evener.strategy.rounding import rounding_of
from evener.strategy.shares import ShareController
from evener.strategy.spot_check import SpotCheck, StepChecker, captured_variables
from evener.strategy.verify import Verification, Verifier
from evener.workers.late import pack_results

DISTRIBUTED_STEP = "evener_step"
"""Name of the function of a step that is called outside of graphs: sizes of parts, then tensors."""
_HARMLESS = ("Assert", "NoOp", "Print", "PrintV2")


class StepRecords:
    """Records of steps, which outlive the steps: reports, memory, differences from one device."""

    def __init__(self) -> None:
        self.verifications: list[Verification] = []
        self.spot_checks: list[SpotCheck] = []
        # Steps that were traced since a trial of plans has looked; None without a trial.
        self.prepared: list[PreparedStep] | None = None
        self.reports: list[StepReport] = []
        self._live_ranges: list[list[memory.LiveRange]] = []

    def add(self, step: PreparedStep) -> None:
        self.reports.append(step.report)
        self._live_ranges.append(memory.live_ranges_of(step.partitioned))

    def memory_estimate(
        self, replicas: Sequence[Replica], num_samples: int, owned: Mapping[str, int]
    ) -> dict[str, memory.MemoryEstimate]:
        """Return the need of the most demanding step in the memory of every device."""
        names = [stage.device for replica in replicas for stage in replica.stages]
        if any(without_worker(name) != name for name in names):
            raise EngineError(
                "ENG-100",
                "The memory of steps on several workers is not known.",
                why="It is counted by the names of devices, and the devices of all workers have "
                "the same.",
                fix="Call it in a run of one worker, whose devices have the same shares of the "
                "batch.",
            )
        if not self._live_ranges:
            raise EngineError(
                "ENG-011",
                "No step has been partitioned yet, so nothing is known of its memory.",
                why="The estimate is counted from the traced step of a plan with several devices, "
                "stages or micro-batches.",
                fix="Call it after a first step, such as fit on one batch.",
            )
        largest: dict[str, memory.MemoryEstimate] = {}
        for live_ranges in self._live_ranges:
            for name, need in memory.estimate_memory(
                live_ranges, replicas, num_samples, owned
            ).items():
                if name not in largest or need.total > largest[name].total:
                    largest[name] = need
        return largest


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class StepContext:
    """Surroundings of a step and of the bodies of its loops: a plan, and what runs it."""

    plan: Plan
    layout: Layout
    controller: ShareController
    owners: OwnerRegistry  # Owners of the variables of the program, as far as they are chosen
    records: StepRecords = field(default_factory=StepRecords)
    verify: bool | None  # See `evener.distribute`


class PreparedStep:
    def __init__(
        self,
        step: Callable[..., Any],
        arguments: Arguments,
        specs: Sequence[tf.TensorSpec],
        context: StepContext,
        *,
        streams: StreamState,
        num_samples: int | None = None,
        first_draw: int | None = None,
        named_after: Callable[..., Any],
    ) -> None:
        is_traced = False

        def flat(*tensors: Any) -> Any:
            nonlocal is_traced
            args, kwargs = arguments.pack(tensors)
            makes_variables = False

            def note_variable(make: Callable[..., Any], **kwargs: Any) -> Any:
                nonlocal makes_variables
                makes_variables = True
                return make(**kwargs)

            drawn = streams.tracing(counts=not is_traced)
            counted = counting_from(first_draw)
            with tf.variable_creator_scope(note_variable), counted, drawn:
                results = step(*args, **kwargs)
            if makes_variables and not is_traced:
                # TensorFlow traces such a function once more, and runs that trace.
                streams.begin_again()
            is_traced |= not makes_variables
            return results

        leave_to_autograph(flat)
        layout, controller, owners = context.layout, context.controller, context.owners
        self.layout, group = layout, layout.group
        if group is not None:
            keep_order_of_variables()
        self.specs = self.specs_of_program = tuple(specs)
        names = arguments.names(named_after)

        def named(specs: Sequence[tf.TensorSpec]) -> list[tf.TensorSpec]:
            pairs = zip(specs, names, strict=True)
            return [tf.TensorSpec(spec.shape, spec.dtype, name) for spec, name in pairs]

        def trace_as_program() -> None:
            if self.specs_of_program != self.specs:
                check_trace(flat, named(self.specs_of_program))

        traced = self.traced = trace_step(
            flat,
            named(specs),
            arguments.axes,
            autograph=True,
            unknown=arguments.unknown,
            num_samples=num_samples,
            with_layers=self.layout.is_scheduled,
            batch_norm_per_device=self.layout.batch_norm == "per_device",
            # Workers take the numbers that one of them has drawn.
            takes_streams=tf.executing_eagerly() and group is None,
        )
        setattr(traced.concrete.graph, TRACE_AS_PROGRAM, trace_as_program)
        self.batch_axes, self.equal_sizes = traced.batch_axes, traced.equal_sizes
        self.trains = traced.trains
        self.variables: list[tf.Variable] = list(traced.concrete.graph.variables)
        # Paths of optimizers and metrics belong to no layer.
        paths = [variable.path for variable in owners.variables if variable.is_trainable]
        owner_of_handle = owners.common_owner if group is not None else lambda _: None
        self.partitioned: PartitionedStep = partition_step(
            traced, self.layout, paths, owner_of_handle
        )
        handles = captured_variables(traced)
        if group is not None:
            # In the order of the captures, which is the same for all workers.
            written = set(self.partitioned.written)
            for tensor, variable in handles.items():
                group.variables.add(variable, is_written=tensor in written)
        # Whether kernels of its own draw, and begin with a fixed seed.
        self.draws_from_seeds = draws_from_seeds(traced.graph)
        # Streams that begin with a fixed seed belong to the steps of one plan. What a step has
        # taken from a queue or an iterator is lost if a plan fails, since variables alone are put
        # back. Draws without a seed may be others.
        self.can_change_plan = (
            not self.draws_from_seeds
            and traced.streams is None
            and all(map(draws, not_put_back(traced.graph.nodes, handles)))
        )
        if context.records.prepared is not None:
            context.records.prepared.append(self)
        self.report = StepReport.of([self.partitioned])
        if without_xla := [each for each in self.partitioned.functions if each.obstacle]:
            nodes = (node for function in without_xla for node in function.task.nodes)
            numbers = (
                "Random numbers that are drawn there are not those that XLA draws on one device: "
                "the results differ."
                if any(map(draws_numbers, nodes))
                else "The results are the same up to rounding."
            )
            warn_at_user_line(
                "ENG-082",
                f"{len(without_xla)} of {len(self.partitioned.functions)} parts of a step with "
                "jit_compile=True run without XLA.",
                why="XLA compiles each part of a step by itself, and "
                f"{without_xla[0].obstacle}. {numbers}",
                fix="Leave out jit_compile=True, or use one device.",
            )
        self._verifier: Verifier | None = None
        if context.verify and _can_run_twice(self, handles):
            self._verifier = Verifier(
                _step_name(step, trains=self.trains),
                self.variables,
                rounding_of(traced, self.layout.devices),
                context.records.verifications.append,
            )
        self._checker: StepChecker | None = None
        if context.verify is None:
            self._checker = StepChecker(
                self.partitioned,
                traced,
                context.records.spot_checks.append,
                # Rows of composite tensors do not belong to a single sample.
                takes_all=arguments.has_composites,
            )
        self._recorder: ShareController | None = None
        self.memory_limits: memory.MemoryLimits | None = None
        if self.trains:
            # Nothing may read the clock where all operations have to be deterministic.
            can_be_timed = not is_deterministic()
            if can_be_timed and (len(self.layout.replicas) > 1 or controller.counts):
                self._recorder = controller
            if controller.has_memory_limits:
                owned_bytes = owners.owned_bytes if owners.variables else self.owned_bytes
                self.memory_limits = memory.MemoryLimits(
                    self.partitioned, controller.memory_bytes, owned_bytes
                )

    @property
    def rows_without_batch(self) -> int:
        """The number of rows that the step draws and splits; 1 if it draws none."""
        states = self.partitioned.partition.sharding.states.values()
        rows = (state.rows for state in states if isinstance(state, Sharded))
        return max((size for size in rows if isinstance(size, int)), default=1)

    def serves(self, specs: Sequence[tf.TensorSpec]) -> bool:
        def is_as_general(mine: tf.TensorShape, other: tf.TensorShape) -> bool:
            if mine.rank is None or other.rank is None:
                return mine.rank is None
            return all(a is None or a == b for a, b in zip(mine, other, strict=True))

        return all(
            mine.is_compatible_with(other)
            and mine.shape.is_compatible_with(other.shape)
            and is_as_general(mine.shape, other.shape)
            for mine, other in zip(self.specs, specs, strict=True)
        )

    def owned_bytes(self) -> dict[str, int]:
        """Return the bytes of the variables of the step on each device, such as ``"gpu:0"``."""
        owned: Counter[str] = Counter()
        for variable in self.variables:
            count = variable.shape.num_elements() or 0
            owned[device_name(variable.device)] += count * variable.dtype.size
        return dict(owned)

    @functools.cached_property
    def _run(self) -> Any:
        """The partitioned step as a function of its own, for calls outside of graphs."""
        specs = list(self.specs)
        if self.traced.streams is not None:
            specs.append(tf.TensorSpec([len(self.traced.streams.names), 2], tf.uint64))
        signature = [tf.TensorSpec([len(self.layout.replicas)], tf.int32), specs]

        def run(sizes: tf.Tensor, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            return self._results(tensors, sizes)

        run.__name__ = DISTRIBUTED_STEP
        function: Any = tf.function(run, input_signature=signature, autograph=False)
        return function.get_concrete_function()

    def __call__(self, tensors: Sequence[Any], sizes: Sequence[int], state: StreamState) -> Any:
        if self._checker is not None:
            self._checker.offer(tensors)
        streams = self.traced.streams
        counters = [] if streams is None else [state.counters_of(streams.names)]
        results = self._run(tf.constant(sizes), [*tensors, *counters])
        if streams is not None:
            state.advance(streams.names, results[-1])
        return repack(self.traced.structure, results)

    def inline(self, tensors: Sequence[Any], sizes: tf.Tensor, num_samples: int | None) -> Any:
        """Run the step in the graph that is being made."""
        if self._checker is not None:
            self._checker.offer_in_graph(tensors)
        results = self._results(tensors, sizes)
        if num_samples is not None:
            for output, result in zip(self.traced.graph.outputs, results, strict=True):
                if output.shape is not None:
                    shape: Any = [
                        evaluate(size, {"B": num_samples}) if symbols_of(size) <= {"B"} else None
                        for size in output.shape
                    ]
                    result.set_shape(shape)
        return repack(self.traced.structure, results)

    def plain(self, tensors: Sequence[Any], device: str) -> Any:
        with tf.device(device):
            return repack(self.traced.structure, self.traced.concrete(*tensors))

    def trace(self) -> Sequence[Any]:
        """Return the handles of its variables; see `evener.workers.late.Outline`."""
        return [variable.handle for variable in self.variables]

    def pack(self, arrays: Sequence[Any]) -> Any:
        outputs = pack_results(list(self.traced.concrete.outputs), arrays)
        return repack(self.traced.structure, outputs)

    def _results(self, tensors: Sequence[Any], sizes: tf.Tensor) -> Any:
        write_gathered(self.report.gathered)

        def first_rows() -> int | None:
            """Return how many of the first samples checks still read; None for all."""
            if self._verifier is not None:
                return None
            return 0 if self._checker is None else self._checker.num_rows

        def partitioned() -> Any:
            count = len(self.specs)
            inputs = [*tensors[:count], *self.traced.captures, *tensors[count:]]
            recorder = self._recorder
            timing = None if recorder is None else recorder.timing
            results, times = self.partitioned(inputs, sizes, timing, first_rows=first_rows)
            if recorder is not None and times is not None:
                recorder.record_step(times)
            return results

        def plain(arguments: Sequence[Any]) -> Any:
            with tf.device(self.layout.first_device):
                return self.traced.concrete(*arguments)

        if self._verifier is None:
            return partitioned()
        return self._verifier.run(plain, partitioned, tensors)


def _step_name(step: Callable[..., Any], *, trains: bool) -> str:
    """Return the name of a step: the function with its line, or the kind of step of Keras's."""
    function = inspect.unwrap(step)
    function = getattr(function, "python_function", function)
    code = getattr(function, "__code__", None)
    if code is not None and is_own(code.co_filename):
        name = code.co_name if code.co_name != "<lambda>" else "the step"
        return f"{name} ({short_path(code.co_filename)}:{code.co_firstlineno})"
    return "the training step" if trains else "a step that does not train"


def _can_run_twice(step: PreparedStep, handles: Collection[Tensor]) -> bool:
    """Return whether all that a step changes can be put back, and warn if not: ENG-087."""
    graph, streams = step.traced.graph, step.traced.streams
    effects = [f"{node.op} ({node.name})" for node in not_put_back(graph.nodes, handles)]
    # They begin anew on one device.
    effects += [name[0] for name in streams.names] if streams is not None else []
    if not effects:
        return True
    warn_at_user_line(
        "ENG-087",
        "A step cannot be verified: it would not run on one device as it runs without "
        "verification.",
        why=f"It has the operation {effects[0]}, which changes or draws from what is "
        "not a variable, so its effect cannot be undone.",
        fix="Verify a step without it; for random numbers, use tf.random.Generator or a seed of "
        "Keras's.",
    )
    return False


def not_put_back(nodes: Iterable[Node], handles: Collection[Tensor]) -> Iterator[Node]:
    """Yield the operations whose effects stay when variables are put back."""
    for node in nodes:
        if not node.has_side_effect or node.op in _HARMLESS:
            continue
        resources = [tensor for tensor in node.inputs if tensor.dtype == tf.resource]
        if any(tensor not in handles for tensor in resources):
            yield node
        elif node.bodies:
            for body in node.bodies.values():
                inner = [tensor for tensor in body.inputs if tensor.dtype == tf.resource]
                yield from not_put_back(body.nodes, inner)
        elif not resources:
            yield node


@tf.autograph.experimental.do_not_convert
def run_timed(
    run_once: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    device: str,
    recorder: ShareController,
) -> Any:
    """Run a step as a whole in the graph that is being made, and record its times if it trains.

    ::

        batch is there ──► forward, backward passes, updates ──► results and variables are there
           clock                                                   clock

    On a CPU the step waits for the first clock, or a busy host would read it late. Steps without a
    batch, steps that XLA compiles together with their caller, and steps with operations that have
    to be deterministic are not timed.
    """
    graph: Any = tf.compat.v1.get_default_graph()
    cannot_be_timed = is_deterministic() or in_xla(graph)
    arguments, batch = None, []
    if not cannot_be_timed:
        with contextlib.suppress(DataError):
            arguments = read_arguments((args, kwargs))
            pairs = zip(arguments.tensors, arguments.axes, strict=True)
            batch = [tensor for tensor, axis in pairs if axis == 0]
    if arguments is None or not batch:
        return run_once(args=args, kwargs=kwargs)
    began = clock_after(batch, device)
    if not kind_of(device).has_own_processor:
        with tf.control_dependencies([began]):
            args, kwargs = arguments.pack([*map(tf.identity, arguments.tensors)])
    first = len(graph.get_operations())
    with trained_variables() as trained:
        results = run_once(args=args, kwargs=kwargs)
    handles = {graph.capture(variable.handle).ref() for variable in trained}
    written = {
        operation: written_resources(operation) for operation in graph.get_operations()[first:]
    }
    if not any(r.ref() in handles for resources in written.values() for r in resources):
        return results
    writes = [operation for operation, resources in written.items() if resources]
    tensors = tf.nest.flatten(results, expand_composites=True)
    ended = clock_after([*filter(tf.is_tensor, tensors), *writes], device)
    with tf.device(HOST):
        span = SpanInfo(device=device_name(device), kind=STEP, replica=0)
        times = StepTimes(
            samples=tf.reshape(tf.cast(tf.shape(batch[0])[0], tf.float64), [1]),
            began=began,
            device_seconds={device: ended - began},
            spans=(span,),
            span_times=tf.stack([[began], [ended]]) if recorder.keeps_spans else None,
        )
    recorder.record_step(times)
    return results
