"""What layers keep for their backward pass, hand on to later layers, and need while they run.

::

    layer 0   forward ──a──> layer 1   forward ──b──> loss
                 c                        d
              backward <──────────     backward <──────

    a and b cross the cuts behind their layers; of a, b, c, d those are kept that a backward pass
    reads, and they count for the layer that has computed them
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from evener.engine.flops.sizes import bytes_per_sample, num_bytes
from evener.engine.memory.temporaries import buffer_of
from evener.engine.partition.tasks import Task
from evener.engine.sharding.states import Numbers, Partial
from evener.engine.trace.graph import Tensor
from evener.profiler.fused import FusedCall, sums_of, workspace
from evener.profiler.split import SplitStep


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBytes:
    """What a layer needs, in bytes.

    Attributes:
        activations: Per sample: its results that a backward pass reads.
        boundary: Per sample: what crosses from the layers before and itself to the layers behind.
        workspace: Per sample: the most that is there only while one of its tasks runs.
        fused_workspace: Per sample: the most that is there beside what is kept, in one call with
            the layers around it.
        fused_gradients: The most by which its gradients exceed its weights that are no longer read,
            in such a call.
        gradients: What its backward pass hands over as sums over the samples.
        update: The most that is there only while its weights are updated.
    """

    activations: float
    boundary: float
    workspace: float
    fused_workspace: float
    fused_gradients: int
    gradients: int
    update: int


def bytes_of_layers(split: SplitStep) -> list[LayerBytes]:
    """Return what every layer keeps, hands on and needs while it runs."""
    makers: dict[Task, int] = {}
    for number, layer in enumerate(split.layers):
        makers.update(dict.fromkeys(layer.forward, number))
    count = len(split.layers)
    kept: list[set[Tensor]] = [set() for _ in range(count)]
    crossing: list[set[Tensor]] = [set() for _ in range(count)]
    for number, layer in enumerate(split.layers):
        for task in (*layer.backward, *layer.once):
            for tensor in given(split, task):
                buffer = buffer_of(tensor)
                made_by = split.partition.task_of.get(buffer.node)
                maker = None if made_by is None else makers.get(made_by)
                if maker is not None:
                    kept[maker].add(buffer)
        for task in layer.forward:
            for tensor in given(split, task):
                maker = makers.get(split.partition.task_of[tensor.node])
                if maker is not None:
                    for cut in range(min(maker, number), max(maker, number)):
                        crossing[cut].add(tensor)
    fused = FusedCall(split)
    return [
        LayerBytes(
            activations=sum(map(bytes_per_sample, kept[number])),
            boundary=sum(map(bytes_per_sample, crossing[number])),
            workspace=max(
                (workspace(task, bytes_per_sample) for task in (*layer.forward, *layer.backward)),
                default=0.0,
            ),
            fused_workspace=fused.workspace(number),
            fused_gradients=fused.gradients(number),
            gradients=sum(num_bytes(tensor, 1) for tensor in sums_of(split, layer)),
            update=round(max((workspace(task, _fixed) for task in layer.once), default=0.0)),
        )
        for number, layer in enumerate(split.layers)
    ]


def given(split: SplitStep, task: Task) -> Iterator[Tensor]:
    """Yield the tensors of other tasks that a task reads; some of them more than once."""
    partition = split.partition
    for node in task.nodes:
        for tensor, request in partition.requests(node):
            if isinstance(request, Numbers) or tensor.is_sizes:
                continue
            maker = partition.task_of.get(tensor.node)
            is_sum = isinstance(partition.sharding.states[tensor], Partial)
            if maker is not None and maker is not task and not is_sum:
                yield tensor


def updates_wait(split: SplitStep) -> bool:
    """Whether the update of a layer needs what is computed of other layers' gradients.

    So it is with clipping by the norm of all gradients: none is updated before all are there.
    """
    of_layers = {task: {k} for k, layer in enumerate(split.layers) for task in layer.once}
    for task in split.rest:
        read = (of_layers.get(one, set[int]()) for one in _tasks_before(split, task))
        of_layers[task] = set[int]().union(*read)
    return any(
        of_layers.get(one, set[int]()) - {number}
        for number, layer in enumerate(split.layers)
        for task in layer.once
        for one in _tasks_before(split, task)
    )


def _tasks_before(split: SplitStep, task: Task) -> set[Task]:
    """Return the tasks that make what a task reads."""
    task_of = split.partition.task_of
    found = {task_of.get(tensor.node) for node in task.nodes for tensor in node.inputs}
    return {one for one in found if one is not None and one is not task}


def _fixed(tensor: Tensor) -> float:
    # What is read of a variable is the memory of the variable.
    return 0.0 if tensor.node.op == "ReadVariableOp" else num_bytes(tensor, 1)
