"""Partitioned step: the calls of its tasks' functions, in order."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from evener._tf_private import graphs
from evener.engine.partition.build import build_task
from evener.engine.partition.collectives import Collectives
from evener.engine.partition.function_arguments import (
    Argument,
    NumberArgument,
    SumArgument,
    TensorArgument,
)
from evener.engine.partition.functions import FunctionBuilder
from evener.engine.partition.homes import HOST
from evener.engine.partition.no_samples import branches_of
from evener.engine.partition.sizes import micro_batch_sizes
from evener.engine.partition.tasks import Partition, TaskFunction
from evener.engine.partition.tensors import COMBINE, RunTensors
from evener.engine.partition.times import Recorder, Times
from evener.engine.partition.turns import Turns
from evener.engine.partition.units import units_of
from evener.graph.dims import Size
from evener.graph.nodes import Tensor
from evener.ops.states import (
    REPLICATED,
    SUM,
    Partial,
    Sharded,
    serves,
)


class PartitionedStep:
    """Step in functions, which any graph can call.

    Args:
        partition: Step in tasks.
        keeps: Object that keeps functions alive that nodes refer to by name.

    Attributes:
        partition: Step in tasks.
        functions: Functions of the tasks, in order.
        units: Calls of the functions, in order.
    """

    def __init__(self, partition: Partition, keeps: Any = None) -> None:
        self.partition = partition
        self.functions = [build_task(partition, task, keeps) for task in partition.tasks]
        self.units = units_of(partition, self.functions)
        self._branches = [branches_of(function, partition) for function in self.functions]

    def __call__(
        self, inputs: Sequence[Any], sizes: tf.Tensor, recorder: Recorder | None = None
    ) -> list[Any]:
        """Run the step in the graph that is being built.

        Args:
            inputs: Tensors for the arguments of the traced step, captures included.
            sizes: Samples of each replica, int32 vector.
            recorder: Recorder of the time of each replica; None to measure none.

        Returns:
            Results of the step, as flat tensors.
        """
        layout = self.partition.layout
        collectives = None if layout.group is None else Collectives(layout.group)
        sizes_of_parts = micro_batch_sizes(sizes, layout)
        run = _Run(self.partition, inputs, sizes_of_parts, recorder, collectives=collectives)
        for unit in self.units:
            function = self.functions[unit.task]
            if unit.micro_batch is None:
                run.call(function)
            elif not layout.is_own(unit.micro_batch):
                run.join_for(function, unit.micro_batch)
            else:
                run.call_part(function, self._branches[unit.task], unit.micro_batch)
        run.end()
        return [run.result(tensor) for tensor in self.partition.graph.outputs]

    def run_some(
        self,
        inputs: Sequence[Any],
        part_sizes: Sequence[tf.Tensor],
        runs: Collection[int],
        given: Mapping[Tensor, Any],
        fetches: Iterable[Tensor],
    ) -> list[Any]:
        """Run some tasks in the graph that is being built, on the first parts alone.

        Args:
            inputs: Tensors for the arguments of the step; None for those that no task reads.
            part_sizes: Samples of each of the parts, int32 scalars.
            runs: Numbers of the functions that are called.
            given: Tensors of other functions that they read.
            fetches: Tensors to return, each as a whole.
        """
        run = _Run(self.partition, inputs, part_sizes, None, given)
        for unit in self.units:
            if unit.task in runs and (unit.micro_batch or 0) < len(part_sizes):
                function = dataclasses.replace(self.functions[unit.task], by_xla=False)
                if unit.micro_batch is None:
                    run.call(function)
                else:
                    run.call_part(function, None, unit.micro_batch)
        return [run.result(tensor) for tensor in fetches]


class _Run:
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
        self._turns = Turns() if self._layout.is_scheduled else None
        self._ran: dict[Any, list[tf.Operation]] = {}
        self._have_samples: dict[tuple[int, Size], tf.Tensor] = {}
        self._times = None
        if recorder is not None:
            replicas = [micro_batch.replica for micro_batch in self._layout.micro_batches]
            self._times = Times(self._tensors.sizes, replicas, recorder)
        self._of_samples = set() if recorder is None else _made_of_samples(partition)

    def call_part(
        self,
        function: TaskFunction,
        branches: tuple[FunctionBuilder, FunctionBuilder] | None,
        part: int,
    ) -> None:
        """Run a task on a part.

        Args:
            function: Function of the task.
            branches: Functions that run instead with and without samples, if they differ.
            part: Number of the part.
        """
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

    def join_for(self, function: TaskFunction, part: int) -> None:
        """Join what a task needs of all workers, on a part that another worker computes.

        So every worker has the same collectives in the same order, whichever parts are its own.
        """
        for argument in function.builder.arguments:
            if not isinstance(argument, SumArgument):
                self._argument(argument, part, HOST)

    def call(self, function: TaskFunction) -> None:
        """Run a task that is computed once, on its device."""
        task = function.task
        before = [op for task in function.after for op in self._ran.get(task, ())]
        arguments = [self._argument(a, None, task.where) for a in function.builder.arguments]
        graph: Any = tf.compat.v1.get_default_graph()
        first = len(graph.get_operations())
        with tf.control_dependencies(before), tf.device(task.where):
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
        self._tensors.wholes.update(zip(task.fetches, results, strict=True))

    def end(self) -> None:
        """Hand the times of the parts over, if they were measured."""
        if self._times is not None:
            self._times.hand_over()

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
        if self._times is None or not waits:
            return call(arguments)
        return self._times.timed(part, call, arguments, waits)

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
        if self._turns is None or task is None or task.is_parts or task.where == device:
            return value
        return self._turns.fetch(device, value, task.where)


def _made_of_samples(partition: Partition) -> set[Tensor]:
    """Return the tensors that depend on the batch, and not on variables alone."""
    states = partition.sharding.states
    found = {tensor for tensor in partition.graph.inputs if isinstance(states[tensor], Sharded)}
    for node in partition.graph:
        if any(tensor in found for tensor in node.inputs):
            found.update(node.outputs)
    return found
