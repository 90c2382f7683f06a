"""Partitioned step: the calls of its tasks' functions, in order."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from evener.engine.partition.build import build_task
from evener.engine.partition.closing import checksum_of, closing_tasks, written_by
from evener.engine.partition.collectives import Collectives
from evener.engine.partition.no_samples import branches_of
from evener.engine.partition.sizes import micro_batch_sizes, rows_of_parts
from evener.engine.partition.step_run import StepRun
from evener.engine.partition.tasks import Partition
from evener.engine.partition.times import Recorder
from evener.engine.partition.units import units_of
from evener.engine.pipeline.layout import WorkerGroup
from evener.engine.pipeline.order import Unit
from evener.engine.trace.draws import has_hidden_draws
from evener.graph.nodes import Tensor
from evener.ops.states import (
    Sharded,
)


class PartitionedStep:
    """Step in functions, which any graph can call.

    Args:
        partition: Step in tasks.
        keeps: Object that keeps functions alive that nodes refer to by name.
        captures: Inputs of the traced step that are not its arguments.

    Attributes:
        partition: Step in tasks.
        functions: Functions of the tasks, in order.
        units: Calls of the functions, in order.
        written: Resources that the step may write.
        written_early: Resources that are written before the last exchange with other workers.
    """

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
        """Run the step in the graph that is being built.

        Args:
            inputs: Tensors for the arguments of the traced step, captures included.
            sizes: Samples of each replica, int32 vector.
            recorder: Recorder of the time of each replica; None to measure none.
            first_rows: Function that returns how many of the first samples others read than the
                parts, whenever the step runs; None for all samples.

        Returns:
            Results of the step, as flat tensors.
        """
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
        """Run some tasks in the graph that is being built, on the first parts alone.

        Args:
            inputs: Tensors for the arguments of the step; None for those that no task reads.
            part_sizes: Samples of each of the parts, int32 scalars.
            runs: Numbers of the functions that are called.
            given: Tensors of other functions that they read.
            fetches: Tensors to return, each as a whole.
        """
        run = StepRun(self.partition, inputs, part_sizes, None, given)
        for unit in self.units:
            if unit.task in runs and (unit.micro_batch or 0) < len(part_sizes):
                function = dataclasses.replace(self.functions[unit.task], by_xla=False)
                if unit.micro_batch is None:
                    run.call(function)
                else:
                    run.call_part(function, None, unit.micro_batch)
        return [run.result(tensor) for tensor in fetches]
