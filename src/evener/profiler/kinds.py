"""Kinds of layers: layers of one kind compute the same on tensors of the same shapes.

Layers of one kind are measured once. Names and the values of weights are ignored.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence

from evener.engine.partition.tasks import Task
from evener.graph.nodes import Graph, Node, Tensor
from evener.profiler.split import SplitStep

_SYMBOL = re.compile(r"\bs\d+\b")
_NOT_COMPARED = frozenset({"_class", "_output_shapes", "container", "shared_name"})


def kinds_of(split: SplitStep) -> list[str]:
    """Return for every layer a signature that is equal for layers of one kind."""
    shapes = _shapes(split)
    return [
        _Signature(split, shapes).of((layer.forward, layer.backward, layer.once))
        for layer in split.layers
    ]


def kind_of_rest(split: SplitStep) -> str:
    """Return a signature that is equal for steps with the same work outside their layers."""
    return _Signature(split, _shapes(split)).of((split.rest,))


def _shapes(split: SplitStep) -> dict[Tensor, str]:
    return {
        variable.handle: f"{variable.dtype.name}{variable.shape}" for variable in split.variables
    }


class _Signature:
    """Signature of the work of a layer, with numbers instead of names."""

    def __init__(self, split: SplitStep, shapes: dict[Tensor, str]) -> None:
        self._split = split
        self._shapes = shapes
        self._tensors: dict[Tensor, int] = {}
        self._symbols: dict[str, str] = {}

    def of(self, groups: Iterable[Sequence[Task]]) -> str:
        """Return the signature of groups of tasks, as a short hash."""
        text = hashlib.sha256()
        for group in groups:
            text.update(b"|")
            for task in group:
                for line in self._task(task):
                    text.update(line.encode())
        return text.hexdigest()[:16]

    def _task(self, task: Task) -> Iterator[str]:
        yield f"task {task.place.is_parts}"
        for node in task.nodes:
            requests = [str(request) for _, request in self._split.partition.requests(node)]
            yield from self._node(node, requests)
        yield f"gives {[self._tensors.get(tensor) for tensor in task.fetches]}"

    def _node(self, node: Node, requests: Sequence[str] = ()) -> Iterator[str]:
        inputs = [self._tensor(tensor) for tensor in node.inputs]
        yield self._plain(f"{node.op} {inputs} {list(requests)}")
        for name in sorted(node.attrs):
            if name not in _NOT_COMPARED and not (node.bodies and "func" in str(node.attrs[name])):
                yield f"{name}={node.attrs[name].SerializeToString(deterministic=True)}"
        for name, body in sorted(node.bodies.items()):
            yield f"body {name}"
            yield from self._graph(body)
        for tensor in node.outputs:
            self._tensors[tensor] = len(self._tensors)
            yield self._plain(f"{tensor.dtype.name}{tensor.shape}")

    def _graph(self, graph: Graph) -> Iterator[str]:
        for node in graph:
            yield from self._node(node)
        yield f"returns {[self._tensors.get(tensor) for tensor in graph.outputs]}"

    def _tensor(self, tensor: Tensor) -> str:
        """Return the number of a tensor, with its description at its first occurrence."""
        if tensor in self._tensors:
            return str(self._tensors[tensor])
        self._tensors[tensor] = len(self._tensors)
        number = self._tensors[tensor]
        if tensor.node.op == "Const":
            return f"{number} {tensor.node.attrs['value'].SerializeToString(deterministic=True)}"
        if tensor.is_sizes:
            return f"{number} sizes {tensor.value}"
        return f"{number} {tensor.dtype.name}{tensor.shape} {self._shapes.get(tensor, '')}"

    def _plain(self, text: str) -> str:
        """Number the symbols of a text in the order of their first occurrence."""
        return _SYMBOL.sub(lambda m: self._symbols.setdefault(m[0], f"s{len(self._symbols)}"), text)
