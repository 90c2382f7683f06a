"""The partitioned step.

A traced step goes in, and calls of its tasks' functions, in order, come out.

    traced ──► sharded ──► staged ──► partition in tasks ──► partitioned step

Tasks get their arguments, run, and hand on their results. In a pipeline, control dependencies
order the calls of each device, and weights that another device owns are fetched for each turn.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from evener._tf_private import graphs
from evener.devices.names import canonical_device
from evener.graph.dims import Size, symbols_of
from evener.graph.draws import DRAWS, has_hidden_draws
from evener.graph.nodes import Tensor
from evener.graph.ops.states import REPLICATED, SUM, Partial, Sharded, serves
from evener.graph.trace import TracedStep
from evener.partition.build import branches_of, build_task
from evener.partition.collectives import Collectives, checksum_of, closing_tasks, written_by
from evener.partition.functions import (
    Argument,
    FunctionBuilder,
    NumberArgument,
    SumArgument,
    TensorArgument,
)
from evener.partition.layout import Layout, Stages, WorkerGroup
from evener.partition.order import Unit, units_of
from evener.partition.shard import shard_step
from evener.partition.stage import Scopes, stage_step
from evener.partition.tasks import HOST, Partition, Task, TaskFunction, make_tasks
from evener.partition.tensors import COMBINE, RunTensors, micro_batch_sizes, rows_of_parts
from evener.partition.times import Note, Recorder, Spans, Times

# Control dependencies that order the calls of a pipeline on each device, and its weight fetches.
#
# TensorFlow runs operations in any order that their inputs allow. A pipeline needs the order of its
# schedule, so each call on a device waits for the call before it on the same device.
#
# A *turn* is a run of consecutive calls of the same stages on a device. If another device or the
# host
# owns weights of a stage, the device copies (fetches) them for each turn anew, and frees them after
# the turn. The copy for a turn waits until the turn before the previous one has ended::
#
#     turn               |    0    |    1    |    2    |    3    |
#     stage that runs    |    0    |    2    |    0    |    2    |
#     weights copied for |  0, 1   |    2    |    3    |   ...      (turns)
#
# So a copy runs while the device computes the previous turn, and a device holds the fetched weights
# of at most two turns.


class _Device:
    """Current turn and last call of a device."""

    def __init__(self) -> None:
        self.last: list[tf.Operation] = []
        self.stages: Stages | None = None
        self.fetch_after: list[tf.Operation] = []
        self.fetch_next_after: list[tf.Operation] = []
        self.fetched: dict[int, Any] = {}


class Turns:
    """Order of the calls on every device of one step, while its graph is built."""

    def __init__(self) -> None:
        self._devices: dict[str, _Device] = {}

    def begin(self, device: str, task: Task) -> list[tf.Operation]:
        """Return the operations that the next call on a device waits for."""
        state = self._devices.setdefault(device, _Device())
        if task.place.stages != state.stages:
            state.stages = task.place.stages
            state.fetch_after = state.fetch_next_after
            state.fetch_next_after = state.last
            state.fetched = {}
        return list(state.last)

    def end(self, device: str, done: Sequence[tf.Operation]) -> None:
        """Record the results of a call, which the next call on the device waits for."""
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


# Calls of one run of a step: tasks get their arguments, run, and hand on their results.


class StepRun:
    """Calls of one run of a step."""

    def __init__(
        self,
        partition: Partition,
        inputs: Sequence[Any],
        part_sizes: Sequence[tf.Tensor],
        recorder: Recorder | None,
        given: Mapping[Tensor, Any] | None = None,
        *,
        collectives: Collectives | None = None,
    ) -> None:
        self._partition = partition
        self._layout = partition.layout
        by_argument = zip(partition.graph.inputs, inputs, strict=True)
        self._tensors = RunTensors(
            partition, part_sizes, {**(given or {}), **dict(by_argument)}, collectives
        )
        self.after: list[tf.Operation] = []
        self._collectives = collectives
        self._turns = Turns() if self._layout.is_scheduled else None
        self._ran: dict[Any, list[tf.Operation]] = {}
        self._have_samples: dict[tuple[int, Size], tf.Tensor] = {}
        self._times = None
        self._recorder = recorder
        keeps_spans = recorder is not None and recorder.keeps_spans
        self._spans = Spans(partition) if keeps_spans else None
        if recorder is not None:
            replicas = [micro_batch.replica for micro_batch in self._layout.micro_batches]
            self._times = Times(
                self._tensors.sizes, replicas, recorder, some=collectives is not None
            )
        self._of_samples = set() if recorder is None else _made_of_samples(partition)

    def call_part(
        self,
        function: TaskFunction,
        branches: tuple[FunctionBuilder, FunctionBuilder] | None,
        part: int,
    ) -> None:
        """Run a task on a part."""
        task = function.task
        device = self._layout.device(part, task.place.stages)
        before = [op for task in function.after for op in self._ran.get(task, ())]
        if self._turns is not None:
            before += self._turns.begin(device, task)
        # Outside of the device and the order of the call: weights of other devices come early.
        arguments = [self._argument(a, part, device) for a in function.builder.arguments]
        has_samples = None if branches is None else self._has_samples(part, task.place.rows)
        with tf.control_dependencies(before), tf.device(device):
            results = self._call_part(function, branches, part, arguments, has_samples)
        done = [self._end_of(results[0], branches is not None, device)] if results else []
        for tensor, result in zip(task.fetches, results, strict=True):
            state = self._partition.sharding.states[tensor]
            no_parts = [None] * len(self._tensors.sizes)
            self._tensors.parts.setdefault((tensor, state), no_parts)[part] = result
            # Do not accumulate partial sums that parts read.
            is_read = state == SUM and tensor not in self._partition.summed
            if self._turns is not None and isinstance(state, Partial) and not is_read:
                # Added up at once, so that at most the sum and the next term are in memory.
                earlier = self._tensors.sums.get((tensor, device))
                if earlier is not None and tensor not in function.added_inside:
                    with tf.device(device):
                        result = COMBINE[state.combine]([earlier, result])
                    done.append(result.op)
                self._tensors.sums[tensor, device] = result
        if self._turns is not None:
            self._turns.end(device, done)

    def join_for(self, functions: Sequence[TaskFunction], part: int | None) -> None:
        """Join what tasks need of all workers, before they run.

        Also for a part that another worker computes: so every worker has the same exchanges in the
        same order, whichever parts are its own.
        """
        arguments = [
            argument
            for function in functions
            for argument in function.builder.arguments
            if not isinstance(argument, SumArgument)
        ]
        joined = [a for a in arguments if self._is_joined(a, part)]
        self._tensors.combine_across(a.tensor for a in joined if isinstance(a, TensorArgument))
        for argument in joined:
            if isinstance(argument, NumberArgument):
                self._tensors.number(argument.name, part)
                continue
            assert isinstance(argument, TensorArgument)
            if part is None or argument.state == REPLICATED:
                self._tensors.whole(argument.tensor, HOST)
            else:
                self._tensors.parts_of(argument.tensor, argument.state)
        for function in functions:
            if part is not None and function.needs_samples:
                self._tensors.rows(function.task.place.rows)

    def join(self, tensors: Iterable[Tensor]) -> None:
        """Join tensors of the step that parts have computed."""
        arguments = [TensorArgument(tensor, REPLICATED) for tensor in tensors]
        joined = [a.tensor for a in arguments if self._is_joined(a, None)]
        self._tensors.combine_across(joined)
        for tensor in joined:
            self._tensors.whole(tensor, HOST)

    def _is_joined(self, argument: Argument, part: int | None) -> bool:
        """Return whether an argument is made of what the parts of all workers have computed."""
        if isinstance(argument, NumberArgument):
            return self._tensors.can_number(argument.name)
        if not isinstance(argument, TensorArgument):
            return False
        tensor, state = argument.tensor, argument.state
        held = self._partition.sharding.states.get(tensor)
        if tensor.is_sizes and held is not None:
            names = {name for size in tensor.value or () for name in symbols_of(size)}
            return all(map(self._tensors.can_number, names))
        if held is None or (tensor, held) not in self._tensors.parts:
            return False
        return part is None or not serves(held, state)

    def call(self, function: TaskFunction) -> None:
        """Run a task that is computed once, on its device."""
        task = function.task
        before = [op for task in function.after for op in self._ran.get(task, ())] + self.after
        all_draw = self._collectives if task.place.role == DRAWS else None
        if all_draw is not None:
            # What a kernel has drawn in a step that breaks off is lost, unless it was handed on.
            before.append(all_draw.so_far())
        where = self._layout.own_device(task.where)
        arguments = [self._argument(a, None, where) for a in function.builder.arguments]
        if self._collectives is not None:
            arguments = _hidden(arguments, where)
        graph: Any = tf.compat.v1.get_default_graph()
        first = len(graph.get_operations())
        with tf.control_dependencies(before), tf.device(where):
            results = graphs.call(
                function.builder.function,
                arguments,
                function.builder.outputs,
                stateful=function.is_stateful,
                by_xla=function.by_xla,
            )
            operation = graph.get_operations()[-1] if len(graph.get_operations()) > first else None
        if operation is not None:
            self._ran[task] = [operation]
            if function.is_read_only and function.is_stateful:
                graphs.mark_read_only(operation)
        if all_draw is not None and results:
            results = all_draw.draw(results)
        if self._spans is not None:
            ends = [*results, *([operation] if operation is not None else [])]
            self._spans.note(function)
            self._spans.time_once(function, where, [*arguments, *before], ends)
        if self._collectives is not None:
            results = _hidden(results, where)
        self._tensors.wholes.update(zip(task.fetches, results, strict=True))

    @property
    def read_whole(self) -> set[Tensor]:
        """Tensors that were read as a whole so far, arguments among them."""
        return self._tensors.read_whole

    def end(self) -> None:
        """Hand the times of the parts over, if they were measured."""
        if self._times is not None:
            self._times.hand_over()
        if self._spans is not None and self._recorder is not None:
            self._spans.hand_over(self._recorder)

    def result(self, tensor: Tensor) -> Any:
        """Return an output of the step; outputs in parts are joined on the host."""
        is_joined = tensor not in self._tensors.wholes and tensor.node.op != "Const"
        value = self._tensors.whole(tensor, HOST if is_joined else "")
        static = tensor.node.static_shapes[tensor.index]
        if static is not None and tensor.dtype not in (tf.resource, tf.variant):
            value = tf.identity(value)
            value.set_shape(static)
        return value

    def _call_part(
        self,
        function: TaskFunction,
        branches: tuple[FunctionBuilder, FunctionBuilder] | None,
        part: int,
        arguments: list[Any],
        has_samples: Any,
    ) -> list[Any]:
        builder = function.builder

        def call(given: list[Any]) -> list[Any]:
            if branches is None:
                return graphs.call(
                    builder.function,
                    given,
                    builder.outputs,
                    stateful=False,
                    by_xla=function.by_xla,
                )
            with_samples, no_samples = branches
            return graphs.call_if(
                has_samples,
                with_samples.function,
                no_samples.function,
                given,
                builder.outputs,
            )

        waits = [
            index
            for index, argument in enumerate(builder.arguments)
            if isinstance(argument, TensorArgument) and argument.tensor in self._of_samples
        ]
        if self._spans is not None:
            self._spans.note(function)
        if self._times is None or not waits:
            return call(arguments)
        note = self._noting(function, part)
        return self._times.timed(part, call, arguments, waits, note)

    def _noting(self, function: TaskFunction, part: int) -> Note | None:
        if self._spans is None:
            return None
        device = self._layout.device(part, function.task.place.stages)
        return functools.partial(self._spans.add, function, part, device)

    def _end_of(self, result: Any, is_branch: bool, device: str) -> tf.Operation:
        """Return the operation that ends a call.

        TensorFlow inlines conditions: an operation that waits for one then waits for the choice of
        the branch only, and an operation that reads a result waits for the branch.
        """
        if not is_branch or self._turns is None:
            return result.op
        with tf.device(device):
            return tf.identity(result).op

    def _has_samples(self, part: int, rows: Size) -> Any:
        """Return whether a part has some of the rows, as a tensor that waits for nothing.

        Created outside of the control dependencies of calls; otherwise TensorFlow prunes the
        ordering edge of a call that reads it.
        """
        key = (part, rows)
        if key not in self._have_samples:
            with tf.device(HOST):
                self._have_samples[key] = self._tensors.rows(rows)[0][part] > 0
        return self._have_samples[key]

    def _argument(self, argument: Argument, part: int | None, device: str) -> Any:
        if isinstance(argument, NumberArgument):
            return self._tensors.number(argument.name, part)
        if isinstance(argument, SumArgument):
            return self._sum_so_far(argument.tensor, device)
        assert isinstance(argument, TensorArgument), argument
        tensor, state = argument.tensor, argument.state
        held = self._partition.sharding.states[tensor]
        if part is not None and (tensor, held) in self._tensors.parts and serves(held, state):
            return self._tensors.parts[tensor, held][part]
        if part is None or state == REPLICATED:
            value = self._tensors.whole(tensor, device)
            return value if part is None else self._fetched(tensor, value, device)
        return self._tensors.parts_of(tensor, state)[part]

    def _sum_so_far(self, tensor: Tensor, device: str) -> Any:
        key = (tensor, device)
        if key not in self._tensors.sums:
            with tf.device(device), tf.control_dependencies(None):
                shape: Any = tensor.shape
                self._tensors.sums[key] = tf.zeros(shape, tensor.dtype)
        return self._tensors.sums[key]

    def _fetched(self, tensor: Tensor, value: Any, device: str) -> Any:
        """Return a tensor that another device holds, fetched in time for the turn of a stage."""
        task = self._partition.task_of.get(tensor.node)
        if self._turns is None or task is None or task.is_parts:
            return value
        owner = self._layout.own_device(task.where)
        return value if owner == device else self._turns.fetch(device, value, owner)


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


def _made_of_samples(partition: Partition) -> set[Tensor]:
    """Return the tensors that depend on the batch, and not on variables alone."""
    states = partition.sharding.states
    found = {tensor for tensor in partition.graph.inputs if isinstance(states[tensor], Sharded)}
    for node in partition.graph:
        if any(tensor in found for tensor in node.inputs):
            found.update(node.outputs)
    return found


# Partitioned step: the calls of its tasks' functions, in order.


class PartitionedStep:
    """Step in functions, which any graph can call."""

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
        recorder: Recorder | None = None,
        *,
        first_rows: Callable[[], int | None] = lambda: 0,
    ) -> list[Any]:
        """Run the step in the graph that is being built."""
        layout = self.partition.layout
        sizes_of_parts = micro_batch_sizes(sizes, layout)
        if layout.group is not None:
            return self._run_with_others(layout.group, inputs, sizes_of_parts, recorder, first_rows)
        run = StepRun(self.partition, inputs, sizes_of_parts, recorder)
        for unit in self.units:
            self._call(run, unit)
        run.end()
        return [run.result(tensor) for tensor in self.partition.graph.outputs]

    def _run_with_others(
        self,
        group: WorkerGroup,
        inputs: Sequence[Any],
        sizes: Sequence[tf.Tensor],
        recorder: Recorder | None,
        first_rows: Callable[[], int | None],
    ) -> list[Any]:
        """Run the step with other workers: variables are written behind the last exchange.

        So a step that another worker's death breaks off can be computed again. Variables that are
        written before are kept by the group.
        """
        collectives = Collectives(group, checksum_of(self.partition))
        given = dict(zip(self.partition.graph.inputs, inputs, strict=True))
        states = self.partition.sharding.states
        own = [*filter(self.partition.layout.is_own, range(len(sizes)))]

        def needed_rows(part_sizes: Any) -> Any:
            needed, first = rows_of_parts(part_sizes, own), first_rows()
            needed[: None if run.read_whole & self._arguments else first] = True
            return needed

        collectives.begin(
            [given[tensor] for tensor in self.written_early],
            [given[tensor] for tensor in given if isinstance(states[tensor], Sharded)],
            is_repeatable=not has_hidden_draws(self.partition.graph),
            sizes=sizes,
            needed_rows=needed_rows,
        )
        run = StepRun(self.partition, inputs, sizes, recorder, collectives=collectives)
        for unit in self.units:
            if unit.task not in self._closing:
                self._call(run, unit)
        run.join_for([self.functions[number] for number in sorted(self._closing)], None)
        run.join(self.partition.graph.outputs)
        run.after = [collectives.commit()]
        for unit in self.units:
            if unit.task in self._closing:
                self._call(run, unit)
        with tf.control_dependencies(run.after):
            run.end()
        return [run.result(tensor) for tensor in self.partition.graph.outputs]

    def _call(self, run: StepRun, unit: Unit) -> None:
        function = self.functions[unit.task]
        if self.partition.layout.group is not None:
            run.join_for([function], unit.micro_batch)
        if unit.micro_batch is None:
            run.call(function)
        elif self.partition.layout.is_own(unit.micro_batch):
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
        run = StepRun(self.partition, inputs, part_sizes, None, given)
        for unit in self.units:
            if unit.task in runs and (unit.micro_batch or 0) < len(part_sizes):
                function = dataclasses.replace(self.functions[unit.task], by_xla=False)
                if unit.micro_batch is None:
                    run.call(function)
                else:
                    run.call_part(function, None, unit.micro_batch)
        return [run.result(tensor) for tensor in fetches]


# The road of a step: from a traced step to one that runs on several devices.
#
# ::
#
#     traced ──► sharded ──► staged ──► partition in tasks ──► partitioned step


def partition_step(
    traced: TracedStep,
    layout: Layout,
    variables: Iterable[str] = (),
    owner_of_handle: Callable[[Any], str | None] = lambda _: None,
) -> PartitionedStep:
    """Partition a traced step over devices."""
    scopes, owner_of = Scopes(traced.scopes), _owners(traced, owner_of_handle)
    if layout.is_scheduled:
        scopes.check(layout, variables)
    # Micro-batches and statistics of devices are made of samples alone.
    splits_rows = not layout.is_scheduled and layout.batch_norm == "synchronized"
    sharded = shard_step(traced, splits_rows=splits_rows)
    staged = stage_step(sharded, layout, scopes)
    partition = make_tasks(staged, owner_of)
    others = [traced.streams.counters] if traced.streams else []
    captures = [*traced.capture_inputs, *others]
    return PartitionedStep(partition, keeps=traced.concrete, captures=captures)


def _owners(
    traced: TracedStep, owner_of_handle: Callable[[Any], str | None]
) -> Callable[[Tensor], str]:
    """Return a function that returns the device of a variable, by the argument of its handle."""
    captured = dict(zip(traced.capture_inputs, traced.captures, strict=True))

    def owner_of(tensor: Tensor) -> str:
        value = captured.get(tensor)
        known = None if value is None else owner_of_handle(value)
        return canonical_device(known or getattr(value, "device", "")) or HOST

    return owner_of
