"""Obstacles that keep XLA from compiling a task of a function with ``jit_compile=True``.

XLA compiles the whole function on one device. Between tasks it can pass neither tensor lists nor
sizes that depend on the data, and what one branch of a condition keeps for its gradient
has no shape in the other. A task that needs one of these runs without XLA.
"""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

from evener.engine.partition.tasks import Partition, Task
from evener.engine.trace.functional import CONDITIONS, LOOPS
from evener.graph.nodes import Node, Tensor


def find_obstacle(partition: Partition, task: Task, given: Iterable[Tensor]) -> str:
    """Return why XLA cannot compile a task, or an empty text.

    Args:
        partition: Step in tasks.
        task: Task.
        given: Tensors that it is given.
    """
    for tensor in (*given, *task.fetches):
        if tensor.dtype == tf.variant:
            return f"{tensor.node.name} is a tensor list that other tasks use"
        if tensor.node.op in CONDITIONS:
            return f"{tensor.node.name} keeps what its gradient needs of one branch"
    for node in task.nodes:
        handles = (tensor for tensor in node.inputs if tensor.dtype == tf.resource)
        if len({partition.owner_of(handle) for handle in handles}) > 1:
            return f"{node.name} uses variables of several devices"
        if any(inner.op == "FakeParam" for body in node.bodies.values() for inner in body):
            # Its shape has the size of the batch, which is not known at tracing time.
            return f"{node.name} keeps what its gradient needs of one branch"
        if node in partition.sized_by_data:
            return f"a size of {node.name} depends on the data"
    return ""


def draws_numbers(node: Node) -> bool:
    """Return whether a node may draw random numbers, of which XLA has others than TensorFlow."""
    if node.op in LOOPS | CONDITIONS and not node.bodies:
        return True  # bodies that change state are not read
    inside = (inner for body in node.bodies.values() for inner in body)
    return "Random" in node.op or any(map(draws_numbers, inside))
