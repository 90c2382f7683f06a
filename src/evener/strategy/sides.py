"""Both sides of a spot check in one function: the parts' own functions, and the step as a whole.

::

    rows, variables ─┬─► whole ───────────────┬──► expected
                     │     │ behind writes    │
                     └─► parts (2, 1, 2) ─────┴──► actual

The parts read results of tasks with writes from the other side. The results of the step are
compared, and the tensors that tasks with writes read: sums of gradients, new statistics.

The whole step is computed without parts, rules and writes::

    the traced step     read w ─► gradient ─► assign m ─► read m ─► assign w ─► result
    the function        read w ─► gradient                read m ─────────────► result

Reads behind writes return the values from before the step. Both sides do so, and must agree all
the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from evener._tf_private import graphs
from evener.graph.functions import FunctionBuilder, NumberArgument, TensorArgument
from evener.graph.inference import Inference
from evener.graph.nodes import Graph, Node, Tensor
from evener.graph.ops.states import REPLICATED, Sharding
from evener.graph.trace import TracedStep
from evener.partition.build import NodeFunction, add_functional
from evener.partition.emit import PartitionedStep
from evener.partition.order import sources_of
from evener.partition.shard import symbols_read
from evener.partition.tasks import HOST, TaskFunction

_STATELESS_DRAWS = {
    "RandomUniform": "StatelessRandomUniform",
    "RandomStandardNormal": "StatelessRandomNormal",
    "TruncatedNormal": "StatelessTruncatedNormal",
}
"""Operations that draw from seeds of the check, which leave the program's generators alone."""

_READS = ("RngReadAndSkip",)


_NOT_COMPARED = (tf.resource, tf.variant, tf.string)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Extent of a check: the functions that are called, and the tensors that are compared."""

    runs: frozenset[int]  # Numbers of the functions that are called on the parts, or once
    given: tuple[Tensor, ...]  # Tensors that they read and that the whole side computes
    # Function with writes that reads each compared tensor; None for results of the step
    compared: Mapping[Tensor, TaskFunction | None]


def extent_of(step: PartitionedStep) -> Extent:
    """Find which functions of a step can be called without changing anything."""
    partition = step.partition
    graph = partition.graph
    inputs = {tensor.node for tensor in graph.inputs}
    known: set[Node] = set()
    for node in graph:
        is_computable = not node.has_side_effect or node.op in (*_STATELESS_DRAWS, *_READS)
        if node in inputs or (is_computable and all(t.node in known for t in node.inputs)):
            known.add(node)
    produced: set[Tensor] = set()
    given: set[Tensor] = set()
    runs: set[int] = set()
    for number, function in enumerate(step.functions):
        sources = [t for a in function.builder.arguments for t, _ in sources_of(partition, a)]
        is_pure = not function.is_stateful or function.is_read_only
        if is_pure and all(
            tensor in produced or tensor in given or tensor.node not in partition.task_of
            for tensor in sources
        ):
            runs.add(number)
            produced.update(function.task.fetches)
        else:
            given.update(tensor for tensor in function.task.fetches if tensor.node in known)
    compared: dict[Tensor, TaskFunction | None] = {}
    for number, function in enumerate(step.functions):
        if number not in runs:
            for argument in function.builder.arguments:
                if isinstance(argument, TensorArgument):
                    compared.setdefault(argument.tensor, function)
    for tensor in graph.outputs:
        compared.setdefault(tensor, None)
    return Extent(
        runs=frozenset(runs),
        given=tuple(tensor for tensor in given if tensor.dtype != tf.resource),
        compared={
            tensor: reader
            for tensor, reader in compared.items()
            if tensor in produced and tensor.node in known and tensor.dtype not in _NOT_COMPARED
        },
    )


def build_reference(
    graph: Graph, inference: Inference, targets: Sequence[Tensor], keeps: Any
) -> FunctionBuilder:
    """Make a function of the arguments of a step that returns some of its tensors.

    Sizes are computed as the program asked for them, and not from the symbols of the traced step,
    except in bodies of loops and conditions.
    """
    whole = Sharding()
    whole.states = {tensor: REPLICATED for node in graph for tensor in node.outputs}
    needed: set[Node] = set()
    stack = [tensor.node for tensor in targets]
    while stack:
        node = stack.pop()
        if node in needed:
            continue
        needed.add(node)
        stack.extend(tensor.node for tensor in node.inputs)
        if node.bodies:
            names = symbols_read(whole, node, inference.symbols)
            stack.extend(inference.symbols[name].tensor.node for name in names)
    builder = NodeFunction("whole", whole, table=inference)
    references = builder.references
    arguments = {tensor.node for tensor in graph.inputs}
    seeds = itertools.count(1)
    for node in graph:
        if node not in needed:
            continue
        if node in arguments:
            for tensor in node.outputs:
                argument = TensorArgument(tensor, REPLICATED)
                references[tensor] = builder.argument(argument, tensor.dtype)
            continue
        builder.origin = node.source
        inputs = [references[tensor] for tensor in node.inputs]
        if node.bodies:
            outputs: Sequence[str] = add_functional(builder, node, inputs, None)
        elif node.op in _READS:
            # It returns the state from before.
            outputs = builder.op("ReadVariableOp", inputs[:1], {"dtype": node.outputs[0].dtype})
        elif node.op in _STATELESS_DRAWS:
            drawn = builder.constant(np.array([0, next(seeds)]), tf.int32)
            attrs = {"dtype": node.outputs[0].dtype, "T": node.inputs[0].dtype, "Tseed": tf.int32}
            outputs = builder.op(_STATELESS_DRAWS[node.op], [inputs[0], drawn], attrs)
        else:
            outputs = builder.copy(node.op, node.name, inputs, node.attrs)
        references.update(zip(node.outputs, outputs, strict=True))
    for tensor in targets:
        builder.output(references[tensor], tensor.dtype)
    builder.register(keeps)
    return builder


class Sides:
    """Both sides as one function on the host."""

    def __init__(
        self, step: PartitionedStep, traced: TracedStep, sizes: Sequence[int], extent: Extent
    ) -> None:
        self._step = step
        self._sizes = tuple(sizes)
        self._extent = extent
        self.compared = tuple(extent.compared)
        targets = [*self.compared, *extent.given]
        self._whole = build_reference(
            traced.graph, step.partition.inference, targets, traced.concrete
        )
        numbers = [a.name for a in self._whole.arguments if isinstance(a, NumberArgument)]
        self.obstacle = next((f"size {name}" for name in numbers if name != "B"), "")

    def needed_inputs(self) -> set[Tensor]:
        """Return the arguments of the step that one of the sides reads."""
        functions = [self._step.functions[number] for number in self._extent.runs]
        builders = [self._whole, *(function.builder for function in functions)]
        arguments = {argument for builder in builders for argument in builder.arguments}
        tensors = {a.tensor for a in arguments if isinstance(a, TensorArgument)}
        return tensors.intersection(self._step.partition.graph.inputs)

    def trace(self, inputs: Mapping[Tensor, Any], specs: Mapping[Tensor, Any]) -> Any:
        """Return TensorFlow's function: tensors by `specs` -> expected and actual tensors."""
        order = list(specs)

        def run(*tensors: tf.Tensor) -> Any:
            values = {**inputs, **dict(zip(order, tensors, strict=True))}
            graph: Any = tf.compat.v1.get_default_graph()
            # The outermost device decides: all devices of the plan are the host here.
            with graph.device(lambda _: HOST):
                total = tf.constant(sum(self._sizes))
                arguments = [
                    values[argument.tensor] if isinstance(argument, TensorArgument) else total
                    for argument in self._whole.arguments
                ]
                whole = graphs.call(
                    self._whole.function, arguments, self._whole.outputs, stateful=True
                )
                count = len(self.compared)
                given = dict(zip(self._extent.given, whole[count:], strict=True))
                sizes = [tf.constant(size) for size in self._sizes]
                flat = [values.get(tensor) for tensor in self._step.partition.graph.inputs]
                actual = self._step.run_some(flat, sizes, self._extent.runs, given, self.compared)
                return whole[:count], actual

        function: Any = tf.function(run, autograph=False)
        return function.get_concrete_function(*specs.values())


def written_names(
    reader: TaskFunction, tensor: Tensor, names: Mapping[Tensor, str]
) -> Iterator[str]:
    """Yield the names of the variables that a task writes after reading a tensor, nearest first."""
    reached: set[Tensor] = {tensor}
    for node in reader.task.nodes:
        if not reached.isdisjoint(node.inputs):
            reached.update(node.outputs)
            if node.has_side_effect:
                yield from (names[handle] for handle in node.inputs if handle in names)
