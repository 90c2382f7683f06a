"""Partitioned steps for the tests beside this file: of tensors, and of Keras models by plans."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf
from keras import layers

from evener.graph.nodes import Node
from evener.graph.trace import TracedStep, trace_step
from evener.partition.emit import PartitionedStep, partition_step
from evener.partition.layout import Layout
from evener.partition.tasks import Partition, StepTask
from evener.plan import Plan

DEVICES = ("cpu:0", "cpu:1", "cpu:2")
WIDTH = 8
NAMES = ("a0", "a1", "b0", "b1")


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


def dense(name: str, width: int = WIDTH) -> keras.Layer:
    return layers.Dense(width, activation="tanh", name=name)


def stack(names: Iterable[str] = NAMES) -> keras.Model:
    """Return dense layers in line."""
    return keras.Sequential([keras.Input((WIDTH,)), *map(dense, names)])


def training(model: keras.Model) -> Callable[[tf.Tensor], Any]:
    """Return a step that trains a model to return what it is given."""

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - x))
        variables = [weight.value for weight in model.trainable_variables]
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(0.1 * gradient)
        return loss

    return step


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step with what it was made of."""

    traced: TracedStep
    partitioned: PartitionedStep

    @property
    def partition(self) -> Partition:
        return self.partitioned.partition

    @property
    def parts(self) -> list[StepTask]:
        return [task for task in self.partition.tasks if task.is_parts]

    def nodes(self, layer: str, op: str = "") -> list[Node]:
        """Return the nodes of a layer, and of its gradients, by their names."""
        # The scope of a second call has a number.
        inside = re.compile("(^|/)" + "".join(rf"{name}(_\d+)?/" for name in layer.split("/")))
        found = [n for n in self.partition.task_of if inside.search(name_of(n))]
        return [n for n in found if n.op == op] if op else found

    def task(self, layer: str, op: str, *, backward: bool = False) -> StepTask:
        """Return the one task with such nodes of a layer."""
        found = [n for n in self.nodes(layer, op) if is_gradient(n) == backward]
        (task,) = {self.partition.task_of[node] for node in found}
        return task

    def graph(self, num_samples: int | None = None) -> tf.Graph:
        """Return the graph of a function that runs the step on a batch."""
        replicas = len(self.partition.layout.replicas)
        specs = [tf.TensorSpec([replicas], tf.int32), tf.TensorSpec([num_samples, WIDTH])]
        return self._function().get_concrete_function(*specs).graph

    def run(self, sizes: Sequence[int], x: Any) -> list[Any]:
        """Run the step; replicas have so many samples."""
        return self._function()(tf.constant(list(sizes)), tf.convert_to_tensor(x))

    def _function(self) -> Any:
        def called(sizes: tf.Tensor, x: tf.Tensor) -> list[Any]:
            return self.partitioned([x, *self.traced.captures], sizes)[0]

        return tf.function(called, autograph=False)


def name_of(node: Node) -> str:
    return node.source[1] if node.source is not None else node.name


def is_gradient(node: Node) -> bool:
    return "gradient_tape/" in name_of(node)


def step_of(
    plan: Plan, model: keras.Model | None = None, function: Callable[..., Any] | None = None
) -> Step:
    """Partition the training step of a model, or another step, by a plan."""
    made = function or training(model or stack())
    traced = trace_step(made, [tf.TensorSpec([None, WIDTH])], [0], autograph=True, with_layers=True)
    return Step(traced=traced, partitioned=partition_step(traced, Layout.of(plan)))


def calls(graph: Any) -> list[Any]:
    """Return the calls of tasks of parts, in the order in which they were made."""
    called = [op for op in graph.get_operations() if op.type.endswith("PartitionedCall")]
    return [op for op in called if "parts" in op.get_attr("f").name]


def waits_for(op: Any) -> set[Any]:
    """Return what an operation waits for, by its data or by a control dependency."""
    return {*(tensor.op for tensor in op.inputs), *op.control_inputs}


def ancestors(op: Any) -> set[Any]:
    """Return all that has to run before an operation."""
    waiting, seen = [op], set()
    while waiting:
        before = waits_for(waiting.pop()) - seen
        seen |= before
        waiting.extend(before)
    return seen
