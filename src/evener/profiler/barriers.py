"""Barriers of a step: reductions over the global batch in the middle of the model.

::

    layer             depth of its tasks              barriers
    conv              forward 0      backward 4       0, 0
    batch_norm        forward 0 1 2  backward 2 3 4   2, 2     mean, variance; their gradients
    dense             forward 2      backward 2       0, 0

The depth of a task is the number of barriers before it: of waits for all micro-batches, by the task
itself or by the tasks that it depends on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from evener.engine.flops.sizes import bytes_per_sample
from evener.engine.memory.temporaries import buffer_of
from evener.engine.partition.tasks import Task
from evener.graph.nodes import Tensor
from evener.ops.states import Numbers, serves
from evener.profiler.activation_bytes import given
from evener.profiler.split import SplitStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Barriers:
    """Barriers of one layer.

    Attributes:
        forward: Number of barriers in its forward pass.
        backward: Number of barriers in its backward pass.
        waiting_bytes: Most bytes per sample that are alive across one of them, excluding saved
            activations.
    """

    forward: int
    backward: int
    waiting_bytes: float


def barriers_of(split: SplitStep) -> list[Barriers]:
    """Return the barriers of each layer."""
    depths = _depths(split)
    waiting = _waiting(split, depths)
    now = 0

    def passed(tasks: Sequence[Task]) -> range:
        nonlocal now
        before, now = now, max([now, *(depths[task] for task in tasks)])
        return range(before + 1, now + 1)

    forward = [passed(layer.forward) for layer in split.layers]
    backward = [passed(layer.backward) for layer in reversed(split.layers)]
    return [
        Barriers(
            forward=len(ahead),
            backward=len(back),
            waiting_bytes=max((waiting.get(depth, 0.0) for depth in (*ahead, *back)), default=0.0),
        )
        for ahead, back in zip(forward, reversed(backward), strict=True)
    ]


def _waiting(split: SplitStep, depths: Mapping[Task, int]) -> dict[int, float]:
    """Return the bytes per sample that are alive across each barrier, by its depth."""
    ahead = {task for layer in split.layers for task in layer.forward}
    until: dict[Tensor, int] = {}
    kept: set[Tensor] = set()
    for task, depth in depths.items():
        if task.is_parts:
            for tensor in given(split, task):
                buffer = buffer_of(tensor)
                maker = split.partition.task_of.get(buffer.node)
                if maker is not None and maker.is_parts:
                    until[buffer] = max(depth, until.get(buffer, 0))
                    if maker in ahead and task not in ahead:
                        kept.add(buffer)
    found: dict[int, float] = {}
    for tensor, last in until.items():
        if tensor not in kept:
            for depth in range(depths[split.partition.task_of[tensor.node]] + 1, last + 1):
                found[depth] = found.get(depth, 0.0) + bytes_per_sample(tensor)
    return found


def _depths(split: SplitStep) -> dict[Task, int]:
    depths: dict[Task, int] = {}
    for task in split.partition.tasks:
        found = 0
        for other, waits in _needed(split, task):
            if other in depths:
                found = max(found, depths[other] + waits)
        depths[task] = found
    return depths


def _needed(split: SplitStep, task: Task) -> Iterator[tuple[Task, bool]]:
    """Yield the tasks that a task reads, and whether it waits for all their micro-batches."""
    partition = split.partition
    for node in task.nodes:
        for tensor, request in partition.requests(node):
            if isinstance(request, Numbers) or tensor.is_sizes:
                continue
            other = partition.task_of.get(tensor.node)
            if other is not None and other is not task:
                held = partition.sharding.states[tensor]
                is_same = task.is_parts and serves(held, request)
                yield other, other.is_parts and not is_same
