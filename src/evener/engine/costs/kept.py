"""What layers keep for their backward pass, hand on to later layers, and need while they run.

::

    layer 0   forward ──a──> layer 1   forward ──b──> loss
                 c                        d
              backward <──────────     backward <──────

    a and b cross the cuts behind their layers; of a, b, c, d those are kept that a backward pass
    reads, and they count for the layer that has computed them
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import tensorflow as tf

from evener.engine.costs.sizes import bytes_per_sample
from evener.engine.costs.split import SplitStep
from evener.engine.memory.temporaries import IN_PLACE, buffer_of
from evener.engine.partition.tasks import Task
from evener.engine.sharding.states import Numbers, Partial
from evener.engine.trace.graph import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBytes:
    """What a layer needs for each sample, in bytes.

    Attributes:
        activations: Its results that a backward pass reads.
        boundary: What crosses from the layers before and itself to the layers behind.
        workspace: The most that is there only while one of its tasks runs.
    """

    activations: float
    boundary: float
    workspace: float


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
    return [
        LayerBytes(
            activations=sum(map(bytes_per_sample, kept[number])),
            boundary=sum(map(bytes_per_sample, crossing[number])),
            workspace=max(
                (_workspace(split, task) for task in (*layer.forward, *layer.backward)),
                default=0.0,
            ),
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


def _workspace(split: SplitStep, task: Task) -> float:
    """Return the most that is in memory in a task beside what it is given and hands over."""
    handed_over = {buffer_of(tensor) for tensor in task.fetches}
    last: dict[Tensor, int] = {}
    for place, node in enumerate(task.nodes):
        for tensor in node.inputs:
            last[buffer_of(tensor)] = place
    now = most = 0.0
    living: dict[Tensor, float] = {}
    for place, node in enumerate(task.nodes):
        read = {buffer_of(tensor) for tensor in node.inputs}
        ended = sum(living.pop(one, 0.0) for one in read if last[one] <= place)
        if node.op in IN_PLACE:
            now, ended = now - ended, 0.0
        for tensor in _made(node.outputs, handed_over):
            living[tensor] = bytes_per_sample(tensor)
            now += living[tensor]
        most = max(most, now)
        unread = [one for one in node.outputs if one not in last]
        now -= ended + sum(living.pop(one, 0.0) for one in unread)
    return most


def _made(outputs: Sequence[Tensor], handed_over: set[Tensor]) -> Iterator[Tensor]:
    for tensor in outputs:
        is_new = buffer_of(tensor) is tensor and not tensor.is_sizes
        if is_new and tensor not in handed_over and tensor.dtype != tf.variant:
            yield tensor
