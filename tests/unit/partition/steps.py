"""Partitioned steps for the tests beside this file."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from evener.graph.nodes import Node
from evener.graph.trace import trace_step
from evener.partition.emit import PartitionedStep, partition_step
from evener.partition.layout import Layout
from evener.partition.tasks import StepTask

DEVICES = ("cpu:0", "cpu:1", "cpu:2")


def partitioned(
    function: Callable[..., Any],
    *shapes: Sequence[int | None],
    axes: Sequence[int | None] | None = None,
    dtype: tf.DType = tf.float32,
) -> PartitionedStep:
    """Partition a step of tensors; without `axes` the first axis counts samples."""
    specs = [tf.TensorSpec(shape, dtype) for shape in shapes]
    batch_axes = [0] * len(specs) if axes is None else axes
    traced = trace_step(function, specs, batch_axes, autograph=True)
    return partition_step(traced, Layout.of_devices(DEVICES))


def caller(step: PartitionedStep, captures: Sequence[Any] = ()) -> Callable[..., Any]:
    """Return a function of the sizes of the parts and the tensors that runs a step."""

    @tf.function(autograph=False, reduce_retracing=True)
    def called(numbers: tf.Tensor, given: list[tf.Tensor]) -> list[tf.Tensor]:
        return step([*given, *captures], numbers)[0]

    return lambda sizes, tensors: called(
        tf.constant(list(sizes)), [tf.convert_to_tensor(tensor) for tensor in tensors]
    )


def run(
    step: PartitionedStep, sizes: Sequence[int], tensors: Sequence[Any], captures: Sequence[Any]
) -> Any:
    """Run a step once on parts of these sizes."""
    return caller(step, captures)(sizes, tensors)


def tasks_of(step: PartitionedStep, op: str) -> list[StepTask]:
    return [task for task in step.partition.tasks if op in {node.op for node in task.nodes}]


def ops_in(task: StepTask) -> list[str]:
    return [node.op for node in task.nodes]


def node_of(step: PartitionedStep, op: str) -> Node:
    (node,) = (n for task in step.partition.tasks for n in task.nodes if n.op == op)
    return node


def earlier_tasks(step: PartitionedStep, task: StepTask) -> set[int]:
    """Return the ids of the tasks whose results or writes a task needs."""
    task_of = step.partition.task_of
    before = itertools.chain.from_iterable(
        [t.node for t in node.inputs] + list(node.after) for node in task.nodes
    )
    found = {id(task_of[node]) for node in before if node in task_of}
    return found - {id(task)}
