"""A task on a part without samples, where a kernel in it fails on none, or gives another size.

::

    samples?  yes -> the function of the task
              no  -> zeros for sums, no rows of what is sharded
                     (where a shape is not known: of one sample of zeros, whose rows are dropped)
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from evener.engine.partition.build import TaskFunction
from evener.engine.partition.functions import (
    Argument,
    FunctionBuilder,
    NumberArgument,
    SumArgument,
    TensorArgument,
)
from evener.engine.partition.guards import (
    neutral_number,
    sizes_without_samples,
    without_samples,
)
from evener.engine.partition.tasks import Partition
from evener.engine.sharding.states import Partial, Sharded, State, Unset, rows_per_sample
from evener.engine.trace.dims import PartSymbol
from evener.engine.trace.graph import Tensor
from evener.tf_compat import graphs

_REFUSES_ZEROS = frozenset({"Cholesky", "MatrixInverse", "MatrixSolve", "MatrixTriangularSolve"})
"""Operations that fail on a matrix of zeros; without samples they have nothing to fail on."""


def branches_of(
    function: TaskFunction, partition: Partition
) -> tuple[FunctionBuilder, FunctionBuilder] | None:
    """Return what runs with samples and without, where it makes a difference and can be told."""
    if not function.needs_samples:
        return None
    no_samples = zeros_function(function, partition) or padded_function(function, partition)
    return None if no_samples is None else (branch_of(function, partition), no_samples)


def branch_of(function: TaskFunction, partition: Partition) -> FunctionBuilder:
    """Return what a condition calls to run a task: its function, or a function that calls it.

    A condition does not compile its branches by XLA itself. And the body of a branch that stays
    whole is not optimized for its device: convolutions take about twice as long on a CPU.
    """
    if not function.by_xla and not partition.layout.is_scheduled:
        return function.builder
    builder = _with_arguments_of(function, "branch", partition)
    outputs = _call(builder, function, list(builder.arguments.values()))
    for reference, dtype in zip(outputs, function.builder.outputs, strict=True):
        builder.output(reference, dtype)
    builder.register()
    return builder


def zeros_function(function: TaskFunction, partition: Partition) -> FunctionBuilder | None:
    """Make a function with the arguments of a task's that returns what a part without samples has.

    Returns:
        Zeros for partial sums, no rows for what is sharded; None if a shape is not known.
    """
    builder = _with_arguments_of(function, "no_samples", partition)
    for tensor in function.task.fetches:
        state, shape = partition.sharding.states[tensor], tensor.shape
        if tensor in function.added_inside:
            builder.output(builder.arguments[SumArgument(tensor)], tensor.dtype)
            continue
        if isinstance(state, Unset) and tensor.dtype != tf.variant:
            # What one operation keeps for another, which does not run either.
            builder.output(builder.constant(np.zeros([0]), tensor.dtype), tensor.dtype)
            continue
        if shape is None or tensor.dtype in (tf.variant, tf.resource):
            return None
        sizes = sizes_without_samples(shape, state)
        if not all(isinstance(size, int) or builder.knows(size) for size in sizes):
            return None
        builder.output(without_samples(builder, tensor, state), tensor.dtype)
    builder.register()
    return builder


def padded_function(function: TaskFunction, partition: Partition) -> FunctionBuilder | None:
    """Make a function that computes a task of one sample of zeros, and drops its rows.

    For sizes that only a kernel knows: on no samples it may give another size. The parts are joined
    along one axis, and the others have to agree.

    Returns:
        The function; None if an argument or result is a tensor list of samples, or an operation
        refuses zeros.
    """
    if any(node.op in _REFUSES_ZEROS for node in function.task.nodes):
        return None
    builder = _with_arguments_of(function, "no_samples", partition)
    given: list[str] = []
    for argument, reference in list(builder.arguments.items()):
        padded = _of_one_sample(builder, argument, reference)
        if padded is None:
            return None
        given.append(padded)
    results = _call(builder, function, given)
    for tensor, result in zip(function.task.fetches, results, strict=True):
        state = partition.sharding.states[tensor]
        if tensor in function.added_inside:
            result = builder.arguments[SumArgument(tensor)]
        elif isinstance(state, Sharded | Unset | Partial):
            if tensor.dtype == tf.variant or (tensor.rank is None and state != Unset()):
                return None
            result = _without_rows(builder, tensor, state, result)
        builder.output(result, tensor.dtype)
    builder.register()
    return builder


def _of_one_sample(builder: FunctionBuilder, argument: Argument, reference: str) -> str | None:
    """Return an argument as a part with the first sample alone has it; None if nobody can tell."""
    if isinstance(argument, NumberArgument):
        name = argument.name
        if not isinstance(name, PartSymbol):
            return reference
        return builder.constant(0 if name.is_offset else 1, tf.int32)
    if not isinstance(argument, TensorArgument):
        return reference
    if not isinstance(argument.state, Sharded | Unset):
        return reference
    tensor, state = argument.tensor, argument.state
    if tensor.dtype == tf.variant or not isinstance(state, Sharded) or tensor.shape is None:
        return None
    rows = rows_per_sample(tensor.shape[state.axis], state)
    count = None if rows is None else rows * state.outer
    if not isinstance(count, int) or tensor.dtype == tf.string:
        return None
    pads = np.zeros([len(tensor.shape), 2])
    pads[state.axis, 1] = count
    zero = builder.zero(tensor.dtype)
    numbers = [reference, builder.constant(pads, tf.int32), zero]
    return builder.op("PadV2", numbers, {"T": tensor.dtype, "Tpaddings": tf.int32})[0]


def _without_rows(builder: FunctionBuilder, tensor: Tensor, state: State, result: str) -> str:
    """Return what a part without samples has in place of a result of one sample."""
    if isinstance(state, Unset):
        return builder.constant(np.zeros([0]), tensor.dtype)
    if isinstance(state, Sharded):
        count = tensor.rank or 0
        size = [-1] * count
        size[state.axis] = 0
        numbers = [builder.constant(one, tf.int32) for one in ([0] * count, size)]
        return builder.op("Slice", [result, *numbers], {"T": tensor.dtype, "Index": tf.int32})[0]
    shape = builder.op("Shape", [result], {"T": tensor.dtype, "out_type": tf.int32})[0]
    neutral = builder.constant(neutral_number(state, tensor.dtype), tensor.dtype)
    return builder.op("Fill", [shape, neutral], {"T": tensor.dtype, "index_type": tf.int32})[0]


def _call(builder: FunctionBuilder, function: TaskFunction, inputs: list[str]) -> list[str]:
    own = function.builder
    attrs = {
        "Tin": graphs.type_list([own.dtype_of(name) for name in own.arguments.values()]),
        "Tout": graphs.type_list(own.outputs),
        "f": graphs.function_reference(own.name),
    }
    builder.include(own)
    private = graphs.BY_XLA if function.by_xla else {}
    return builder.op("PartitionedCall", inputs, attrs, private=private)


def _with_arguments_of(function: TaskFunction, name: str, partition: Partition) -> FunctionBuilder:
    builder = FunctionBuilder(name, inference=partition.inference)
    for argument, reference in function.builder.arguments.items():
        builder.argument(argument, function.builder.dtype_of(reference))
    return builder
