"""Costs of layers that are the same on any device: bytes and operations. Nothing is run."""

from __future__ import annotations

import dataclasses
import graphlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

from evener.graph.nodes import Node, Tensor
from evener.graph.ops.registry import IN_PLACE, has_trait
from evener.graph.ops.states import Numbers, Partial, serves
from evener.graph.trace import TracedStep
from evener.partition.memory import buffer_of, bytes_per_sample, flops_per_sample, num_bytes
from evener.partition.tasks import Task
from evener.plan.profile import LayerCosts, ModelCosts
from evener.profiler.layers import LayerTasks, SplitStep, kinds_of, split_step

# Temporary memory of nodes that run one after the other, and of layers in one fused call.
#
# ::
#
#     separate call        holds its arguments until it ends, and so does its caller
#     fused call           frees results of neighbouring layers after their last use


class FusedCall:
    """Memory of layers in one fused call of all passes.

    Nodes run in the order of the step: of the two products in the gradient of a `Dense`, the one
        that
    reads the weight runs first, so the gradient of the weight can reuse its memory.
    """

    def __init__(self, split: SplitStep) -> None:
        self._split = split
        self._of_backward = {task for layer in split.layers for task in layer.backward}
        self._read_forward: dict[Tensor, set[int]] = defaultdict(set)
        self._read_backward: dict[Tensor, set[int]] = defaultdict(set)
        for number, layer in enumerate(split.layers):
            for buffer in _last_positions(_nodes(layer.forward)):
                self._read_forward[buffer].add(number)
            for buffer in _last_positions(_nodes(layer.backward)):
                self._read_backward[buffer].add(number)

    def workspace(self, number: int) -> float:
        """Return the peak temporary bytes per sample, excluding saved activations.

        Output gradients, which the next layers have computed, count.
        """
        return max(self._forward(number), self._backward(number))

    def _forward(self, number: int) -> float:
        def size(buffer: Tensor) -> float:
            # Tensors that others read are activations or cross to the next layer.
            others = self._read_forward.get(buffer, set()) - {number}
            is_left = bool(others) or buffer in self._read_backward
            return 0.0 if is_left else bytes_per_sample(buffer)

        return _most(_nodes(self._split.layers[number].forward), size)

    def _backward(self, number: int) -> float:
        layer = self._split.layers[number]
        nodes = _nodes(layer.backward)
        own = set(_nodes(layer.forward))
        task_of = self._split.partition.task_of
        before: dict[Tensor, float] = {}
        gradients = 0.0
        for buffer in _last_positions(nodes):
            maker = task_of.get(buffer.node)
            is_gradient = maker in self._of_backward and maker not in layer.backward
            if buffer.is_sizes or not (is_gradient or buffer.node in own):
                continue
            size = bytes_per_sample(buffer)
            gradients += size * is_gradient
            # Backward passes run from the last layer to the first.
            if min(self._read_backward[buffer]) == number:
                before[buffer] = size
        results = {buffer_of(tensor) for task in layer.backward for tensor in task.fetches}
        # TensorFlow runs what is ready first; which nodes these are depends on the threads.
        orders = (nodes, _as_ready(nodes))
        most = max(_most(each, bytes_per_sample, results=results, before=before) for each in orders)
        return gradients + most

    def gradients(self, number: int) -> int:
        """Return the most bytes by which gradients of a layer exceed its weights already freed."""
        layer = self._split.layers[number]
        nodes = _nodes(layer.backward)
        last = _last_positions(nodes)
        read = {
            buffer: num_bytes(buffer, 1) for buffer in last if buffer.node.op == "ReadVariableOp"
        }
        weights = sum(
            variable.num_bytes
            for variable in self._split.variables
            if variable.role == "weight" and variable.layer == number
        )
        sums = {buffer_of(tensor) for tensor in sums_of(self._split, layer)}
        if any(tensor.dtype == tf.variant for node in nodes for tensor in node.inputs):
            # Loops keep weights in tensor lists until the end of the backward pass.
            return sum(num_bytes(tensor, 1) for tensor in sums)
        # Weights that no backward pass reads were freed earlier.
        now = sum(read.values()) - weights
        most = 0
        for position, node in enumerate(nodes):
            now += sum(num_bytes(tensor, 1) for tensor in node.outputs if tensor in sums)
            most = max(most, now)
            now -= sum(size for weight, size in read.items() if last[weight] == position)
        return most


def sums_of(split: SplitStep, layer: LayerTasks) -> Iterator[Tensor]:
    """Yield the results of the backward pass of a layer that are sums over the samples."""
    states = split.partition.sharding.states
    for task in layer.backward:
        for tensor in task.fetches:
            if isinstance(states[tensor], Partial):
                yield tensor


def workspace(task: Task, size: Callable[[Tensor], float]) -> float:
    """Return the peak temporary memory of a task, without its arguments and results."""
    handed_over = {buffer_of(tensor) for tensor in task.fetches}
    return _most(task.nodes, lambda tensor: 0.0 if tensor in handed_over else size(tensor))


def _nodes(tasks: Sequence[Task]) -> list[Node]:
    return [node for task in tasks for node in task.nodes]


def _as_ready(nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes in the order in which their inputs are there, the earliest first."""
    here = set(nodes)
    makers = {
        node: [tensor.node for tensor in node.inputs if tensor.node in here] for node in nodes
    }
    return list(graphlib.TopologicalSorter(makers).static_order())


def _last_positions(nodes: Sequence[Node]) -> dict[Tensor, int]:
    """Return for each buffer the position of the last node that reads it."""
    return {
        buffer_of(tensor): position for position, node in enumerate(nodes) for tensor in node.inputs
    }


def _most(
    nodes: Sequence[Node],
    size: Callable[[Tensor], float],
    *,
    results: Collection[Tensor] = (),
    before: Mapping[Tensor, float] | None = None,
) -> float:
    """Return the peak growth of memory while nodes run one after the other."""
    last = _last_positions(nodes)
    now = most = 0.0
    living = dict(before or {})
    for position, node in enumerate(nodes):
        read = {buffer_of(tensor) for tensor in node.inputs}
        gone = [buffer for buffer in read if last[buffer] <= position and buffer not in results]
        sizes = [living.pop(buffer, 0.0) for buffer in gone]
        ended = sum(sizes)
        if has_trait(node, IN_PLACE):
            taken = max(sizes, default=0.0)
            now, ended = now - taken, ended - taken
        for tensor in _made(node):
            living[tensor] = size(tensor)
            now += living[tensor]
        most = max(most, now)
        unread = [tensor for tensor in node.outputs if tensor not in last and tensor not in results]
        now -= ended + sum(living.pop(tensor, 0.0) for tensor in unread)
    return most


def _made(node: Node) -> Iterator[Tensor]:
    for tensor in node.outputs:
        is_new = buffer_of(tensor) is tensor and not tensor.is_sizes
        if is_new and tensor.dtype != tf.variant:
            yield tensor


# Bytes that layers save for their backward pass, pass to later layers, and need temporarily.
#
# ::
#
#     layer 0   forward ──a──> layer 1   forward ──b──> loss
#                  c                        d
#               backward <──────────     backward <──────
#
#     a and b cross the cuts after their layers; those of a, b, c, d that a backward pass reads are
#     saved, and count for the layer that has computed them


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBytes:
    """Memory of a layer, in bytes."""

    activations: float  # Bytes per sample of its results that a backward pass reads
    # Bytes per sample of the results of this and earlier layers that later layers read
    boundary: float
    workspace: float  # Peak temporary bytes per sample of one of its tasks
    # Peak temporary bytes per sample excluding saved activations, in a fused call
    fused_workspace: float
    # Most bytes by which its gradients exceed its weights already freed, in a fused call
    fused_gradients: int
    gradients: int  # Bytes of the results of its backward pass that are sums over the samples
    update: int  # Peak temporary bytes of its update


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


# Barriers of a step: reductions over the global batch in the middle of the model.
#
# ::
#
#     layer             depth of its tasks              barriers
#     conv              forward 0      backward 4       0, 0
#     batch_norm        forward 0 1 2  backward 2 3 4   2, 2     mean, variance; their gradients
#     dense             forward 2      backward 2       0, 0
#
# The depth of a task is the number of barriers before it: of waits for all micro-batches, by the
# task
# itself or by the tasks that it depends on.


@dataclass(frozen=True, slots=True, kw_only=True)
class Barriers:
    """Barriers of one layer."""

    forward: int  # Number of barriers in its forward pass
    backward: int  # Number of barriers in its backward pass
    # Most bytes per sample that are alive across one of them, excluding saved activations
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


# Costs of layers that are the same on any device: bytes and operations.


def layer_costs(step: TracedStep | SplitStep, *, name: str = "") -> ModelCosts:
    """Return the device-independent costs of the layers of a step. Nothing is run."""
    split = step if isinstance(step, SplitStep) else split_step(step)
    kinds = kinds_of(split)
    found = bytes_of_layers(split)
    barriers = barriers_of(split)
    layers = [
        dataclasses.replace(
            _costs_of(split, k, found[k], kinds[k]),
            forward_barriers=barriers[k].forward,
            backward_barriers=barriers[k].backward,
            barrier_bytes=barriers[k].waiting_bytes,
        )
        for k in range(len(split.layers))
    ]
    traced = split.traced
    samples = [
        tensor
        for tensor, axis in zip(traced.graph.inputs, traced.batch_axes, strict=False)
        if axis is not None
    ]
    return ModelCosts(
        name=name,
        layers=tuple(layers),
        input_bytes=sum(map(bytes_per_sample, samples)),
        updates_wait=updates_wait(split),
    )


def _costs_of(split: SplitStep, number: int, found: LayerBytes, kind: str) -> LayerCosts:
    owned = dict.fromkeys(("weight", "slot", "state"), 0)
    is_last = number == len(split.layers) - 1
    for variable in split.variables:
        if variable.layer == number or (is_last and variable.layer is None):
            owned[variable.role] += variable.num_bytes
    nodes = [node for task in split.layers[number].forward for node in task.nodes]
    return LayerCosts(
        name=split.chain.names[number],
        weight_bytes=owned["weight"],
        optimizer_bytes=owned["slot"],
        state_bytes=owned["state"],
        other_gradient_bytes=max(0, found.gradients - owned["weight"]),
        update_bytes=found.update,
        activation_bytes=found.activations,
        boundary_bytes=found.boundary,
        workspace_bytes=found.workspace,
        fused_workspace_bytes=found.fused_workspace,
        fused_gradient_bytes=found.fused_gradients,
        forward_flops=flops_per_sample(nodes),
        kind=kind,
    )
