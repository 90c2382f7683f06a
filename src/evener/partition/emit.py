"""The partitioned step: a traced step goes in, and calls of its tasks' functions come out.

::

    traced ──► sharded ──► staged ──► partition in tasks ──► partitioned step ──► calls, in order

Tasks get their arguments, run, and hand on their results. In a pipeline, control dependencies order
the calls of each device: TensorFlow runs operations in any order that their inputs allow, and a
pipeline needs that of its schedule.

A *turn* is a run of consecutive calls of the same stages on a device. If another device or the host
owns weights of a stage, the device copies (fetches) them for each turn anew, and frees them after
the turn. The copy for a turn waits until the turn before the previous one has ended::

    turn               |    0    |    1    |    2    |    3    |
    stage that runs    |    0    |    2    |    0    |    2    |
    weights copied for |  0, 1   |    2    |    3    |   ...      (turns)

So a copy runs while the device computes the previous turn, and a device holds the fetched weights
of at most two turns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from evener._tf_private import graphs
from evener.devices.names import canonical_device
from evener.graph.dims import Size, symbols_of
from evener.graph.draws import DRAWS, has_hidden_draws
from evener.graph.functions import (
    Argument,
    FunctionBuilder,
    NumberArgument,
    SumArgument,
    TensorArgument,
)
from evener.graph.nodes import Tensor
from evener.graph.ops.states import REPLICATED, SUM, Partial, Sharded, serves
from evener.graph.trace import TracedStep
from evener.partition.build import branches_of, build_task
from evener.partition.collectives import (
    Collectives,
    TensorFlowCollectives,
    checksum_of,
    closing_tasks,
    written_by,
)
from evener.partition.layout import HOST, Layout, Stages
from evener.partition.order import Unit, units_of
from evener.partition.shard import shard_step
from evener.partition.stage import Scopes, stage_step
from evener.partition.tasks import Partition, StepTask, TaskFunction, make_tasks
from evener.partition.tensors import COMBINE, RunTensors, micro_batch_sizes, rows_of_parts
from evener.partition.times import StepClock, StepTimes, Timing


def partition_step(
    traced: TracedStep,
    layout: Layout,
    variables: Iterable[str] = (),
    owner_of_handle: Callable[[Any], str | None] = lambda _: None,
) -> PartitionedStep:
    scopes = Scopes(traced.scopes)
    if layout.is_scheduled:
        scopes.check(layout, variables)
    # Micro-batches and statistics of devices are made of samples alone.
    splits_rows = not layout.is_scheduled and layout.batch_norm == "synchronized"
    sharded = shard_step(traced, splits_rows=splits_rows)
    staged = stage_step(sharded, layout, scopes)
    owners = {
        tensor: canonical_device(owner_of_handle(value) or getattr(value, "device", "")) or HOST
        for tensor, value in zip(traced.capture_inputs, traced.captures, strict=True)
    }
    partition = make_tasks(staged, owners)
    counters = [traced.streams.counters] if traced.streams else []
    captures = [*traced.capture_inputs, *counters]
    return PartitionedStep(partition, keeps=traced.concrete, captures=captures)


class PartitionedStep:
    def __init__(
        self, partition: Partition, keeps: Any = None, *, captures: Collection[Tensor] = ()
    ) -> None:
        self.partition = partition
        self._arguments = set(partition.graph.inputs) - set(captures)
        self.functions = [build_task(partition, task, keeps) for task in partition.tasks]
        self.units = units_of(partition, self.functions)
        self._branches = [branches_of(function, partition) for function in self.functions]
        self._closing = closing_tasks(partition, self.functions)
        self.written_early = written_by(self.functions, self._closing)
        self.written = written_by(self.functions)

    def __call__(
        self,
        inputs: Sequence[Any],
        sizes: tf.Tensor,
        timing: Timing | None = None,
        *,
        first_rows: Callable[[], int | None] = lambda: 0,
    ) -> tuple[list[Any], StepTimes | None]:
        """Run the step in the graph that is being built.

        With other workers, variables are written behind the last exchange: so a step that another
        worker's death breaks off can be computed again. Variables that are written before are kept
        by the group.
        """
        partition, layout = self.partition, self.partition.layout
        part_sizes = micro_batch_sizes(sizes, layout)
        arguments = dict(zip(partition.graph.inputs, inputs, strict=True))
        collectives = None
        if layout.group is not None:
            group, step, server = layout.group, checksum_of(partition), layout.group.collectives
            # The carrier that the workers have agreed on.
            collectives = (
                Collectives(group, step)
                if server is None
                else TensorFlowCollectives(group, step, server)
            )
        clock = None if timing is None else StepClock(partition, part_sizes, timing)
        run = StepRun(partition, arguments, part_sizes, clock, collectives=collectives)
        if collectives is not None:
            own = [*filter(layout.is_own, range(len(part_sizes)))]

            def needed_rows(sizes_of_parts: Any) -> Any:
                needed, first = rows_of_parts(sizes_of_parts, own), first_rows()
                reads_all = run.tensors.read_whole & self._arguments
                needed[: None if reads_all else first] = True
                return needed

            states = partition.sharding.states
            collectives.begin(
                [arguments[tensor] for tensor in self.written_early],
                [arguments[tensor] for tensor in arguments if isinstance(states[tensor], Sharded)],
                is_repeatable=not has_hidden_draws(partition.graph),
                sizes=part_sizes,
                needed_rows=needed_rows,
            )
        closing = self._closing if collectives is not None else frozenset[int]()
        for unit in self.units:
            if unit.task not in closing:
                self._call(run, unit)
        if collectives is not None:
            run.join_for([self.functions[number] for number in sorted(closing)], None)
            run.join(partition.graph.outputs)
            run.after = [collectives.commit()]
        for unit in self.units:
            if unit.task in closing:
                self._call(run, unit)
        times = None if clock is None else clock.times(run.after)
        return [run.result(tensor) for tensor in partition.graph.outputs], times

    def _call(self, run: StepRun, unit: Unit) -> None:
        function, layout = self.functions[unit.task], self.partition.layout
        if layout.group is not None:
            run.join_for([function], unit.micro_batch)
        if unit.micro_batch is None:
            run.call(function)
        elif layout.is_own(unit.micro_batch):
            run.call_part(function, self._branches[unit.task], unit.micro_batch)

    def run_some(
        self,
        inputs: Sequence[Any],
        part_sizes: Sequence[tf.Tensor],
        runs: Collection[int],
        given: Mapping[Tensor, Any],
        fetches: Iterable[Tensor],
    ) -> list[Any]:
        """Run some tasks in the graph that is being built, on the first parts alone."""
        arguments = dict(zip(self.partition.graph.inputs, inputs, strict=True))
        run = StepRun(self.partition, {**given, **arguments}, part_sizes, None)
        for unit in self.units:
            if unit.task in runs and (unit.micro_batch or 0) < len(part_sizes):
                function = dataclasses.replace(self.functions[unit.task], by_xla=False)
                if unit.micro_batch is None:
                    run.call(function)
                else:
                    run.call_part(function, None, unit.micro_batch)
        return [run.result(tensor) for tensor in fetches]


class StepRun:
    def __init__(
        self,
        partition: Partition,
        given: Mapping[Tensor, Any],
        part_sizes: Sequence[tf.Tensor],
        clock: StepClock | None,
        *,
        collectives: Collectives | None = None,
    ) -> None:
        self._partition, self._layout = partition, partition.layout
        self.tensors = RunTensors(partition, part_sizes, given, collectives)
        self.after: list[tf.Operation] = []
        self._collectives = collectives
        self._turns = Turns() if partition.layout.is_scheduled else None
        self._clock = clock
        self._ran: dict[StepTask, list[tf.Operation]] = {}
        self._have_samples: dict[tuple[int, Size], tf.Tensor] = {}

    def call_part(
        self,
        function: TaskFunction,
        branches: tuple[FunctionBuilder, FunctionBuilder] | None,
        part: int,
    ) -> None:
        task, builder, tensors = function.task, function.builder, self.tensors
        device = self._layout.device(part, task.place.stages)
        before = [op for task in function.after for op in self._ran.get(task, ())]
        if self._turns is not None:
            before += self._turns.begin(device, task)
        # Outside of the device and the order of the call: weights of other devices come early.
        arguments = [self._argument(a, part, device) for a in builder.arguments]
        has_samples: Any = None if branches is None else self._has_samples(part, task.place.rows)
        with tf.control_dependencies(before), tf.device(device):
            begin = None
            if self._clock is not None:
                begin, arguments = self._clock.start(function, part, arguments)
            if branches is None:
                results = graphs.call(
                    builder.function,
                    arguments,
                    builder.outputs,
                    stateful=False,
                    by_xla=function.by_xla,
                )
            else:
                with_samples, no_samples = branches
                results = graphs.call_if(
                    has_samples,
                    with_samples.function,
                    no_samples.function,
                    arguments,
                    builder.outputs,
                )
            if self._clock is not None:
                self._clock.stop(function, part, begin, results)
        done: list[tf.Operation] = []
        if results and self._turns is not None:
            # TensorFlow inlines conditions: an operation that waits for one then waits for the
            # choice of the branch only, and one that reads a result waits for the branch.
            with tf.device(device):
                end = results[0] if branches is None else tf.identity(results[0])
            done.append(end.op)
        for tensor, result in zip(task.fetches, results, strict=True):
            state = self._partition.sharding.states[tensor]
            tensors.parts.setdefault((tensor, state), [None] * len(tensors.sizes))[part] = result
            # Do not accumulate partial sums that parts read.
            is_read = state == SUM and tensor not in self._partition.summed
            if self._turns is not None and isinstance(state, Partial) and not is_read:
                # Added up at once, so that at most the sum and the next term are in memory.
                earlier = tensors.sums.get((tensor, device))
                if earlier is not None and tensor not in function.added_inside:
                    with tf.device(device):
                        result = COMBINE[state.combine]([earlier, result])
                    done.append(result.op)
                tensors.sums[tensor, device] = result
        if self._turns is not None:
            self._turns.end(device, done)

    def call(self, function: TaskFunction) -> None:
        task, builder = function.task, function.builder
        before = [op for task in function.after for op in self._ran.get(task, ())] + self.after
        all_draw = self._collectives if task.place.role == DRAWS else None
        if all_draw is not None:
            # What a kernel has drawn in a step that breaks off is lost, unless it was handed on.
            before.append(all_draw.so_far())
        where = self._layout.own_device(task.where)
        arguments = [self._argument(a, None, where) for a in builder.arguments]
        if self._collectives is not None:
            arguments = _hidden(arguments, where)
        graph: Any = tf.compat.v1.get_default_graph()
        first = len(graph.get_operations())
        with tf.control_dependencies(before), tf.device(where):
            results = graphs.call(
                builder.function,
                arguments,
                builder.outputs,
                stateful=function.is_stateful,
                by_xla=function.by_xla,
            )
        calls = graph.get_operations()[first:][-1:]
        for operation in calls:
            self._ran[task] = [operation]
            if function.is_read_only and function.is_stateful:
                graphs.mark_read_only(operation)
        if all_draw is not None and results:
            results = all_draw.draw(results)
        if self._clock is not None:
            awaited, ends = [*arguments, *before], [*results, *calls]
            self._clock.time_once(function, where, awaited, ends)
        if self._collectives is not None:
            results = _hidden(results, where)
        self.tensors.wholes.update(zip(task.fetches, results, strict=True))

    def join_for(self, functions: Sequence[TaskFunction], part: int | None) -> None:
        """Join what tasks need of all workers, before they run.

        Also for a part that another worker computes: so every worker has the same exchanges in the
        same order, whichever parts are its own.
        """
        arguments = [a for function in functions for a in function.builder.arguments]
        joined = [a for a in arguments if self._is_joined(a, part)]
        self.tensors.combine_across(a.tensor for a in joined if isinstance(a, TensorArgument))
        for argument in joined:
            if isinstance(argument, NumberArgument):
                self.tensors.number(argument.name, part)
                continue
            assert isinstance(argument, TensorArgument)
            if part is None or argument.state == REPLICATED:
                self.tensors.whole(argument.tensor, HOST)
            else:
                self.tensors.parts_of(argument.tensor, argument.state)
        for function in functions:
            if part is not None and function.needs_samples:
                self.tensors.rows(function.task.place.rows)

    def join(self, tensors: Iterable[Tensor]) -> None:
        """Join tensors of the step that parts have computed."""
        arguments = [TensorArgument(tensor, REPLICATED) for tensor in tensors]
        joined = [a.tensor for a in arguments if self._is_joined(a, None)]
        self.tensors.combine_across(joined)
        for tensor in joined:
            self.tensors.whole(tensor, HOST)

    def _is_joined(self, argument: Argument, part: int | None) -> bool:
        """Return whether an argument is made of what the parts of all workers have computed."""
        if isinstance(argument, NumberArgument):
            return self.tensors.can_number(argument.name)
        if not isinstance(argument, TensorArgument):
            return False
        tensor, state = argument.tensor, argument.state
        held = self._partition.sharding.states.get(tensor)
        if tensor.is_sizes and held is not None:
            return all(map(self.tensors.can_number, symbols_of(*(tensor.value or ()))))
        if held is None or (tensor, held) not in self.tensors.parts:
            return False
        return part is None or not serves(held, state)

    def result(self, tensor: Tensor) -> Any:
        """Return an output of the step; outputs in parts are joined on the host."""
        is_joined = tensor not in self.tensors.wholes and tensor.node.op != "Const"
        value = self.tensors.whole(tensor, HOST if is_joined else "")
        static = tensor.node.static_shapes[tensor.index]
        if static is not None and tensor.dtype not in (tf.resource, tf.variant):
            value = tf.identity(value)
            value.set_shape(static)
        return value

    def _has_samples(self, part: int, rows: Size) -> Any:
        """Return whether a part has some of the rows, as a tensor that waits for nothing.

        Created outside of the control dependencies of calls; otherwise TensorFlow prunes the
        ordering edge of a call that reads it.
        """
        key = (part, rows)
        if key not in self._have_samples:
            with tf.device(HOST):
                self._have_samples[key] = self.tensors.rows(rows)[0][part] > 0
        return self._have_samples[key]

    def _argument(self, argument: Argument, part: int | None, device: str) -> Any:
        tensors = self.tensors
        if isinstance(argument, NumberArgument):
            return tensors.number(argument.name, part)
        if isinstance(argument, SumArgument):
            key, shape = (argument.tensor, device), argument.tensor.shape
            if key not in tensors.sums:
                with tf.device(device), tf.control_dependencies(None):
                    tensors.sums[key] = tf.zeros(shape, argument.tensor.dtype)  # pyright: ignore[reportArgumentType]
            return tensors.sums[key]
        assert isinstance(argument, TensorArgument), argument
        tensor, state = argument.tensor, argument.state
        held = self._partition.sharding.states[tensor]
        if part is not None and (tensor, held) in tensors.parts and serves(held, state):
            return tensors.parts[tensor, held][part]
        if part is not None and state != REPLICATED:
            return tensors.parts_of(tensor, state)[part]
        value = tensors.whole(tensor, device)
        task = self._partition.task_of.get(tensor.node)
        if part is None or self._turns is None or task is None or task.is_parts:
            return value
        # Fetched in time for the turn of a stage, if another device holds it.
        owner = self._layout.own_device(task.where)
        return value if owner == device else self._turns.fetch(device, value, owner)


class _Device:
    def __init__(self) -> None:
        self.last: list[tf.Operation] = []  # Results of its last call
        self.stages: Stages | None = None  # Stages whose turn it is
        # Operations that copies of weights for the current turn wait for, and for the next one
        self.fetch_after: list[tf.Operation] = []
        self.fetch_next_after: list[tf.Operation] = []
        # Weights that are copied for the current turn, by the identity of the original
        self.fetched: dict[int, Any] = {}


class Turns:
    """Order of the calls on every device of one step, while its graph is built."""

    def __init__(self) -> None:
        self._devices: dict[str, _Device] = {}

    def begin(self, device: str, task: StepTask) -> list[tf.Operation]:
        """Return the operations that the next call on a device waits for."""
        state = self._devices.setdefault(device, _Device())
        if task.place.stages != state.stages:
            state.stages = task.place.stages
            state.fetch_after = state.fetch_next_after
            state.fetch_next_after = state.last
            state.fetched = {}
        return list(state.last)

    def end(self, device: str, done: Sequence[tf.Operation]) -> None:
        if done:
            self._devices[device].last = list(done)

    def fetch(self, device: str, value: Any, owner: str) -> Any:
        """Return the copy of weights for the current turn; in the first two, the original."""
        state = self._devices[device]
        if not state.fetch_after:
            return value  # Nothing to wait for: TensorFlow copies it when it can.
        if id(value) not in state.fetched:
            with tf.device(owner), tf.control_dependencies(state.fetch_after):
                state.fetched[id(value)] = tf.identity(value)
        return state.fetched[id(value)]


def _hidden(tensors: Sequence[Any], device: str) -> list[Any]:
    """Return tensors behind operations that TensorFlow's graph optimizer neither folds nor skips.

    The optimizer changes the order of products and sums of neighbours on one device, and with it
    the last bits. What is on one device for one worker is on two for another; so the optimizer must
    not see what is around a task.
    """
    with tf.device(device):
        return [
            tf.raw_ops.PlaceholderWithDefault(input=tensor, shape=tensor.shape)
            if tensor.dtype.is_floating or tensor.dtype.is_complex
            else tensor
            for tensor in tensors
        ]
