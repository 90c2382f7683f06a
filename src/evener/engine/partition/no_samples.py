"""Results of a part without samples, for kernels that fail on no rows or give other sizes.

::

    samples?  yes -> the task, or the operation in the body of a loop
              no  -> no rows of what is sharded, for sums what changes nothing

A task is skipped as a whole. A loop is not: it counts its rounds, and nodes behind it read the
count, so only the operation in its body is skipped. A replacement needs the sizes of the results.
Sizes that only a kernel knows, as of a convolution over unknown lengths, are computed from one
sample of zeros.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from evener._tf_private import graphs
from evener.engine.partition.function_arguments import (
    InputArgument,
    NumberArgument,
    SumArgument,
    TensorArgument,
)
from evener.engine.partition.functions import FunctionBuilder
from evener.engine.partition.tasks import Partition, TaskFunction
from evener.graph.dims import Dim, PartSymbol, Size
from evener.graph.nodes import Node, Tensor
from evener.ops.decision import Decision, rows_of
from evener.ops.states import (
    REPLICATED,
    Numbers,
    Partial,
    Sharded,
    State,
    Unset,
    part_sizes,
)


def branches_of(
    function: TaskFunction, partition: Partition
) -> tuple[FunctionBuilder, FunctionBuilder] | None:
    """Return the functions with and without samples; None if one function serves for both."""
    if not function.needs_samples:
        return None
    skipped = skipping_function(function, partition)
    return None if skipped is None else (branch_of(function, partition), skipped)


def branch_of(function: TaskFunction, partition: Partition) -> FunctionBuilder:
    """Return the branch that runs a task: its function, or a function that calls it.

    A condition does not compile its branches by XLA. And TensorFlow does not optimize the body of a
    branch that is not inlined for its device: convolutions take about twice as long on a CPU.
    """
    if not function.by_xla and not partition.layout.is_scheduled:
        return function.builder
    builder, own = _with_arguments_of(function, "branch", partition), function.builder
    attrs = {
        "Tin": graphs.type_list([own.dtype_of(name) for name in own.arguments.values()]),
        "Tout": graphs.type_list(own.outputs),
        "f": graphs.function_reference(own.name),
    }
    builder.include(own)
    private = graphs.BY_XLA if function.by_xla else {}
    given = list(builder.arguments.values())
    outputs = builder.op("PartitionedCall", given, attrs, private=private)
    for reference, dtype in zip(outputs, own.outputs, strict=True):
        builder.output(reference, dtype)
    builder.register()
    return builder


def skipping_function(function: TaskFunction, partition: Partition) -> FunctionBuilder | None:
    """Make a function with the arguments of a task's that returns results without samples.

    Returns:
        The function; None if it has a tensor list among its results, or sizes that nobody knows.
    """
    builder = _with_arguments_of(function, "no_samples", partition)
    sizes = _Sizes(builder, function, partition)
    builder.symbol_source = sizes.number
    for tensor in function.task.fetches:
        state = partition.sharding.states[tensor]
        if tensor in function.added_inside:
            result = builder.arguments[SumArgument(tensor)]
        elif isinstance(state, Unset) and tensor.dtype != tf.variant:
            # Saved by one operation for another, which does not run either.
            result = builder.constant(np.zeros([0]), tensor.dtype)
        else:
            try:
                result = without_samples(builder, tensor, state)
            except _UnknownSizeError:
                return None
        builder.output(result, tensor.dtype)
    builder.register()
    return builder


def add_guarded(
    builder: FunctionBuilder, node: Node, inputs: Sequence[str], decision: Decision
) -> Sequence[str]:
    """Add an operation that runs where a part has samples; elsewhere there are no rows.

    Args:
        builder: Function of a body.
        node: Operation.
        inputs: References to its inputs.
        decision: States of its inputs and outputs in the parts.
    """
    branches = {
        "then_branch": _branch(builder, node, decision, has_samples=True),
        "else_branch": _branch(builder, node, decision, has_samples=False),
    }
    extra = extra_arguments(branches.values(), len(inputs))
    dtypes = [t.dtype for t in node.inputs]
    attrs: dict[str, Any] = {
        "Tcond": tf.bool,
        "Tin": graphs.type_list([*dtypes, *(builder.inference.dtype_of(a.name) for a in extra)]),
        "Tout": graphs.type_list([t.dtype for t in node.outputs]),
        "output_shapes": graphs.unknown_shapes(len(node.outputs)),
    }
    for name, branch in branches.items():
        branch.end_with(extra)
        builder.include(branch)
        attrs[name] = graphs.function_reference(branch.name)
    numbers = [builder.number_argument(argument) for argument in extra]
    in_part = Sharded(0, 1, rows_of(decision)).in_part
    sizes = [builder.number(in_part, tf.int32), builder.constant(0, tf.int32)]
    has_samples = builder.op("Greater", sizes, {"T": tf.int32})
    return builder.op(
        "StatelessIf", [*has_samples, *inputs, *numbers], attrs, private=graphs.LOWERED
    )


def extra_arguments(functions: Iterable[FunctionBuilder], count: int) -> list[NumberArgument]:
    """Return the numbers that functions are given behind their first arguments."""
    found: dict[NumberArgument, None] = {}
    for function in functions:
        for argument in list(function.arguments)[count:]:
            assert isinstance(argument, NumberArgument)
            found[argument] = None
    return list(found)


def without_samples(builder: FunctionBuilder, tensor: Tensor, state: State) -> str:
    """Add the tensor of a part without samples: no rows, or terms that change nothing."""
    if tensor.shape is None or tensor.dtype in (tf.variant, tf.resource):
        raise _UnknownSizeError(tensor.node.name)
    sizes = list(tensor.shape)
    if isinstance(state, Sharded):
        sizes[state.axis] = 0
    return _fill(builder, sizes, neutral_number(state, tensor.dtype), tensor.dtype)


def neutral_number(state: State, dtype: tf.DType) -> Any:
    """Return the number that changes nothing when parts are combined."""
    combine = state.combine if isinstance(state, Partial) else "sum"
    numbers = {"sum": 0, "prod": 1, "all": True, "any": False, "max": None, "min": None}
    number = numbers[combine]
    if number is None:
        number = dtype.min if combine == "max" else dtype.max
        if dtype.is_floating:
            number = float("-inf") if combine == "max" else float("inf")
    return number


class _UnknownSizeError(Exception):
    """A size that does not follow from what a task is given."""


class _Sizes:
    """Numbers of the symbols in a task of one sample, read from shapes.

    Args:
        builder: Function that is being made, with the arguments of the task's.
        function: Function of the task.
        partition: Step in tasks.
    """

    def __init__(
        self, builder: FunctionBuilder, function: TaskFunction, partition: Partition
    ) -> None:
        self._builder = builder
        self._nodes = function.task.nodes
        self._sharding = partition.sharding
        self._given = {
            argument.tensor: (argument.state, reference)
            for argument, reference in builder.arguments.items()
            if isinstance(argument, TensorArgument)
        }
        self._asked: set[str] = set()

    def number(self, name: str) -> str:
        """Return the number of a symbol; raise _UnknownSizeError if nothing in the task tells."""
        if isinstance(name, PartSymbol):
            return self._builder.constant(0 if name.is_offset else 1, tf.int32)
        argument = NumberArgument(name)
        if argument in self._builder.arguments:
            return self._builder.arguments[argument]
        for tensor, (state, reference) in self._given.items():
            told = _told_by(name, tensor, state)
            if told is not None:
                return self._read(name, tensor, reference, told)
        if name not in self._asked:
            self._asked.add(name)
            for node in self._nodes:
                for tensor in node.outputs:
                    told = _told_by(name, tensor, self._sharding.states[tensor])
                    if told is not None:
                        return self._read(name, tensor, self._of_zeros(node)[tensor.index], told)
        raise _UnknownSizeError(name)

    def _read(self, name: str, tensor: Tensor, reference: str, told: _Told) -> str:
        """Return the number of a symbol that the shape of a tensor tells."""
        builder = self._builder
        attrs = {"T": tensor.dtype, "out_type": tf.int32}
        shape = builder.op("Shape", [reference], attrs)[0]
        number = builder.element(shape, told.axis, tf.int32)
        if told.more:
            given = [number, builder.constant(told.more, tf.int32)]
            number = builder.op("Sub", given, {"T": tf.int32})[0]
        if told.times != 1:
            given = [number, builder.constant(told.times, tf.int32)]
            number = builder.op("FloorDiv", given, {"T": tf.int32})[0]
        return builder.cast(number, tf.int32, builder.inference.dtype_of(name))

    def _of_zeros(self, node: Node) -> Sequence[str]:
        """Add an operation on one sample of zeros, whose results have the sizes of any sample's."""
        decision = self._sharding.decisions[node]
        if decision.bodies or node.is_stateful:
            raise _UnknownSizeError(node.name)
        pairs = zip(node.inputs, decision.inputs, strict=True)
        inputs = [self._zeros(tensor, wanted) for tensor, wanted in pairs]
        if decision.lower is not None:
            return decision.lower(self._builder, node, inputs)
        return self._builder.copy(node.op, node.name, inputs, node.attrs)

    def _zeros(self, tensor: Tensor, wanted: State | Numbers) -> str:
        """Return zeros with the rows of one sample; inputs that may be sizes keep their values."""
        builder, is_scalar = self._builder, tensor.rank == 0
        if isinstance(wanted, Numbers):
            return builder.sizes(wanted.sizes, tensor.dtype, is_scalar=is_scalar)
        if wanted == REPLICATED:
            if tensor.node.op == "Const":
                return builder.copy("Const", tensor.node.name, [], tensor.node.attrs)[0]
            if tensor.value is not None:
                return builder.sizes(tensor.value, tensor.dtype, is_scalar=is_scalar)
            if tensor in self._given and self._given[tensor][0] == REPLICATED:
                return self._given[tensor][1]
        is_data = tensor.dtype.is_floating or tensor.dtype.is_complex or wanted != REPLICATED
        if tensor.shape is None or not is_data or tensor.dtype in (tf.variant, tf.string):
            raise _UnknownSizeError(tensor.node.name)
        is_part = isinstance(wanted, Sharded)
        sizes = part_sizes(tensor.shape, wanted) if is_part else tensor.shape
        return _fill(builder, sizes, 0, tensor.dtype)


class _Told(NamedTuple):
    """A size of a tensor from which the number of a symbol follows: ``times * symbol + more``."""

    axis: int
    times: int
    more: int


def _told_by(name: str, tensor: Tensor, state: State) -> _Told | None:
    """Return a size of a tensor that tells the number of a symbol, in every part."""
    if tensor.shape is None or tensor.dtype in (tf.variant, tf.resource):
        return None
    if not isinstance(state, Sharded | Partial) and state != REPLICATED:
        return None
    for axis, size in enumerate(tensor.shape):
        is_shared = not isinstance(state, Sharded) or state.axis != axis
        if is_shared and isinstance(size, Dim) and {*size.terms} - {()} == {(name,)}:
            return _Told(axis, times=size.terms[name,], more=size.terms.get((), 0))
    return None


def _fill(builder: FunctionBuilder, sizes: Sequence[Size], number: Any, dtype: tf.DType) -> str:
    inputs = [builder.vector(sizes, tf.int32), builder.constant(number, dtype)]
    return builder.op("Fill", inputs, {"T": dtype, "index_type": tf.int32})[0]


def _branch(
    parent: FunctionBuilder, node: Node, decision: Decision, *, has_samples: bool
) -> FunctionBuilder:
    builder = FunctionBuilder(
        "samples" if has_samples else "no_samples", inference=parent.inference
    )
    builder.may_be_on_cpu, builder.origin = parent.may_be_on_cpu, parent.origin
    given = [
        builder.argument(InputArgument(k), tensor.dtype) for k, tensor in enumerate(node.inputs)
    ]
    if not has_samples:
        pairs = zip(node.outputs, decision.outputs, strict=True)
        outputs = [without_samples(builder, tensor, state) for tensor, state in pairs]
    elif decision.lower is not None:
        outputs = decision.lower(builder, node, given)
    else:
        outputs = builder.copy(node.op, node.name, given, node.attrs)
    for reference, tensor in zip(outputs, node.outputs, strict=True):
        builder.output(reference, tensor.dtype)
    return builder


def _with_arguments_of(function: TaskFunction, name: str, partition: Partition) -> FunctionBuilder:
    builder = FunctionBuilder(name, inference=partition.inference)
    builder.may_be_on_cpu = function.builder.may_be_on_cpu
    for argument, reference in function.builder.arguments.items():
        builder.argument(argument, function.builder.dtype_of(reference))
    return builder
