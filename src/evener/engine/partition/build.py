"""The functions of tasks, made of the step's own nodes."""

from __future__ import annotations

import math
from typing import Any

from evener.engine.partition.functions import FunctionBuilder, SumArgument, TensorArgument
from evener.engine.partition.nested import add_functional, copy_functional, lowered
from evener.engine.partition.tasks import Partition, Task, TaskFunction
from evener.engine.partition.values import Values
from evener.engine.partition.xla import find_obstacle
from evener.engine.trace.functional import CONDITIONS, LOOPS
from evener.graph.nodes import Node, Tensor
from evener.ops.states import SUM

LARGE = 1 << 18
"""Bytes from which a gradient is added up behind the call that gives it."""


def build_task(partition: Partition, task: Task, keeps: Any) -> TaskFunction:
    """Make the function of a task, which keeps what its nodes refer to."""
    name = "_".join(filter(None, ["parts" if task.is_parts else "once", task.place.role]))
    builder = FunctionBuilder(name, inference=partition.inference)
    builder.may_be_on_cpu = partition.layout.may_be_on_cpu
    if task.is_parts and partition.layout.is_scheduled:
        # The order of calls is lost where TensorFlow puts bodies in their place.
        builder.stay_whole()
    references: dict[Tensor, str] = {}
    names: dict[Node, str] = {}
    values = Values(partition.sharding, partition.inference, builder, references)
    for node in task.nodes:
        builder.origin = node.source
        gates = [references[t] for t in partition.staged.gates.get(node, ()) if t in references]
        builder.waits = [gate.partition(":")[0] for gate in gates]
        decision = partition.sharding.decisions.get(node)
        inputs = [values.get(tensor, request) for tensor, request in partition.requests(node)]
        if decision is not None and decision.lower is not None:
            outputs = list(decision.lower(builder, node, inputs))
        elif decision is not None and decision.bodies:
            outputs = list(add_functional(builder, node, inputs, decision))
        elif node.bodies:
            outputs = list(copy_functional(builder, node, inputs))
        else:
            after = [names[n] for n in node.after if n in names]
            is_functional = node.op in LOOPS | CONDITIONS
            attrs = lowered(builder, node.attrs) if is_functional and node.xla else node.attrs
            outputs = builder.copy(node.op, node.name, inputs, attrs, after=after)
        if node.is_stateful:
            names[node] = builder.last_name
        references.update(zip(node.outputs, outputs, strict=True))
    added_inside = frozenset(t for t in task.fetches if is_added_inside(partition, t))
    for tensor in task.fetches:
        reference = references[tensor]
        if tensor in added_inside:
            so_far = builder.argument(SumArgument(tensor), tensor.dtype)
            reference = builder.op("AddV2", [so_far, reference], {"T": tensor.dtype})[0]
        builder.output(reference, tensor.dtype)
    obstacle = ""
    if task.place.by_xla:
        given = [one.tensor for one in builder.arguments if isinstance(one, TensorArgument)]
        obstacle = find_obstacle(partition, task, given)
        if not obstacle:
            builder.stay_whole()
    stateful = [node for node in task.nodes if node.is_stateful]
    for node in stateful:
        # Reads too: where the call is inlined, what has to come after it waits for these alone.
        builder.keep(names[node])
    builder.register(keeps)
    after = {partition.task_of.get(one) for node in task.nodes for one in node.after}
    decisions = [partition.sharding.decisions.get(node) for node in task.nodes]
    return TaskFunction(
        task=task,
        builder=builder,
        is_stateful=bool(stateful),
        is_read_only=not any(node.has_side_effect for node in stateful),
        needs_samples=any(d is not None and d.needs_samples for d in decisions),
        after=frozenset(one for one in after if one is not None and one is not task),
        added_inside=added_inside,
        by_xla=task.place.by_xla and not obstacle,
        obstacle=obstacle,
    )


def is_added_inside(partition: Partition, tensor: Tensor) -> bool:
    """Return whether a device adds a tensor up within its calls, from micro-batch to micro-batch.

    For small gradients: a step has hundreds of them, and an addition of each for every
    micro-batch would make the graph of the step large. A large one is added up behind the call,
    where it can be freed at once.
    """
    if max(one.num_micro_batches for one in partition.layout.replicas) == 1:
        return False
    shape, state = tensor.shape, partition.sharding.states[tensor]
    if state != SUM or shape is None or not tensor.dtype.is_floating:
        return False
    count = math.prod(size for size in shape if isinstance(size, int))
    is_small = all(isinstance(size, int) for size in shape) and count * tensor.dtype.size < LARGE
    return is_small and tensor in partition.summed
