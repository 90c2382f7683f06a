"""Temporary memory of nodes that run one after the other, and of layers in one fused call.

::

    separate call        holds its arguments until it ends, and so does its caller
    fused call           frees results of neighbouring layers after their last use
"""

from __future__ import annotations

import graphlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import tensorflow as tf

from evener.engine.flops.sizes import bytes_per_sample, num_bytes
from evener.engine.memory.temporaries import buffer_of
from evener.engine.partition.tasks import Task
from evener.graph.nodes import Node, Tensor
from evener.ops.registry import IN_PLACE, has_trait
from evener.ops.states import Partial
from evener.profiler.split import LayerTasks, SplitStep


class FusedCall:
    """Memory of layers in one fused call of all passes.

    Nodes run in the order of the step: of the two products in the gradient of a `Dense`, the one
        that
    reads the weight runs first, so the gradient of the weight can reuse its memory.

    Args:
        split: Step split into layers.
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

        Args:
            number: Number of the layer.
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
        """Return the most bytes by which gradients of a layer exceed its weights already freed.

        Args:
            number: Number of the layer.
        """
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
    """Return the peak temporary memory of a task, without its arguments and results.

    Args:
        task: Task.
        size: Function that returns the size of a tensor, in any unit.
    """
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
    """Return the peak growth of memory while nodes run one after the other.

    Args:
        nodes: Nodes in the order in which they run.
        size: Function that returns the size of a tensor, in any unit.
        results: Tensors that stay alive after the last node.
        before: Sizes of tensors that are alive before, and are freed after their last use.
    """
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
