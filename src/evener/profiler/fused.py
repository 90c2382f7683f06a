"""What is in memory while nodes run one after the other, and while layers run in one call.

::

    call of its own      holds what it is given to its end, and so does whoever calls
    one fused call       frees what the layers around it have made when it is no longer read
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import tensorflow as tf

from evener.engine.flops.sizes import bytes_per_sample, num_bytes
from evener.engine.memory.temporaries import IN_PLACE, buffer_of
from evener.engine.partition.tasks import Task
from evener.engine.sharding.states import Partial
from evener.engine.trace.graph import Node, Tensor
from evener.profiler.split import LayerTasks, SplitStep


class FusedCall:
    """What layers need in one call of all passes.

    Nodes run in the order of the step: of both products in the gradient of a `Dense`, the one that
    reads the weight is the first, so that the gradient of the weight can take its place.

    Args:
        split: The layers.
    """

    def __init__(self, split: SplitStep) -> None:
        self._split = split
        self._of_backward = {task for layer in split.layers for task in layer.backward}
        self._read_forward: dict[Tensor, set[int]] = defaultdict(set)
        self._read_backward: dict[Tensor, set[int]] = defaultdict(set)
        for number, layer in enumerate(split.layers):
            for buffer in _last_places(_nodes(layer.forward)):
                self._read_forward[buffer].add(number)
            for buffer in _last_places(_nodes(layer.backward)):
                self._read_backward[buffer].add(number)

    def workspace(self, number: int) -> float:
        """Return the most bytes per sample beside what layers keep for their backward passes.

        Gradients of its results, which the layers behind have made, count.

        Args:
            number: Of the layer.
        """
        return max(self._forward(number), self._backward(number))

    def _forward(self, number: int) -> float:
        def size(buffer: Tensor) -> float:
            # What others read is kept, or crosses to the next layer.
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
        for buffer in _last_places(nodes):
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
        return gradients + _most(nodes, bytes_per_sample, results=results, before=before)

    def gradients(self, number: int) -> int:
        """Return the most bytes by which its gradients exceed its weights that are gone.

        Args:
            number: Of the layer.
        """
        layer = self._split.layers[number]
        nodes = _nodes(layer.backward)
        last = _last_places(nodes)
        read = {one: num_bytes(one, 1) for one in last if one.node.op == "ReadVariableOp"}
        weights = sum(
            one.num_bytes
            for one in self._split.variables
            if one.role == "weight" and one.layer == number
        )
        sums = {buffer_of(tensor) for tensor in sums_of(self._split, layer)}
        if any(tensor.dtype == tf.variant for node in nodes for tensor in node.inputs):
            # Loops keep weights in lists, to the end of the backward pass.
            return sum(num_bytes(tensor, 1) for tensor in sums)
        # Weights that no backward pass reads have gone before.
        now = sum(read.values()) - weights
        most = 0
        for place, node in enumerate(nodes):
            now += sum(num_bytes(tensor, 1) for tensor in node.outputs if tensor in sums)
            most = max(most, now)
            now -= sum(size for one, size in read.items() if last[one] == place)
        return most


def sums_of(split: SplitStep, layer: LayerTasks) -> Iterator[Tensor]:
    """Yield what the backward pass of a layer hands over as sums over the samples."""
    states = split.partition.sharding.states
    for task in layer.backward:
        for tensor in task.fetches:
            if isinstance(states[tensor], Partial):
                yield tensor


def workspace(task: Task, size: Callable[[Tensor], float]) -> float:
    """Return the most that is in memory in a task beside what it is given and hands over.

    Args:
        task: The task.
        size: Returns the size of a tensor, in any unit.
    """
    handed_over = {buffer_of(tensor) for tensor in task.fetches}
    return _most(task.nodes, lambda one: 0.0 if one in handed_over else size(one))


def _nodes(tasks: Sequence[Task]) -> list[Node]:
    return [node for task in tasks for node in task.nodes]


def _last_places(nodes: Sequence[Node]) -> dict[Tensor, int]:
    """Return for each buffer that nodes read the place of the last one that does."""
    return {buffer_of(tensor): place for place, node in enumerate(nodes) for tensor in node.inputs}


def _most(
    nodes: Sequence[Node],
    size: Callable[[Tensor], float],
    *,
    results: Collection[Tensor] = (),
    before: Mapping[Tensor, float] | None = None,
) -> float:
    """Return by how much what is in memory grows at most while nodes run one after the other.

    Args:
        nodes: In the order in which they run.
        size: Returns the size of a tensor, in any unit.
        results: What stays when all have run.
        before: What is there before, and goes when it is no longer read; the sizes.
    """
    last = _last_places(nodes)
    now = most = 0.0
    living = dict(before or {})
    for place, node in enumerate(nodes):
        read = {buffer_of(tensor) for tensor in node.inputs}
        gone = [one for one in read if last[one] <= place and one not in results]
        sizes = [living.pop(one, 0.0) for one in gone]
        ended = sum(sizes)
        if node.op in IN_PLACE:
            taken = max(sizes, default=0.0)
            now, ended = now - taken, ended - taken
        for tensor in _made(node):
            living[tensor] = size(tensor)
            now += living[tensor]
        most = max(most, now)
        unread = [one for one in node.outputs if one not in last and one not in results]
        now -= ended + sum(living.pop(one, 0.0) for one in unread)
    return most


def _made(node: Node) -> Iterator[Tensor]:
    for tensor in node.outputs:
        is_new = buffer_of(tensor) is tensor and not tensor.is_sizes
        if is_new and tensor.dtype != tf.variant:
            yield tensor
