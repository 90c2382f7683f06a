"""Work and memory of a step: floating-point operations, bytes, live ranges, the peak of a device.

    variables    weights, optimizer slots and other state that the device owns
    fetched      weights of other owners: of the stage that computes, and of the next one
    gradients    partial sums that wait for their owner, and the next ones to be added
    activations  samples and all other tensors that tasks hand to later ones

The figures of a device are those at its peak. Workspaces of kernels come on top.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import tensorflow as tf

from evener.base.text import format_bytes
from evener.devices.names import device_name
from evener.errors import warn
from evener.graph.dims import BATCH, PartSymbol, Size, evaluate, symbols_of
from evener.graph.functions import TensorArgument
from evener.graph.nodes import Node, Tensor, constant_array, num_elements
from evener.graph.ops.registry import Trait, has_trait, operation
from evener.graph.ops.states import Partial, PerPart, Sharded, State, part_sizes
from evener.graph.rewrites import LOOPS
from evener.partition.emit import PartitionedStep
from evener.partition.order import Unit
from evener.partition.tasks import StepTask
from evener.partition.tensors import element_dtype
from evener.plan import Replica, split_batch

# Which input of an operation it puts into a list.
_ELEMENT = {"TensorListPushBack": 1, "TensorListSetItem": 2}
# Samples between which a slope is taken: sizes that grow faster than the samples are rare.
_FEW, _MANY = 32, 64
# Samples at which peaks are looked for: it may be one node for few and another for many.
_FEW_AND_MANY = (1, 2**10)
_LAST = 2**31  # Index after all nodes of a call
# The rest is for what operations need while they run, and for the gaps between allocations.
_USED_FOR_TENSORS = 0.9


def num_iterations(node: Node) -> int:
    """Return how often a loop runs at most, as its second argument says; 1 if that is not known."""
    limit = node.inputs[1] if len(node.inputs) > 1 else None
    if limit is None or not limit.dtype.is_integer or limit.rank != 0:
        return 1
    constant = constant_array(limit)
    value = (int(constant.item()),) if constant is not None else limit.value
    return max(1, value[0]) if value and isinstance(value[0], int) else 1


def flops_per_sample(nodes: Iterable[Node]) -> float:
    nodes = list(nodes)
    return (_flops(nodes, _MANY) - _flops(nodes, _FEW)) / (_MANY - _FEW)


def _flops(nodes: Iterable[Node], num_samples: int) -> float:
    return sum(node_flops(node, num_samples) for node in nodes)


def node_flops(node: Node, num_samples: int) -> float:
    """Return how many floating-point operations a node takes for a number of samples.

    Exact for products of matrices, convolutions and contractions; of a loop, its body times its
    iterations; arithmetic counts the elements of its results, and what only moves data nothing.
    """
    if has_trait(node, Trait.FREE) or not node.outputs:
        return 0
    if node.op in LOOPS and "body" in node.bodies:
        return num_iterations(node) * _flops(node.bodies["body"], num_samples)
    if node.bodies:
        return max(_flops(body, num_samples) for body in node.bodies.values())
    count = operation(node.op).flops
    if count is not None and all(t.shape is not None for t in (*node.inputs, *node.outputs)):
        return count(node, num_samples)
    return sum(num_elements(tensor, num_samples) for tensor in node.outputs)


def shape_of(tensor: Tensor, state: State | None) -> tuple[Size, ...] | None:
    """Return the shape of a tensor in a part, or None if its rank is not known."""
    if tensor.shape is None or not isinstance(state, Sharded):
        return tensor.shape
    return part_sizes(tensor.shape, state)


def num_bytes(tensor: Tensor, num_samples: int) -> int:
    """Return the bytes of a tensor, or of all elements of a list of tensors."""
    if tensor.dtype == tf.resource:
        return 0
    if tensor.dtype != tf.variant:
        return num_elements(tensor, num_samples) * tensor.dtype.size
    node = tensor.node
    if node.op == "TensorListFromTensor":
        return num_bytes(node.inputs[0], num_samples)
    if node.op in LOOPS and "body" in node.bodies:
        source = node.bodies["body"].outputs[tensor.index].node
        while source.op == "Identity":
            source = source.inputs[0].node
        if source.op in _ELEMENT:
            return num_iterations(node) * num_bytes(source.inputs[_ELEMENT[source.op]], num_samples)
    return num_elements(tensor, num_samples) * element_dtype(tensor).size


def bytes_per_sample(tensor: Tensor) -> float:
    return (num_bytes(tensor, _MANY) - num_bytes(tensor, _FEW)) / (_MANY - _FEW)


class _Temporary(NamedTuple):
    """Tensor that is only in memory during a task."""

    begin: int  # Index in the task of the node that makes it
    end: int  # Index in the task of the last node that needs its memory
    shape: tuple[Size, ...]  # Shape in the symbols of the step; ``b`` is the samples of the part
    num_bytes: int  # Bytes of one element


def buffer_of(tensor: Tensor) -> Tensor:
    """Return the tensor whose memory a tensor shares: reshaping copies nothing."""
    while has_trait(tensor.node, Trait.VIEW) and tensor.dtype == tensor.node.inputs[0].dtype:
        tensor = tensor.node.inputs[0]
    return tensor


def _temporaries(
    task: StepTask, states: Mapping[Tensor, State]
) -> Iterator[tuple[int, _Temporary]]:
    """Yield the indices of the nodes at the peaks of a task, each with all temporaries there.

    Temporaries are tensors that are in memory only while a task runs, and are not handed over. The
    peak is the node at which they have most bytes.
    """
    handed_over = {buffer_of(tensor) for tensor in task.fetches}
    last: dict[Tensor, int] = {}
    for index, node in enumerate(task.nodes):
        for tensor in node.inputs:
            # The result reuses its memory.
            last[buffer_of(tensor)] = index - has_trait(node, Trait.IN_PLACE)
    living: list[_Temporary] = []
    for index, node in enumerate(task.nodes):
        for tensor in node.outputs:
            is_new = buffer_of(tensor) is tensor and tensor not in handed_over
            is_whole = tensor.is_sizes or tensor.shape is None or tensor.dtype == tf.variant
            if is_new and not is_whole:
                shape = shape_of(tensor, states.get(tensor)) or ()
                end = max(index, last.get(tensor, index))
                living.append(_Temporary(index, end, shape, tensor.dtype.size))
    peaks: set[int] = set()
    for samples in _FEW_AND_MANY if living else ():
        changes: list[tuple[int, int]] = []
        for temporary in living:
            count = temporary.num_bytes * _elements(temporary.shape, samples, samples)
            changes += [(temporary.begin, count), (temporary.end + 1, -count)]
        # At one node, ends come before begins.
        changes.sort()
        sums = itertools.accumulate(change for _, change in changes)
        peaks.add(max(zip(sums, (index for index, _ in changes), strict=True))[1])
    for peak in sorted(peaks):
        for temporary in living:
            if temporary.begin <= peak <= temporary.end:
                yield peak, temporary


def _elements(shape: Sequence[Size], samples: int, num_samples: int) -> int:
    """Return the elements of a tensor; a size that the data alone decides counts as 1."""
    values: dict[str, int] = {}
    for name in symbols_of(*shape):
        if not isinstance(name, PartSymbol):
            values[name] = num_samples if name == "B" else 1
        elif name.rows == BATCH:
            values[name] = samples
        else:
            rows = _elements([name.rows], samples, num_samples)
            values[name] = -(-rows * samples // max(1, num_samples))
    return math.prod(int(evaluate(size, values)) for size in shape)


Kind = Literal["fetched", "gradients", "activations"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Memory that a step needs on one device at its peak, in bytes."""

    variables: int = 0  # Weights, optimizer slots and other state that the device owns
    fetched: int = 0  # Weights of other owners
    gradients: int = 0  # Partial sums that wait for their owner
    activations: int = 0  # Samples and all other tensors that tasks hand to later ones

    @property
    def total(self) -> int:
        return self.variables + self.fetched + self.gradients + self.activations


class Moment(NamedTuple):
    call: int  # Number of the device's call
    node: int = -1  # Index of a node in the call's task, from 0; -1 as the call begins


class LiveRange(NamedTuple):
    device: str  # TensorFlow's name of the device
    kind: Kind  # Kind of memory that it counts as
    begin: Moment  # Moment when it is made, or the begin of the first call that needs it
    end: Moment  # Last moment before it is freed
    # Shape in the symbols of the step; ``b`` is the samples of its micro-batch
    shape: tuple[Size, ...]
    num_bytes: int  # Bytes of one element
    micro_batch: int | None  # Number of its micro-batch; None if all micro-batches share it


def live_ranges_of(step: PartitionedStep) -> list[LiveRange]:
    return list(_Reader(step).read())


def estimate_memory(
    live_ranges: Sequence[LiveRange],
    replicas: Sequence[Replica],
    num_samples: int,
    owned: Mapping[str, int],
) -> dict[str, MemoryEstimate]:
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
    counts: dict[tuple[tuple[Size, ...], int], int] = {}
    changes: list[tuple[Moment, int, Kind, int]] = []
    for tensor in live_ranges:
        samples = num_samples if tensor.micro_batch is None else sizes[tensor.micro_batch]
        if (tensor.shape, samples) not in counts:
            counts[tensor.shape, samples] = _elements(tensor.shape, samples, num_samples)
        num_bytes = counts[tensor.shape, samples] * tensor.num_bytes
        changes.append((tensor.begin, 1, tensor.kind, num_bytes))
        # It is freed before the next node makes something.
        changes.append((Moment(tensor.end.call, tensor.end.node + 1), 0, tensor.kind, -num_bytes))
    now: dict[Kind, int] = {"fetched": 0, "gradients": 0, "activations": 0}
    peak = dict(now)
    for _, _, kind, num_bytes in sorted(changes):
        now[kind] += num_bytes
        if sum(now.values()) > sum(peak.values()):
            peak = dict(now)
    return MemoryEstimate(**peak)


class _Reader:
    def __init__(self, step: PartitionedStep) -> None:
        self._partition = step.partition
        self._functions = step.functions
        self._number_of = {f.task: number for number, f in enumerate(step.functions)}
        self._units = step.units
        # Index of every node in its task.
        self._index = {n: index for f in step.functions for index, n in enumerate(f.task.nodes)}
        # Number of calls so far of every device, and the call of each unit.
        self._calls: dict[str, int] = defaultdict(int)
        self._call_of: dict[Unit, int] = {}
        self._turn_of: dict[Unit, int] = {}
        self._turns: dict[str, list[range]] = defaultdict(list)
        stages: dict[str, object] = {}
        for unit in self._units:
            if unit.micro_batch is None:
                continue
            device = self._device(unit)
            number = self._call_of[unit] = self._calls[device]
            self._calls[device] += 1
            now, turns = self._functions[unit.task].task.place.stages, self._turns[device]
            if turns and stages[device] == now:
                turns[-1] = range(turns[-1].start, number + 1)
            else:
                turns.append(range(number, number + 1))
            stages[device] = now
            self._turn_of[unit] = len(turns) - 1

    def read(self) -> Iterator[LiveRange]:
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
            at_peaks = (
                [*_temporaries(task, self._partition.sharding.states)] if task.is_parts else []
            )
            for micro_batch in range(len(self._partition.layout.micro_batches)):
                for index, (_, _, shape, num_bytes) in at_peaks:
                    unit = Unit(number, micro_batch)
                    device, peak = self._device(unit), Moment(self._call_of[unit], index)
                    yield LiveRange(
                        device, "activations", peak, peak, shape, num_bytes, micro_batch
                    )

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
                source = Unit(self._number_of[task], micro_batch)
                if self._device(source) == device:
                    begin = Moment(self._call_of[source], self._index[tensor.node])
            shape, end = shape_of(tensor, state) or (), Moment(max(calls), _LAST)
            dtype = element_dtype(tensor) if tensor.dtype == tf.variant else tensor.dtype
            yield LiveRange(device, "activations", begin, end, shape, dtype.size, micro_batch)

    def _fetched(self, tensor: Tensor, device: str, units: Sequence[Unit]) -> Iterator[LiveRange]:
        """Yield the fetched copies of a tensor for each turn, from the begin of the turn before."""
        turns = self._turns[device]
        # The first two turns begin with the step, so they share one copy.
        for number in sorted({max(1, self._turn_of[unit]) for unit in units}):
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
                        first, last = Moment(begin, self._index[tensor.node]), Moment(end, _LAST)
                        size = tensor.dtype.size
                        yield LiveRange(device, "gradients", first, last, tensor.shape, size, None)

    def _device(self, unit: Unit) -> str:
        assert unit.micro_batch is not None
        stages = self._functions[unit.task].task.place.stages
        return self._partition.layout.device(unit.micro_batch, stages)


class MemoryLimits:
    """Most samples of a batch that each device can hold in a step."""

    def __init__(
        self,
        step: PartitionedStep,
        memory_bytes: Sequence[int | None],
        owned_bytes: Callable[[], Mapping[str, int]],
    ) -> None:
        self.largest_batch = 0
        self._devices = step.partition.layout.devices
        self._memory_bytes = tuple(memory_bytes)
        self._owned_bytes = owned_bytes
        self._live_ranges: dict[str, list[LiveRange]] = defaultdict(list)
        for live_range in live_ranges_of(step):
            self._live_ranges[device_name(live_range.device)].append(live_range)

    def most_samples(self, num_samples: int) -> tuple[int, ...]:
        owned = self._owned_bytes()
        return tuple(
            num_samples if memory is None else self._most(k, memory, num_samples, owned)
            for k, memory in enumerate(self._memory_bytes)
        )

    def maximum_shares(self, num_samples: int) -> tuple[float, ...]:
        most = self.most_samples(num_samples)
        if sum(most) < num_samples:
            held = ", ".join(
                f"{name} holds about {count}" + (f" in {format_bytes(size)}" if size else "")
                for name, count, size in zip(self._devices, most, self._memory_bytes, strict=True)
            )
            warn(
                "ENG-051",
                f"A batch of {num_samples} samples may not fit into the memory of the devices.",
                why=f"{held}.",
                fix="Make the batch smaller, or let `evener plan` look for stages, micro-batches "
                "or recomputation that fit; `evener run --plan auto` uses what it finds.",
            )
        # Half a sample less: sizes are rounded sums of shares.
        return tuple(
            1.0 if count >= num_samples else max(0.0, (count - 0.5) / num_samples) for count in most
        )

    def _most(self, part: int, memory: int, num_samples: int, owned: Mapping[str, int]) -> int:
        name = self._devices[part]
        room = memory * _USED_FOR_TENSORS - owned.get(name, 0)
        sizes = [0] * len(self._devices)

        def fits(samples: int) -> bool:
            sizes[part] = samples
            return peak_of(self._live_ranges[name], sizes, num_samples).total <= room

        if fits(num_samples):
            return num_samples
        return bisect.bisect(range(1, num_samples), False, key=lambda count: not fits(count))
