"""Bytes that layers save for their backward pass, pass to later layers, and need temporarily.

::

    layer 0   forward ──a──> layer 1   forward ──b──> loss
                 c                        d
              backward <──────────     backward <──────

    a and b cross the cuts after their layers; those of a, b, c, d that a backward pass reads are
    saved, and count for the layer that has computed them
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from evener.engine.flops.sizes import bytes_per_sample, num_bytes
from evener.engine.memory.temporaries import buffer_of
from evener.engine.partition.tasks import Task
from evener.graph.nodes import Tensor
from evener.ops.states import Numbers, Partial
from evener.profiler.fused import FusedCall, sums_of, workspace
from evener.profiler.split import SplitStep


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBytes:
    """Memory of a layer, in bytes.

    Attributes:
        activations: Bytes per sample of its results that a backward pass reads.
        boundary: Bytes per sample of the results of this and earlier layers that later layers read.
        workspace: Peak temporary bytes per sample of one of its tasks.
        fused_workspace: Peak temporary bytes per sample excluding saved activations, in a fused
            call.
        fused_gradients: Most bytes by which its gradients exceed its weights already freed, in a
            fused call.
        gradients: Bytes of the results of its backward pass that are sums over the samples.
        update: Peak temporary bytes of its update.
    """

    activations: float
    boundary: float
    workspace: float
    fused_workspace: float
    fused_gradients: int
    gradients: int
    update: int


def bytes_of_layers(split: SplitStep) -> list[LayerBytes]:
    """Return the bytes of every layer."""
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
    """Yield the tensors of other tasks that a task reads; a tensor may occur repeatedly."""
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
    """Whether the update of a layer depends on the gradients of other layers.

    Clipping by the global norm does: no weight is updated before all gradients are computed.
    """
    of_layers = {task: {k} for k, layer in enumerate(split.layers) for task in layer.once}
    for task in split.rest:
        read = (of_layers.get(before, set[int]()) for before in _tasks_before(split, task))
        of_layers[task] = set[int]().union(*read)
    return any(
        of_layers.get(before, set[int]()) - {number}
        for number, layer in enumerate(split.layers)
        for task in layer.once
        for before in _tasks_before(split, task)
    )


def _tasks_before(split: SplitStep, task: Task) -> set[Task]:
    """Return the tasks whose results a task reads."""
    task_of = split.partition.task_of
    found = {task_of.get(tensor.node) for node in task.nodes for tensor in node.inputs}
    return {other for other in found if other is not None and other is not task}


def _fixed(tensor: Tensor) -> float:
    # A variable read shares the memory of the variable.
    return 0.0 if tensor.node.op == "ReadVariableOp" else num_bytes(tensor, 1)
