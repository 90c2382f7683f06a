"""Costs of layers that are the same on any device: bytes and operations. Nothing is run."""

from __future__ import annotations

import graphlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from evener.graph.nodes import Node, Tensor
from evener.graph.ops.registry import Trait, has_trait
from evener.graph.ops.states import Numbers, Partial, serves
from evener.graph.trace import TracedStep
from evener.partition.memory import buffer_of, bytes_per_sample, flops_per_sample, num_bytes
from evener.partition.tasks import StepTask
from evener.plan.profile import LayerCosts, ModelCosts
from evener.profiler.layers import LayerTasks, SplitStep, kinds_of, split_step


def layer_costs(step: TracedStep | SplitStep, *, name: str = "") -> ModelCosts:
    """Return the costs of the layers of a step that no device decides. Nothing is run."""
    split = step if isinstance(step, SplitStep) else split_step(step)
    traced, last = split.traced, len(split.layers) - 1
    saved, crossing = _saved_and_crossing(split)
    fused = FusedCall(split)
    barriers = _barriers(split)
    layers: list[LayerCosts] = []

    def fixed(tensor: Tensor) -> float:
        # A variable read shares the memory of the variable.
        return 0.0 if tensor.node.op == "ReadVariableOp" else num_bytes(tensor, 1)

    for number, (tasks, kind) in enumerate(zip(split.layers, kinds_of(split), strict=True)):
        owned = dict.fromkeys(("weight", "slot", "state"), 0)
        for variable in split.variables:
            if variable.layer == number or (number == last and variable.layer is None):
                owned[variable.role] += variable.num_bytes
        passes = (*tasks.forward, *tasks.backward)
        gradients = sum(num_bytes(tensor, 1) for tensor in _sums(split, tasks))
        forward_barriers, backward_barriers, waiting_bytes = barriers[number]
        layers.append(
            LayerCosts(
                name=split.chain.names[number],
                weight_bytes=owned["weight"],
                optimizer_bytes=owned["slot"],
                state_bytes=owned["state"],
                other_gradient_bytes=max(0, gradients - owned["weight"]),
                update_bytes=round(max((_workspace(t, fixed) for t in tasks.once), default=0.0)),
                activation_bytes=sum(map(bytes_per_sample, saved[number])),
                boundary_bytes=sum(map(bytes_per_sample, crossing[number])),
                workspace_bytes=max(
                    (_workspace(task, bytes_per_sample) for task in passes), default=0.0
                ),
                fused_workspace_bytes=fused.workspace(number),
                fused_gradient_bytes=fused.gradients(number),
                forward_flops=flops_per_sample(_nodes(tasks.forward)),
                forward_barriers=forward_barriers,
                backward_barriers=backward_barriers,
                barrier_bytes=waiting_bytes,
                kind=kind,
            )
        )
    # Clipping by the global norm makes the update of a layer depend on others' gradients.
    before: dict[StepTask, set[int]] = {
        task: {k} for k, layer in enumerate(split.layers) for task in layer.once
    }
    for task in split.rest:
        before[task] = {k for other in _tasks_before(split, task) for k in before.get(other, ())}
    updates_wait = any(
        before.get(other, set[int]()) - {number}
        for number, layer in enumerate(split.layers)
        for task in layer.once
        for other in _tasks_before(split, task)
    )
    inputs = zip(traced.graph.inputs, traced.batch_axes, strict=False)
    return ModelCosts(
        name=name,
        layers=tuple(layers),
        input_bytes=sum(bytes_per_sample(tensor) for tensor, axis in inputs if axis is not None),
        updates_wait=updates_wait,
    )


def _nodes(tasks: Sequence[StepTask]) -> list[Node]:
    return [node for task in tasks for node in task.nodes]


def _tasks_before(split: SplitStep, task: StepTask) -> set[StepTask]:
    task_of = split.partition.task_of
    found = {task_of.get(tensor.node) for node in task.nodes for tensor in node.inputs}
    return {other for other in found if other is not None and other is not task}


def _sums(split: SplitStep, layer: LayerTasks) -> Iterator[Tensor]:
    """Yield the results of the backward pass of a layer that are sums over the samples."""
    states = split.partition.sharding.states
    for task in layer.backward:
        for tensor in task.fetches:
            if isinstance(states[tensor], Partial):
                yield tensor


def _read_tensors(split: SplitStep, task: StepTask) -> Iterator[tuple[Tensor, Any, StepTask]]:
    """Yield the tensors of other tasks that a task reads, the request for each, and its task."""
    partition = split.partition
    for node in task.nodes:
        for tensor, request in partition.requests(node):
            if not isinstance(request, Numbers) and not tensor.is_sizes:
                maker = partition.task_of.get(tensor.node)
                if maker is not None and maker is not task:
                    yield tensor, request, maker


def _saved_and_crossing(split: SplitStep) -> tuple[list[set[Tensor]], list[set[Tensor]]]:
    """Return for each layer what backward passes read of it, and what crosses the cut behind it.

    ::

        layer 0   forward ──a──> layer 1   forward ──b──> loss
                     c                        d
                  backward <──────────     backward <──────

        a and b cross the cuts after their layers; those of a, b, c, d that a backward pass reads
        are saved, and count for the layer that has computed them
    """
    partition, count = split.partition, len(split.layers)
    layer_of: dict[StepTask | None, int] = {
        task: number for number, layer in enumerate(split.layers) for task in layer.forward
    }
    saved: list[set[Tensor]] = [set() for _ in range(count)]
    crossing: list[set[Tensor]] = [set() for _ in range(count)]
    for number, layer in enumerate(split.layers):
        for task in (*layer.forward, *layer.backward, *layer.once):
            for tensor, _, _ in _read_tensors(split, task):
                if isinstance(partition.sharding.states[tensor], Partial):
                    continue
                buffer = tensor if task in layer_of else buffer_of(tensor)
                maker = layer_of.get(partition.task_of.get(buffer.node))
                if maker is None:
                    continue
                if task in layer_of:
                    for cut in range(min(maker, number), max(maker, number)):
                        crossing[cut].add(tensor)
                else:
                    saved[maker].add(buffer)
    return saved, crossing


def _barriers(split: SplitStep) -> list[tuple[int, int, float]]:
    """Return for each layer its barriers forward and backward, and the bytes alive across them.

    Barriers are reductions over the global batch in the middle of the model::

        layer             depth of its tasks              barriers
        conv              forward 0      backward 4       0, 0
        batch_norm        forward 0 1 2  backward 2 3 4   2, 2     mean, variance; their gradients
        dense             forward 2      backward 2       0, 0

    The depth of a task is the number of barriers before it: of waits for all micro-batches, by the
    task itself or by the tasks that it depends on. The bytes are per sample, without saved
    activations.
    """
    partition = split.partition
    depths: dict[StepTask, int] = {}
    for task in partition.tasks:
        depth = 0
        for tensor, request, other in _read_tensors(split, task):
            if other in depths:
                is_same = task.is_parts and serves(partition.sharding.states[tensor], request)
                depth = max(depth, depths[other] + (other.is_parts and not is_same))
        depths[task] = depth

    # Until which depth each tensor is alive, but for saved activations.
    ahead = {task for layer in split.layers for task in layer.forward}
    until: dict[Tensor, int] = {}
    saved: set[Tensor] = set()
    for task, depth in depths.items():
        for tensor, _, _ in _read_tensors(split, task) if task.is_parts else ():
            buffer = buffer_of(tensor)
            maker = partition.task_of.get(buffer.node)
            is_sum = isinstance(partition.sharding.states[tensor], Partial)
            if maker is not None and maker.is_parts and not is_sum:
                until[buffer] = max(depth, until.get(buffer, 0))
                if maker in ahead and task not in ahead:
                    saved.add(buffer)
    waiting: dict[int, float] = defaultdict(float)
    for tensor, last in until.items():
        if tensor not in saved:
            for depth in range(depths[partition.task_of[tensor.node]] + 1, last + 1):
                waiting[depth] += bytes_per_sample(tensor)

    now = 0

    def passed(tasks: Sequence[StepTask]) -> range:
        """Return the depths of the barriers in a pass, which follows those before."""
        nonlocal now
        before, now = now, max([now, *(depths[task] for task in tasks)])
        return range(before + 1, now + 1)

    forward = [passed(layer.forward) for layer in split.layers]
    backward = [passed(layer.backward) for layer in reversed(split.layers)]
    return [
        (
            len(there),
            len(back),
            max((waiting.get(depth, 0.0) for depth in (*there, *back)), default=0.0),
        )
        for there, back in zip(forward, reversed(backward), strict=True)
    ]


class FusedCall:
    """Memory of layers in one fused call of all passes.

    ::

        separate call        holds its arguments until it ends, and so does its caller
        fused call           frees results of neighbouring layers after their last use

    Nodes run in the order of the step: of the two products in the gradient of a `Dense`, the one
    that reads the weight runs first, so the gradient of the weight can reuse its memory.
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
        """Return the peak temporary bytes per sample, excluding saved activations."""
        layer = self._split.layers[number]

        def size(buffer: Tensor) -> float:
            # Tensors that others read are activations or cross to the next layer.
            others = self._read_forward.get(buffer, set()) - {number}
            is_left = bool(others) or buffer in self._read_backward
            return 0.0 if is_left else bytes_per_sample(buffer)

        forward = _peak_growth(_nodes(layer.forward), size)
        nodes, own = _nodes(layer.backward), set(_nodes(layer.forward))
        before: dict[Tensor, float] = {}
        gradients = 0.0
        for buffer in _last_positions(nodes):
            maker = self._split.partition.task_of.get(buffer.node)
            is_gradient = maker in self._of_backward and maker not in layer.backward
            if buffer.is_sizes or not (is_gradient or buffer.node in own):
                continue
            gradients += bytes_per_sample(buffer) if is_gradient else 0.0
            # Backward passes run from the last layer to the first.
            if min(self._read_backward[buffer]) == number:
                before[buffer] = bytes_per_sample(buffer)
        results = {buffer_of(tensor) for task in layer.backward for tensor in task.fetches}
        # TensorFlow runs what is ready first; which nodes these are depends on the threads. The
        # second order is that in which the inputs of nodes are there, the earliest first.
        here = set(nodes)
        makers = {node: [t.node for t in node.inputs if t.node in here] for node in nodes}
        as_ready = list(graphlib.TopologicalSorter(makers).static_order())
        backward = gradients + max(
            _peak_growth(order, bytes_per_sample, results=results, before=before)
            for order in (nodes, as_ready)
        )
        return max(forward, backward)

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
        sums = {buffer_of(tensor) for tensor in _sums(self._split, layer)}
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


def _workspace(task: StepTask, size: Callable[[Tensor], float]) -> float:
    """Return the peak temporary memory of a task, without its arguments and results."""
    handed_over = {buffer_of(tensor) for tensor in task.fetches}
    return _peak_growth(task.nodes, lambda tensor: 0.0 if tensor in handed_over else size(tensor))


def _last_positions(nodes: Sequence[Node]) -> dict[Tensor, int]:
    """Return for each buffer the position of the last node that reads it."""
    return {
        buffer_of(tensor): position for position, node in enumerate(nodes) for tensor in node.inputs
    }


def _peak_growth(
    nodes: Sequence[Node],
    size: Callable[[Tensor], float],
    *,
    results: Collection[Tensor] = (),
    before: Mapping[Tensor, float] | None = None,
) -> float:
    """Return the peak growth of memory while nodes run: ``before`` is freed, ``results`` stay."""
    last = _last_positions(nodes)
    now = most = 0.0
    living = dict(before or {})
    for position, node in enumerate(nodes):
        read = {buffer_of(tensor) for tensor in node.inputs}
        gone = [buffer for buffer in read if last[buffer] <= position and buffer not in results]
        sizes = [living.pop(buffer, 0.0) for buffer in gone]
        ended = sum(sizes)
        if has_trait(node, Trait.IN_PLACE):
            taken = max(sizes, default=0.0)
            now, ended = now - taken, ended - taken
        for tensor in node.outputs:
            is_new = buffer_of(tensor) is tensor and not tensor.is_sizes
            if is_new and tensor.dtype != tf.variant:
                living[tensor] = size(tensor)
                now += living[tensor]
        most = max(most, now)
        unread = [tensor for tensor in node.outputs if tensor not in last and tensor not in results]
        now -= ended + sum(living.pop(tensor, 0.0) for tensor in unread)
    return most
