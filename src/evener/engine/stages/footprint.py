"""What a step needs on every device, counted from the functions of its stages.

    variables    weights, optimizer slots and other state that the device owns
    borrowed     weights of other owners that it computes with
    gradients    of the weights of its stages, and sums for what it owns
    activations  what forward passes keep for backward passes, at the worst moment

It is what must be there, not all that is: the results of single operations come on top.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from evener.engine.ownership import device_name
from evener.engine.stages.driver import CutReplica, StagedFunctions
from evener.engine.stages.functions import StageFunctions
from evener.plan import Replica, TaskKind, schedule_for, split_batch, timeline

if TYPE_CHECKING:
    from evener.engine.step import Steps

# What gives its input on, under another shape or name, and takes no memory.
_ALIASES = frozenset({
    "EnsureShape", "ExpandDims", "Identity", "PreventGradient", "Reshape", "Squeeze",
    "StopGradient",
})  # fmt: skip
# A backward pass is about two forward passes.
_SECONDS: dict[TaskKind, float] = {"forward": 1.0, "backward": 2.0, "weights": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What a step needs on one device, in bytes."""

    variables: int = 0
    borrowed: int = 0
    gradients: int = 0
    activations: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return self.variables + self.borrowed + self.gradients + self.activations


def footprints(steps: Steps, num_samples: int) -> dict[str, Footprint]:
    """Return what one training step needs on every device.

    Args:
        steps: Of a model whose plan has stages or micro-batches, traced for training. For
            others only the variables are known.
        num_samples: Samples of the global batch.
    """
    program = steps.program
    strategy = program.strategy
    needs = {name: Footprint(variables=n) for name, n in strategy.ledger.owned_bytes().items()}
    if not isinstance(steps.functions, StagedFunctions):
        return needs
    trainable = program.replica.trainable
    samples = split_batch(num_samples, program.plan.shares)
    for replica, count in zip(program.plan.replicas, samples, strict=True):
        cut = steps.functions.made_for_training(replica)
        if cut is None:
            continue
        size = math.ceil(count / replica.num_micro_batches)
        kept = [kept_bytes(cut, stage, size) for stage in cut.stages]
        for device, most in activations(replica, kept).items():
            _add(needs, device, activations=most)
        for device, borrowed in _borrowed(cut, replica, trainable).items():
            _add(needs, device, borrowed=borrowed)
        for device, gradients in _gradients(cut, replica, trainable).items():
            _add(needs, device, gradients=gradients)
    return needs


def kept_bytes(cut: CutReplica, stage: StageFunctions, micro_batch_size: int) -> int:
    """Return what one micro-batch keeps in one stage from its forward to its backward pass.

    Args:
        cut: The replica.
        stage: One of its stages.
        micro_batch_size: Samples of the micro-batch; stands in for every size that is
            unknown, so sequences of unknown length are not counted right.
    """
    weights = {id(tensor) for tensor in cut.trace.inputs[: cut.num_static]}
    given = set() if stage.gradient is None else set(stage.gradient.operations)
    feeds = [tensor for function in stage.of_backward for tensor in function.feeds]
    roots = {
        id(root): root
        for tensor in feeds
        if id(tensor) not in weights and tensor.op not in given
        for root in [_root(tensor)]
    }
    return sum(_num_bytes(root, micro_batch_size) for root in roots.values())


def activations(replica: Replica, kept: Sequence[int]) -> dict[str, int]:
    """Return the most bytes of activations that are alive at once on each device.

    Args:
        replica: Says the schedule.
        kept: Bytes that one micro-batch keeps in each stage.
    """
    changes: dict[str, list[tuple[float, int, int]]] = {s.device: [] for s in replica.stages}
    schedule = schedule_for(replica)
    last = "weights" if replica.schedule == "zero_bubble" else "backward"
    for device, events in zip(schedule.devices, timeline(schedule, _SECONDS).events, strict=True):
        for task, begin, end in events:
            if task.kind == "forward":
                changes[device].append((begin, 1, kept[task.stage]))
            elif task.kind == last:
                changes[device].append((end, 0, -kept[task.stage]))
    return {device: _most(sorted(of_device)) for device, of_device in changes.items()}


def _most(changes: Iterable[tuple[float, int, int]]) -> int:
    alive = most = 0
    for _, _, change in changes:
        alive += change
        most = max(most, alive)
    return most


def _borrowed(cut: CutReplica, replica: Replica, trainable: Sequence[Any]) -> dict[str, int]:
    """Return the bytes of the largest loan of each device."""
    most: dict[str, int] = {}
    for stage, given in zip(cut.stages, replica.stages, strict=True):
        total = sum(
            _variable_bytes(trainable[k])
            for k in cut.weights_of(stage)
            if _owner(trainable[k]) != given.device
        )
        most[given.device] = max(most.get(given.device, 0), total)
    return most


def _gradients(cut: CutReplica, replica: Replica, trainable: Sequence[Any]) -> dict[str, int]:
    """Return the bytes of gradients: made where the stage is, summed where the owner is."""
    total: dict[str, int] = {}
    again: dict[str, int] = {}
    for stage, given in zip(cut.stages, replica.stages, strict=True):
        made = 0
        for position, gradient in () if stage.gradient is None else stage.gradient.weights:
            if not isinstance(gradient, tf.Tensor):
                continue
            num_bytes = _variable_bytes(trainable[position])
            made += num_bytes
            owner = _owner(trainable[position])
            if owner != given.device:
                total[owner] = total.get(owner, 0) + num_bytes
        total[given.device] = total.get(given.device, 0) + made
        # While a stage adds to its sum, the old one and the new one are there.
        again[given.device] = max(again.get(given.device, 0), made)
    if replica.num_micro_batches > 1:
        return {device: n + again.get(device, 0) for device, n in total.items()}
    return total


def _add(needs: dict[str, Footprint], device: str, **more: int) -> None:
    before = needs.get(device, Footprint())
    sums = {name: getattr(before, name) + value for name, value in more.items()}
    needs[device] = dataclasses.replace(before, **sums)


def _root(tensor: tf.Tensor) -> tf.Tensor:
    """Return the tensor whose memory a tensor shares."""
    while tensor.op.type in _ALIASES:
        tensor = tensor.op.inputs[0]
    return tensor


def _num_bytes(tensor: tf.Tensor, micro_batch_size: int) -> int:
    if tensor.shape.rank is None:
        return 0
    return tensor.dtype.size * math.prod(
        micro_batch_size if n is None else n for n in tensor.shape.as_list()
    )


def _owner(variable: Any) -> str:
    return device_name(variable.value.device)


def _variable_bytes(variable: Any) -> int:
    return tf.as_dtype(variable.dtype).size * math.prod(variable.shape)
