"""Both sides of a check: the parts' own functions, and the step computed whole, in one function.

::

    rows, variables ─┬─► whole ───────────────┬──► expected
                     │     │ behind writes    │
                     └─► parts (2, 1, 2) ─────┴──► actual

The parts read results of tasks with writes from the other side. The results of the step are
compared, and the tensors that tasks with writes read: sums of gradients, new statistics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from evener._tf_private import graphs
from evener.checking.reference import build_reference, known_nodes
from evener.engine.partition.emit import PartitionedStep
from evener.engine.partition.function_arguments import NumberArgument, TensorArgument
from evener.engine.partition.homes import HOST
from evener.engine.partition.tasks import TaskFunction
from evener.engine.partition.units import sources_of
from evener.engine.trace.step import TracedStep
from evener.graph.nodes import Node, Tensor

_NOT_COMPARED = (tf.resource, tf.variant, tf.string)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Extent of a check: the functions that are called, and the tensors that are compared.

    Attributes:
        runs: Numbers of the functions that are called on the parts, or once.
        given: Tensors that they read and that the whole side computes.
        compared: Function with writes that reads each compared tensor; None for results of the
            step.
    """

    runs: frozenset[int]
    given: tuple[Tensor, ...]
    compared: Mapping[Tensor, TaskFunction | None]


def extent_of(step: PartitionedStep) -> Extent:
    """Find which functions of a step can be called without changing anything."""
    partition = step.partition
    graph = partition.graph
    known = known_nodes(graph)
    produced: set[Tensor] = set()
    given: set[Tensor] = set()
    runs: set[int] = set()

    def is_there(tensor: Tensor) -> bool:
        return tensor in produced or tensor in given or tensor.node not in partition.task_of

    for number, function in enumerate(step.functions):
        arguments = function.builder.arguments
        sources = [t for a in arguments for t, _ in sources_of(partition, a)]
        if _is_pure(function) and all(map(is_there, sources)):
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


def _is_pure(function: TaskFunction) -> bool:
    return not function.is_stateful or function.is_read_only


class Sides:
    """Both sides as one function on the host.

    Args:
        step: Partitioned step.
        traced: Step as it was traced.
        sizes: Number of samples of each part.
        extent: Functions that are called and tensors that are compared.
    """

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
        """Return TensorFlow's function: tensors by `specs` -> expected and actual tensors.

        Args:
            inputs: Arguments of the step that it captures, such as handles of variables.
            specs: Specs of the arguments that it is given.
        """
        order = list(specs)

        def run(*tensors: tf.Tensor) -> Any:
            graph: Any = tf.compat.v1.get_default_graph()
            # The outermost device decides: all devices of the plan are the host here.
            with graph.device(lambda _: HOST):
                return self._both({**inputs, **dict(zip(order, tensors, strict=True))})

        function: Any = tf.function(run, autograph=False)
        return function.get_concrete_function(*specs.values())

    def _both(self, inputs: Mapping[Tensor, Any]) -> tuple[list[Any], list[Any]]:
        total = tf.constant(sum(self._sizes))
        arguments = [
            inputs[argument.tensor] if isinstance(argument, TensorArgument) else total
            for argument in self._whole.arguments
        ]
        whole = graphs.call(self._whole.function, arguments, self._whole.outputs, stateful=True)
        count = len(self.compared)
        given = dict(zip(self._extent.given, whole[count:], strict=True))
        sizes = [tf.constant(size) for size in self._sizes]
        flat = [inputs.get(tensor) for tensor in self._step.partition.graph.inputs]
        actual = self._step.run_some(flat, sizes, self._extent.runs, given, self.compared)
        return whole[:count], actual


def written_names(
    reader: TaskFunction, tensor: Tensor, names: Mapping[Tensor, str]
) -> Iterator[str]:
    """Yield the names of the variables that a task writes after reading a tensor, nearest first.

    Args:
        reader: Function of the task.
        tensor: Tensor.
        names: Names of variables, by the arguments of the step that are their handles.
    """
    reached: set[Tensor] = {tensor}
    found: dict[Node, None] = {}
    for node in reader.task.nodes:
        if not reached.isdisjoint(node.inputs):
            reached.update(node.outputs)
            if node.has_side_effect:
                found[node] = None
    for node in found:
        yield from (names[handle] for handle in node.inputs if handle in names)
