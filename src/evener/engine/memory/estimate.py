"""Memory estimate of a step on every device, counted from the tensors that its tasks hand over.

::

    variables    weights, optimizer slots and other state that the device owns
    fetched      weights of other owners: of the stage that computes, and of the next one
    gradients    partial sums that wait for their owner, and the next ones to be added
    activations  samples and all other tensors that tasks hand to later ones

The figures of a device are those at its peak. Workspaces of kernels come on top.
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
from evener.engine.flops.sizes import shape_of
from evener.engine.memory.temporaries import numbers_of, temporaries
from evener.engine.partition.emit import PartitionedStep
from evener.engine.partition.function_arguments import TensorArgument
from evener.engine.partition.tasks import Task
from evener.engine.partition.tensor_lists import element_dtype
from evener.engine.pipeline.order import Unit
from evener.graph.dims import Size, evaluate
from evener.graph.nodes import Node, Tensor
from evener.ops.states import Partial, PerPart, Sharded
from evener.plan import Replica, split_batch

Kind = Literal["fetched", "gradients", "activations"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Memory that a step needs on one device at its peak, in bytes.

    Attributes:
        variables: Weights, optimizer slots and other state that the device owns.
        fetched: Weights of other owners.
        gradients: Partial sums that wait for their owner.
        activations: Samples and all other tensors that tasks hand to later ones.
    """

    variables: int = 0
    fetched: int = 0
    gradients: int = 0
    activations: int = 0

    @property
    def total(self) -> int:
        """The sum of all kinds."""
        return self.variables + self.fetched + self.gradients + self.activations


class Moment(NamedTuple):
    """Moment of a device in a step.

    Attributes:
        call: Number of the device's call.
        node: Index of a node in the call's task, from 0; -1 as the call begins.
    """

    call: int
    node: int = -1


_LAST = 2**31
"""Index after all nodes of a call."""


class LiveRange(NamedTuple):
    """Tensor in the memory of a device.

    Attributes:
        device: TensorFlow's name of the device.
        kind: Kind of memory that it counts as.
        begin: Moment when it is made, or the begin of the first call that needs it.
        end: Last moment before it is freed.
        shape: Shape in the symbols of the step; ``b`` is the samples of its micro-batch.
        num_bytes: Bytes of one element.
        micro_batch: Number of its micro-batch; None if all micro-batches share it.
    """

    device: str
    kind: Kind
    begin: Moment
    end: Moment
    shape: tuple[Size, ...]
    num_bytes: int
    micro_batch: int | None


def live_ranges_of(step: PartitionedStep) -> list[LiveRange]:
    """Return the tensors that the calls of a step keep in memory."""
    return list(_Reader(step).read())


def estimate_memory(
    live_ranges: Sequence[LiveRange],
    replicas: Sequence[Replica],
    num_samples: int,
    owned: Mapping[str, int],
) -> dict[str, MemoryEstimate]:
    """Return the memory that a step needs on every device.

    Args:
        live_ranges: Live ranges of the step.
        replicas: Replicas of the plan.
        num_samples: Samples of the global batch.
        owned: Bytes of the variables of every device, by names such as ``"gpu:0"``.

    Returns:
        Estimates by names of devices. A size that the data alone decides counts as 1.
    """
    shares = split_batch(num_samples, [replica.share for replica in replicas])
    sizes = [
        size
        for share, replica in zip(shares, replicas, strict=True)
        for size in split_batch(share, [1.0] * replica.num_micro_batches)
    ]
    by_device: dict[str, list[LiveRange]] = defaultdict(list)
    for live_range in live_ranges:
        by_device[device_name(live_range.device)].append(live_range)
    needs = {name: MemoryEstimate(variables=num_bytes) for name, num_bytes in owned.items()}
    for name, of_device in by_device.items():
        peak = peak_of(of_device, sizes, num_samples)
        needs[name] = dataclasses.replace(peak, variables=owned.get(name, 0))
    return needs


def peak_of(
    live_ranges: Iterable[LiveRange], sizes: Sequence[int], num_samples: int
) -> MemoryEstimate:
    """Return the memory of a device at its peak, without variables.

    Args:
        live_ranges: Live ranges of one device.
        sizes: Samples of each micro-batch of all replicas.
        num_samples: Samples of the global batch.
    """
    counts: dict[tuple[tuple[Size, ...], int], int] = {}
    changes: list[tuple[Moment, int, Kind, int]] = []
    for tensor in live_ranges:
        samples = num_samples if tensor.micro_batch is None else sizes[tensor.micro_batch]
        if (tensor.shape, samples) not in counts:
            counts[tensor.shape, samples] = elements_of_part(tensor.shape, samples, num_samples)
        num_bytes = counts[tensor.shape, samples] * tensor.num_bytes
        changes.append((tensor.begin, 1, tensor.kind, num_bytes))
        # It is freed before the next node makes something.
        end = Moment(tensor.end.call, tensor.end.node + 1)
        changes.append((end, 0, tensor.kind, -num_bytes))
    now: dict[Kind, int] = {"fetched": 0, "gradients": 0, "activations": 0}
    peak = dict(now)
    for _, _, kind, num_bytes in sorted(changes):
        now[kind] += num_bytes
        if sum(now.values()) > sum(peak.values()):
            peak = dict(now)
    return MemoryEstimate(**peak)


def elements_of_part(shape: Sequence[Size], samples: int, num_samples: int) -> int:
    """Return the elements of a tensor; a size that the data alone decides counts as 1.

    Args:
        shape: Shape in the symbols of the step.
        samples: Samples of its micro-batch.
        num_samples: Samples of the global batch.
    """
    values = numbers_of(shape, samples, num_samples)
    return math.prod(int(evaluate(size, values)) for size in shape)


class _Reader:
    """Reader of the live ranges of a step.

    Args:
        step: Partitioned step.
    """

    def __init__(self, step: PartitionedStep) -> None:
        self._partition = step.partition
        self._functions = step.functions
        self._number_of = {f.task: number for number, f in enumerate(step.functions)}
        self._units = step.units
        self._indices: dict[Task, dict[Node, int]] = {}
        # Number of calls so far of every device, and the call of each unit.
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
        """Yield the temporaries of a task at its peaks."""
        found = list(temporaries(task, self._partition.sharding.states))
        for micro_batch in range(len(self._partition.layout.micro_batches)):
            unit = Unit(number, micro_batch)
            device, call = self._device(unit), self._call_of[unit]
            for index, temporary in found:
                peak, (_, _, shape, num_bytes) = Moment(call, index), temporary
                yield LiveRange(device, "activations", peak, peak, shape, num_bytes, micro_batch)

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
            # Tensors of other devices arrive while the call before runs.
            begin = Moment(max(0, min(calls) - 1))
            if task is not None and task.is_parts:
                maker = Unit(self._number_of[task], micro_batch)
                if self._device(maker) == device:
                    begin = Moment(self._call_of[maker], self._indices_in(task)[tensor.node])
            shape = shape_of(tensor, state) or ()
            num_bytes = (
                element_dtype(tensor).size if tensor.dtype == tf.variant else tensor.dtype.size
            )
            end = Moment(max(calls), _LAST)
            yield LiveRange(device, "activations", begin, end, shape, num_bytes, micro_batch)

    def _fetched(self, tensor: Tensor, device: str, units: Sequence[Unit]) -> Iterator[LiveRange]:
        """Yield the fetched copies of a tensor for each turn, from the begin of the turn before."""
        turns = self._turns[device]
        # The first two turns begin with the step, so they share one copy.
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
            indices = self._indices_in(function.task)
            calls: dict[str, list[int]] = defaultdict(list)
            for micro_batch in range(len(self._partition.layout.micro_batches)):
                unit = Unit(number, micro_batch)
                calls[self._device(unit)].append(self._call_of[unit])
            for tensor in function.task.fetches:
                state = self._partition.sharding.states[tensor]
                if not isinstance(state, Partial) or tensor.shape is None:
                    continue
                for device, numbers in calls.items():
                    # It is sent to another device while the next call runs.
                    stays = not owners[tensor] or device in owners[tensor]
                    end = self._calls[device] if stays else max(numbers) + 1
                    copies = [(min(numbers), end)]
                    if len(numbers) > 1:
                        copies.append((sorted(numbers)[1], max(numbers)))
                    for begin, end in copies:
                        yield LiveRange(
                            device,
                            "gradients",
                            Moment(begin, indices[tensor.node]),
                            Moment(end, _LAST),
                            tensor.shape,
                            tensor.dtype.size,
                            None,
                        )

    def _indices_in(self, task: Task) -> Mapping[Node, int]:
        """Return the index of every node of a task."""
        if task not in self._indices:
            self._indices[task] = {node: index for index, node in enumerate(task.nodes)}
        return self._indices[task]

    def _device(self, unit: Unit) -> str:
        assert unit.micro_batch is not None
        return self._partition.layout.device(unit.micro_batch, self._task(unit).place.stages)

    def _task(self, unit: Unit) -> Task:
        return self._functions[unit.task].task
