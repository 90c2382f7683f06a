"""Runs a traced graph node by node and compares every symbolic claim with the real tensor.

Nothing of the partitioner is used: the nodes are run eagerly, with the bodies of loops and
conditions, so a claim is also compared in every round of a loop.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from evener._tf_private import graphs
from evener.graph.dims import Size, evaluate, symbols_of
from evener.graph.inference import Inference
from evener.graph.nodes import Graph, Node, Tensor
from evener.graph.rewrites import CONDITIONS, LOOPS, num_leading
from evener.graph.trace import TracedStep

OPAQUE = (tf.resource, tf.variant)
# What `tf.raw_ops` calls otherwise than the definitions of operations do.
RENAMED = {
    "dim": "axis",
    "reduction_indices": "axis",
    "split_dim": "axis",
    "squeeze_dims": "axis",
    "e": "y",
    "t": "x",
}


class Evaluator:
    """Runs a traced step.

    Attributes:
        claims: Number of sizes and numbers that were compared.
        wrong: Claims that did not hold, in words.
    """

    def __init__(
        self, traced: TracedStep, *, ignored: Mapping[str, Sequence[int]] | None = None
    ) -> None:
        self._traced = traced
        self._ignored = ignored or {}
        self._inference: Inference = traced.inference
        self._values: dict[Tensor, Any] = {}
        self._num_samples = 0
        self.claims = 0
        self.wrong: list[str] = []

    def run(self, arguments: Sequence[Any], num_samples: int) -> list[Any]:
        """Run the step; return its flat results."""
        self._values, self._num_samples = {}, num_samples
        given = [*arguments, *self._traced.captures]
        return self._run(self._traced.graph, given)

    def _run(self, graph: Graph, given: Sequence[Any]) -> list[Any]:
        for tensor, value in zip(graph.inputs, given, strict=True):
            self._values[tensor] = value
            self._compare(tensor)
        arguments = {tensor.node for tensor in graph.inputs}
        for node in graph:
            if node in arguments:
                continue
            inputs = [self._values[tensor] for tensor in node.inputs]
            for tensor, value in zip(node.outputs, self._outputs(graph, node, inputs), strict=True):
                self._values[tensor] = value
            for tensor in node.outputs:
                self._compare(tensor)
        return [self._values[tensor] for tensor in graph.outputs]

    def _outputs(self, graph: Graph, node: Node, inputs: list[Any]) -> Sequence[Any]:
        if node.op in LOOPS:
            values = inputs
            while bool(self._run(_body(graph, node, "cond"), values)[0]):
                values = self._run(_body(graph, node, "body"), values)
            return values
        if node.op in CONDITIONS:
            return self._run(_branch(graph, node, inputs[0]), inputs[num_leading(node) :])
        return run_node(node, inputs)

    def _compare(self, tensor: Tensor) -> None:
        real = self._values[tensor]
        if tensor.dtype in OPAQUE or tensor.index in self._ignored.get(tensor.node.op, ()):
            return
        if tensor.shape is not None:
            claimed = [self._number(size) for size in tensor.shape]
            self._note(tensor, "shape", tensor.shape, claimed, real.shape.as_list())
        if tensor.value is not None and tensor.node.op == "BroadcastGradientArgs":
            self._compare_axes(tensor)
        elif tensor.value is not None:
            numbers = [self._number(size) for size in tensor.value]
            found = np.ravel(real).tolist()
            if tensor.node.op == "TensorListElementShape":
                # TensorFlow leaves sizes open that are known here.
                found = [a if b == -1 else b for a, b in zip(numbers, found, strict=True)]
                self._values[tensor] = tf.constant(found, tensor.dtype)
            self._note(tensor, "value", tensor.value, numbers, found)
        if tensor.is_sizes:
            # A function of a part makes a scalar if the rank is 0, else a vector.
            rank = 0 if tensor.rank == 0 else 1
            self._note(tensor, "rank", tensor.rank, rank, real.shape.rank)

    def _compare_axes(self, tensor: Tensor) -> None:
        """Axes of size 1 may be summed or not."""
        shapes = [np.ravel(self._values[t]).tolist() for t in tensor.node.inputs]
        rank = max(map(len, shapes))
        padded = [[1] * (rank - len(shape)) + shape for shape in shapes]
        ones = {k for k, sizes in enumerate(zip(*padded, strict=True)) if set(sizes) == {1}}
        claimed = [self._number(size) for size in tensor.value or ()]
        real = np.ravel(self._values[tensor]).tolist()
        self._note(tensor, "axes", tensor.value, set(claimed) - ones, set(real) - ones)
        # A partitioned step is given the numbers that are claimed.
        self._values[tensor] = tf.constant(claimed, tensor.dtype)

    def _number(self, size: Size) -> Any:
        numbers = {name: self._symbol(name) for name in symbols_of(size)}
        if any(isinstance(number, str) for number in numbers.values()):
            return "; ".join(str(number) for number in numbers.values())
        return evaluate(size, numbers)

    def _symbol(self, name: str) -> int | str:
        if name == "B":
            return self._num_samples
        source = self._inference.symbols[name]
        if source.tensor not in self._values:
            return f"{name} is of {source.tensor}, which does not run before"
        value = self._values[source.tensor]
        if source.axis is None:
            return int(np.ravel(value)[source.index])
        if source.tensor.dtype in OPAQUE or source.axis >= value.shape.rank:
            return f"{name} is axis {source.axis} of {source.tensor}, which has none"
        return value.shape[source.axis]

    def _note(self, tensor: Tensor, kind: str, said: Any, claimed: Any, real: Any) -> None:
        self.claims += 1
        if claimed != real:
            text = f"{tensor.node.op} {tensor.node.name}:{tensor.index}: {kind} {said} = {claimed}"
            self.wrong.append(f"{text}, really {real}, for {self._num_samples} samples")


def misplaced_symbols(traced: TracedStep) -> Iterator[str]:
    """Yield the symbols of the step's own tensors that come from inside of a loop or condition.

    Nothing outside can read them.
    """
    own = {tensor for node in traced.graph for tensor in node.outputs}
    own.update(traced.graph.inputs)
    for tensor in own:
        for size in (*(tensor.shape or ()), *(tensor.value or ())):
            for name in symbols_of(size) - {"B"}:
                if traced.inference.symbols[name].tensor not in own:
                    yield f"{name} of {tensor}"


def _body(graph: Graph, node: Node, name: str) -> Graph:
    if name not in node.bodies:
        node.bodies[name] = graph.body(node.attrs[name].func.name)
    return node.bodies[name]


def _branch(graph: Graph, node: Node, chosen: Any) -> Graph:
    if "then_branch" in node.attrs:
        return _body(graph, node, "then_branch" if bool(chosen) else "else_branch")
    names = [function.name for function in node.attrs["branches"].list.func]
    index = int(chosen) if 0 <= int(chosen) < len(names) else len(names) - 1
    return node.bodies.get(f"branch_{index}") or graph.body(names[index])


def run_node(node: Node, inputs: Sequence[Any]) -> Sequence[Any]:
    """Run one operation eagerly."""
    if node.op == "Const":
        return [tf.constant(tf.make_ndarray(node.attrs["value"].tensor))]
    operation = getattr(tf.raw_ops, node.op)
    definition = graphs.op_definition(node.op)
    names = inspect.signature(operation).parameters
    rest = iter(inputs)
    given: dict[str, Any] = {}
    for arg in definition.input_arg:
        name = "condition" if node.op == "Where" else RENAMED.get(arg.name, arg.name)
        name = name if name in names else arg.name
        if arg.number_attr:
            given[name] = [next(rest) for _ in range(node.attrs[arg.number_attr].i)]
        elif arg.type_list_attr:
            count = len(node.attrs[arg.type_list_attr].list.type)
            given[name] = [next(rest) for _ in range(count)]
        else:
            given[name] = next(rest)
    for attr in definition.attr:
        name = attr.name if attr.name in names else RENAMED.get(attr.name, "")
        if name in names and attr.name in node.attrs:
            given[name] = _attribute(node.attrs[attr.name], attr.type)
    result = operation(**given)
    if result is None or isinstance(result, tf.Operation):
        return []
    if isinstance(result, tf.Tensor):
        return [result]
    return [tensor for tensor in tf.nest.flatten(result) if isinstance(tensor, tf.Tensor)]


def _attribute(value: Any, kind: str) -> Any:
    if kind.startswith("list("):
        field = {"int": "i", "type": "type", "shape": "shape", "string": "s", "float": "f"}
        items = getattr(value.list, field[kind[5:-1]])
        return [tf.as_dtype(item) for item in items] if kind == "list(type)" else list(items)
    if kind == "type":
        return tf.as_dtype(value.type)
    if kind == "shape":
        return tf.TensorShape(value.shape)
    return getattr(value, {"int": "i", "bool": "b", "string": "s", "float": "f"}[kind])
