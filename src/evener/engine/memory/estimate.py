"""What a step needs on every device, counted from what its tasks hand over.

::

    variables    weights, optimizer slots and other state that the device owns
    fetched      weights of other owners: of the stage that computes, and of the next one
    gradients    partial sums that wait for their owner, and the next ones to be added
    activations  what else tasks hand to later ones, and samples

The figures of a device are those of one moment, its worst. What kernels need while they run comes
on top.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import tensorflow as tf

from evener.devices.names import device_name
from evener.engine.memory.temporaries import numbers_of, shape_in_part, temporaries
from evener.engine.partition.emit import PartitionedStep
from evener.engine.partition.functions import TensorArgument
from evener.engine.partition.tasks import Task
from evener.engine.partition.tensors import element_dtype
from evener.engine.pipeline.order import Unit
from evener.graph.dims import Size, evaluate
from evener.graph.nodes import Node, Tensor
from evener.ops.states import Partial, PerPart, Sharded
from evener.plan import Replica, split_batch

Kind = Literal["fetched", "gradients", "activations"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """What a step needs on one device at its worst moment, in bytes.

    Attributes:
        variables: Weights, optimizer slots and other state that the device owns.
        fetched: Weights of other owners.
        gradients: Partial sums that wait for their owner.
        activations: What tasks hand to later ones, and samples.
    """

    variables: int = 0
    fetched: int = 0
    gradients: int = 0
    activations: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return self.variables + self.fetched + self.gradients + self.activations


class Moment(NamedTuple):
    """A moment of a device in a step.

    Attributes:
        call: The number of the device's call.
        place: The place of a node in the call's task, from 0; -1 as the call begins.
    """

    call: int
    place: int = -1


_LAST = 2**31
"""The place after all nodes of a call."""


class LiveRange(NamedTuple):
    """A tensor in the memory of a device.

    Attributes:
        device: TensorFlow's name of the device.
        kind: What it is counted as.
        begin: When it is made, or the begin of the first call that needs it.
        end: The last moment when it is there.
        shape: With the symbols of the step; ``b`` is the samples of its micro-batch.
        num_bytes: Of one element.
        micro_batch: The number of its micro-batch; None for what all micro-batches share.
    """

    device: str
    kind: Kind
    begin: Moment
    end: Moment
    shape: tuple[Size, ...]
    num_bytes: int
    micro_batch: int | None


def live_ranges_of(step: PartitionedStep) -> list[LiveRange]:
    """Return what the calls of a step keep in memory, on which device and how long."""
    return list(_Reader(step).read())


def estimate_memory(
    live_ranges: Sequence[LiveRange],
    replicas: Sequence[Replica],
    num_samples: int,
    owned: Mapping[str, int],
) -> dict[str, MemoryEstimate]:
    """Return what a step needs on every device.

    Args:
        live_ranges: Of the step.
        replicas: Of the plan.
        num_samples: Samples of the global batch.
        owned: The bytes of the variables of every device, by names such as ``"gpu:0"``.

    Returns:
        By names of devices. A size that the data alone decides counts as 1.
    """
    shares = split_batch(num_samples, [replica.share for replica in replicas])
    sizes = [
        size
        for share, replica in zip(shares, replicas, strict=True)
        for size in split_batch(share, [1.0] * replica.num_micro_batches)
    ]
    by_device: dict[str, list[LiveRange]] = defaultdict(list)
    for one in live_ranges:
        by_device[device_name(one.device)].append(one)
    needs = {name: MemoryEstimate(variables=num_bytes) for name, num_bytes in owned.items()}
    for name, of_device in by_device.items():
        worst = worst_moment(of_device, sizes, num_samples)
        needs[name] = dataclasses.replace(worst, variables=owned.get(name, 0))
    return needs


def worst_moment(
    live_ranges: Iterable[LiveRange], sizes: Sequence[int], num_samples: int
) -> MemoryEstimate:
    """Return what is in the memory of a device when that is the most, besides variables.

    Args:
        live_ranges: Of one device.
        sizes: The samples of each micro-batch, of all replicas.
        num_samples: Samples of the global batch.
    """
    counts: dict[tuple[tuple[Size, ...], int], int] = {}
    changes: list[tuple[Moment, int, Kind, int]] = []
    for one in live_ranges:
        samples = num_samples if one.micro_batch is None else sizes[one.micro_batch]
        if (one.shape, samples) not in counts:
            counts[one.shape, samples] = num_elements(one.shape, samples, num_samples)
        num_bytes = counts[one.shape, samples] * one.num_bytes
        changes.append((one.begin, 1, one.kind, num_bytes))
        # Before what begins at the next place.
        changes.append((Moment(one.end.call, one.end.place + 1), 0, one.kind, -num_bytes))
    now: dict[Kind, int] = {"fetched": 0, "gradients": 0, "activations": 0}
    worst = dict(now)
    for _, _, kind, num_bytes in sorted(changes):
        now[kind] += num_bytes
        if sum(now.values()) > sum(worst.values()):
            worst = dict(now)
    return MemoryEstimate(**worst)


def num_elements(shape: Sequence[Size], samples: int, num_samples: int) -> int:
    """Return the elements of a tensor; a size that the data alone decides counts as 1.

    Args:
        shape: With the symbols of the step.
        samples: Samples of its micro-batch.
        num_samples: Samples of the global batch.
    """
    values = numbers_of(shape, samples, num_samples)
    return math.prod(int(evaluate(size, values)) for size in shape)


class _Reader:
    """Reads the live ranges of what a step keeps.

    Args:
        step: The step.
    """

    def __init__(self, step: PartitionedStep) -> None:
        self._partition = step.partition
        self._functions = step.functions
        self._number_of = {one.task: number for number, one in enumerate(step.functions)}
        self._units = step.units
        self._places: dict[Task, dict[Node, int]] = {}
        # For every device its calls so far, and the call of each unit.
        self._calls: dict[str, int] = defaultdict(int)
        self._call_of: dict[Unit, int] = {}
        self._turn_of: dict[Unit, int] = {}
        self._turns: dict[str, list[range]] = defaultdict(list)

    def read(self) -> Iterator[LiveRange]:
        """Yield all live ranges."""
        self._number_calls()
        users: dict[tuple[Tensor, int | None], list[Unit]] = defaultdict(list)
        for unit in self._units:
            if unit.micro_batch is None:
                continue
            for argument in self._functions[unit.task].builder.arguments:
                if isinstance(argument, TensorArgument):
                    is_part = isinstance(argument.state, Sharded | Partial | PerPart)
                    users[argument.tensor, unit.micro_batch if is_part else None].append(unit)
        for (tensor, micro_batch), units in users.items():
            yield from self._of_tensor(tensor, micro_batch, units)
        yield from self._sums()
        for task, number in self._number_of.items():
            if task.is_parts:
                yield from self._temporaries(task, number)

    def _temporaries(self, task: Task, number: int) -> Iterator[LiveRange]:
        """Yield what is only in memory during a task, at its worst moments."""
        found = list(temporaries(task, self._partition.sharding.states))
        for micro_batch in range(len(self._partition.layout.micro_batches)):
            unit = Unit(number, micro_batch)
            device, call = self._device(unit), self._call_of[unit]
            for place, one in found:
                yield LiveRange(
                    device,
                    "activations",
                    Moment(call, place),
                    Moment(call, place),
                    one.shape,
                    one.num_bytes,
                    micro_batch,
                )

    def _number_calls(self) -> None:
        stages: dict[str, object] = {}
        for unit in self._units:
            if unit.micro_batch is None:
                continue
            device = self._device(unit)
            number = self._call_of[unit] = self._calls[device]
            self._calls[device] += 1
            now, turns = self._task(unit).place.stages, self._turns[device]
            if turns and stages[device] == now:
                turns[-1] = range(turns[-1].start, number + 1)
            else:
                turns.append(range(number, number + 1))
            stages[device] = now
            self._turn_of[unit] = len(turns) - 1

    def _of_tensor(
        self, tensor: Tensor, micro_batch: int | None, units: Sequence[Unit]
    ) -> Iterator[LiveRange]:
        state = self._partition.sharding.states[tensor]
        task = self._partition.task_of.get(tensor.node)
        if isinstance(state, Partial) or tensor.is_sizes or tensor.shape is None:
            return
        by_device: dict[str, list[Unit]] = defaultdict(list)
        for unit in units:
            by_device[self._device(unit)].append(unit)
        for device, of_device in by_device.items():
            calls = [self._call_of[unit] for unit in of_device]
            if micro_batch is None:
                if task is not None and task.where != device:
                    yield from self._fetched(tensor, device, of_device)
                continue
            # What comes from elsewhere arrives while the call before runs.
            begin = Moment(max(0, min(calls) - 1))
            if task is not None and task.is_parts:
                maker = Unit(self._number_of[task], micro_batch)
                if self._device(maker) == device:
                    begin = Moment(self._call_of[maker], self._place_in(task)[tensor.node])
            shape = shape_in_part(tensor, state)
            num_bytes = (
                element_dtype(tensor).size if tensor.dtype == tf.variant else tensor.dtype.size
            )
            end = Moment(max(calls), _LAST)
            yield LiveRange(device, "activations", begin, end, shape, num_bytes, micro_batch)

    def _fetched(self, tensor: Tensor, device: str, units: Sequence[Unit]) -> Iterator[LiveRange]:
        """Yield what is fetched of a tensor for each turn, from the begin of the turn before."""
        turns = self._turns[device]
        # The first two turns begin with the step, so what they fetch is there once.
        numbers = sorted({max(1, self._turn_of[unit]) for unit in units})
        for number in numbers:
            used = [self._call_of[u] for u in units if max(1, self._turn_of[u]) == number]
            begin, end = Moment(turns[number - 1].start), Moment(max(used), _LAST)
            shape = tensor.shape or ()
            yield LiveRange(device, "fetched", begin, end, shape, tensor.dtype.size, None)

    def _sums(self) -> Iterator[LiveRange]:
        """Yield the partial sums of every device, and the next ones that are added to them."""
        owners: dict[Tensor, set[str]] = defaultdict(set)
        for function in self._functions:
            for argument in function.builder.arguments:
                if isinstance(argument, TensorArgument) and not function.task.is_parts:
                    owners[argument.tensor].add(function.task.where)
        for number, function in enumerate(self._functions):
            if not function.task.is_parts:
                continue
            places = self._place_in(function.task)
            calls: dict[str, list[int]] = defaultdict(list)
            for micro_batch in range(len(self._partition.layout.micro_batches)):
                unit = Unit(number, micro_batch)
                calls[self._device(unit)].append(self._call_of[unit])
            for tensor in function.task.fetches:
                state = self._partition.sharding.states[tensor]
                if not isinstance(state, Partial) or tensor.shape is None:
                    continue
                for device, numbers in calls.items():
                    # To another device it goes while the next call runs.
                    stays = not owners[tensor] or device in owners[tensor]
                    end = self._calls[device] if stays else max(numbers) + 1
                    copies = [(min(numbers), end)]
                    if len(numbers) > 1:
                        copies.append((sorted(numbers)[1], max(numbers)))
                    for begin, end in copies:
                        yield LiveRange(
                            device,
                            "gradients",
                            Moment(begin, places[tensor.node]),
                            Moment(end, _LAST),
                            tensor.shape,
                            tensor.dtype.size,
                            None,
                        )

    def _place_in(self, task: Task) -> Mapping[Node, int]:
        """Return the place of every node of a task."""
        if task not in self._places:
            self._places[task] = {node: place for place, node in enumerate(task.nodes)}
        return self._places[task]

    def _device(self, unit: Unit) -> str:
        assert unit.micro_batch is not None
        return self._partition.layout.device(unit.micro_batch, self._task(unit).place.stages)

    def _task(self, unit: Unit) -> Task:
        return self._functions[unit.task].task
