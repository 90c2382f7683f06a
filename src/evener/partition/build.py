"""Functions of tasks, made of the nodes of the step.

A loop's or condition's bodies become functions too, for a part or for all; numbers that a body is
not given in the traced step become further arguments. Kernels that fail on no rows are skipped on a
part without samples: a task as a whole, in a loop the operation alone. What keeps XLA from
compiling a task is found here as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from evener._tf_private import graphs
from evener.graph.dims import Dim, PartSymbol, Size
from evener.graph.nodes import Graph, Node, Tensor
from evener.graph.ops.states import (
    REPLICATED,
    SUM,
    Decision,
    Numbers,
    Partial,
    Sharded,
    Sharding,
    State,
    Unset,
    part_sizes,
    rows_of,
)
from evener.graph.rewrites import CONDITIONS, LOOPS, num_leading
from evener.partition.functions import (
    FunctionBuilder,
    InputArgument,
    NumberArgument,
    SumArgument,
    TensorArgument,
    Values,
)
from evener.partition.shard import is_made_of_sizes
from evener.partition.tasks import Partition, Task, TaskFunction

# Obstacles that keep XLA from compiling a task of a function with ``jit_compile=True``.
#
# XLA compiles the whole function on one device. Between tasks it can pass neither tensor lists nor
# sizes that depend on the data, and what one branch of a condition keeps for its gradient
# has no shape in the other. A task that needs one of these runs without XLA.


def find_obstacle(partition: Partition, task: Task, given: Iterable[Tensor]) -> str:
    """Return why XLA cannot compile a task, or an empty text."""
    for tensor in (*given, *task.fetches):
        if tensor.dtype == tf.variant:
            return f"{tensor.node.name} is a tensor list that other tasks use"
        if tensor.node.op in CONDITIONS:
            return f"{tensor.node.name} keeps what its gradient needs of one branch"
    for node in task.nodes:
        handles = (tensor for tensor in node.inputs if tensor.dtype == tf.resource)
        if len({partition.owner_of(handle) for handle in handles}) > 1:
            return f"{node.name} uses variables of several devices"
        if any(inner.op == "FakeParam" for body in node.bodies.values() for inner in body):
            # Its shape has the size of the batch, which is not known at tracing time.
            return f"{node.name} keeps what its gradient needs of one branch"
        if node in partition.sized_by_data:
            return f"a size of {node.name} depends on the data"
    return ""


def draws_numbers(node: Node) -> bool:
    """Return whether a node may draw random numbers, of which XLA has others than TensorFlow."""
    if node.op in LOOPS | CONDITIONS and not node.bodies:
        return True  # bodies that change state are not read
    inside = (inner for body in node.bodies.values() for inner in body)
    return "Random" in node.op or any(map(draws_numbers, inside))


# Results of a part without samples, for kernels that fail on no rows or give other sizes.
#
# ::
#
#     samples?  yes -> the task, or the operation in the body of a loop
#               no  -> no rows of what is sharded, for sums what changes nothing
#
# A task is skipped as a whole. A loop is not: it counts its rounds, and nodes behind it read the
# count, so only the operation in its body is skipped. A replacement needs the sizes of the results.
# Sizes that only a kernel knows, as of a convolution over unknown lengths, are computed from one
# sample of zeros.


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
    """Make a function with the arguments of a task's that returns results without samples."""
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
    """Add an operation that runs where a part has samples; elsewhere there are no rows."""
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
    """Numbers of the symbols in a task of one sample, read from shapes."""

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


# Loops and conditions in a function: their bodies become functions, for a part or for all.
#
# A body uses numbers that it is not given in the traced step, such as the samples of its part. They
# become further arguments, which a loop hands through.


def add_functional(
    builder: FunctionBuilder, node: Node, inputs: Sequence[str], decision: Decision
) -> Sequence[str]:
    """Add a loop or a condition that every part runs."""
    states = [REPLICATED if isinstance(state, Numbers) else state for state in decision.inputs]
    given = list(inputs)
    for index, length in decision.list_lengths.items():
        numbers = [given[index], builder.number(length, tf.int32)]
        given[index] = builder.op("TensorListResize", numbers, {})[0]
    inputs = given
    if node.op in LOOPS:
        return add_loop(builder, node, inputs, decision.bodies, states)
    states = states[num_leading(node) :]
    return add_condition(builder, node, inputs, decision.bodies, states, decision.outputs)


def add_loop(
    builder: FunctionBuilder,
    node: Node,
    inputs: Sequence[str],
    shardings: Mapping[str, Sharding],
    states: Sequence[State],
) -> Sequence[str]:
    """Add a loop to a function."""
    made = {
        name: _build(builder, graph, shardings[name], states, states if name == "body" else None)
        for name, graph in node.bodies.items()
    }
    extra = extra_arguments(made.values(), len(inputs))
    for name, function in made.items():
        function.end_with(extra)
        if name == "body":
            for argument in extra:
                reference = function.arguments[argument]
                function.output(reference, function.dtype_of(reference))
        builder.include(function)
    numbers = [builder.number_argument(argument) for argument in extra]
    dtypes = [t.dtype for t in node.inputs]
    attrs: dict[str, Any] = {
        "T": graphs.type_list([*dtypes, *(builder.inference.dtype_of(a.name) for a in extra)]),
        "cond": graphs.function_reference(made["cond"].name),
        "body": graphs.function_reference(made["body"].name),
        "output_shapes": graphs.unknown_shapes(len(inputs) + len(extra)),
        "parallel_iterations": node.attrs["parallel_iterations"],
    }
    outputs = builder.op("StatelessWhile", [*inputs, *numbers], attrs, private=graphs.LOWERED)
    return outputs[: len(inputs)]


def add_condition(
    builder: FunctionBuilder,
    node: Node,
    inputs: Sequence[str],
    shardings: Mapping[str, Sharding],
    states: Sequence[State],
    results: Sequence[State],
) -> Sequence[str]:
    """Add a condition to a function."""
    first = num_leading(node)
    made = {
        name: _build(builder, graph, shardings[name], states, results)
        for name, graph in node.bodies.items()
    }
    extra = extra_arguments(made.values(), len(inputs) - first)
    for function in made.values():
        function.end_with(extra)
        builder.include(function)
    numbers = [builder.number_argument(argument) for argument in extra]
    dtypes = [t.dtype for t in node.inputs[first:]]
    attrs: dict[str, Any] = {
        "Tin": graphs.type_list([*dtypes, *(builder.inference.dtype_of(a.name) for a in extra)]),
        "Tout": graphs.type_list([t.dtype for t in node.outputs]),
        "output_shapes": graphs.unknown_shapes(len(node.outputs)),
    }
    if "then_branch" in node.bodies:
        for name, function in made.items():
            attrs[name] = graphs.function_reference(function.name)
        attrs["Tcond"] = node.inputs[0].dtype
        op = "StatelessIf"
    else:
        attrs["branches"] = graphs.function_references(
            [function.name for function in made.values()]
        )
        op = "StatelessCase"
    return builder.op(op, [*inputs, *numbers], attrs, private=graphs.LOWERED)


def copy_functional(builder: FunctionBuilder, node: Node, inputs: Sequence[str]) -> Sequence[str]:
    """Add a loop or a condition that is computed once, of all samples."""
    shardings = {}
    for name, graph in node.bodies.items():
        tensors = [*graph.inputs, *(tensor for inner in graph for tensor in inner.outputs)]
        shardings[name] = Sharding(states=dict.fromkeys(tensors, REPLICATED))
    states = [REPLICATED] * (len(inputs) - num_leading(node))
    if node.op in LOOPS:
        return add_loop(builder, node, inputs, shardings, states)
    results = [REPLICATED] * len(node.outputs)
    return add_condition(builder, node, inputs, shardings, states, results)


def lowered(builder: FunctionBuilder, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a loop or condition whose body may run on several devices.

    TensorFlow makes those of functions with ``jit_compile=True`` for one device, at any depth.
    """
    return {**_with_lowered_bodies(builder, attrs), **graphs.LOWERED}


def _with_lowered_bodies(builder: FunctionBuilder, attrs: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in attrs.items():
        copy = graphs.AttrValue()
        copy.CopyFrom(value)
        for reference in [copy.func] if copy.HasField("func") else copy.list.func:
            reference.name = _lowered_body(builder, reference.name)
        found[key] = copy
    return found


def _lowered_body(builder: FunctionBuilder, name: str) -> str:
    body = FunctionBuilder("body", inference=builder.inference)
    unique_name = body.name
    body.definition.CopyFrom(graphs.function_definition(name))
    body.definition.signature.name = unique_name
    for node in body.definition.node_def:
        is_functional = node.op in LOOPS or node.op in CONDITIONS
        change = lowered if is_functional else _with_lowered_bodies
        for key, value in change(body, node.attr).items():
            node.attr[key].CopyFrom(value)
    builder.include(body)
    return unique_name


def _build(
    parent: FunctionBuilder,
    graph: Graph,
    sharding: Sharding,
    states: Sequence[State],
    results: Sequence[State] | None,
) -> FunctionBuilder:
    """Make the function of a body."""
    builder = FunctionBuilder("body", inference=parent.inference)
    builder.may_be_on_cpu = parent.may_be_on_cpu
    references = {
        tensor: builder.argument(TensorArgument(tensor, state), tensor.dtype)
        for tensor, state in zip(graph.inputs, states, strict=True)
    }
    values = Values(sharding, parent.inference, builder, references, is_body=True)
    arguments = {tensor.node for tensor in graph.inputs}
    names: dict[Node, str] = {}
    for node in graph:
        if node in arguments or node.op == "Const" or is_made_of_sizes(node):
            continue
        builder.origin = node.source
        decision = sharding.decisions.get(node)
        wanted = decision.inputs if decision is not None else [REPLICATED] * len(node.inputs)
        inputs = [*map(values.get, node.inputs, wanted)]
        if decision is not None and decision.needs_samples:
            outputs = add_guarded(builder, node, inputs, decision)
        elif decision is not None and decision.lower is not None:
            outputs = decision.lower(builder, node, inputs)
        elif decision is not None and decision.bodies:
            outputs = add_functional(builder, node, inputs, decision)
        elif node.bodies:
            outputs = copy_functional(builder, node, inputs)
        else:
            after = [names[before] for before in node.after if before in names]
            outputs = builder.copy(node.op, node.name, inputs, node.attrs, after=after)
            if node.is_stateful:
                names[node] = builder.last_name
        references.update(zip(node.outputs, outputs, strict=True))
    for index, tensor in enumerate(graph.outputs):
        wanted_state = sharding.states[tensor] if results is None else results[index]
        builder.output(values.get(tensor, wanted_state), tensor.dtype)
    return builder


# Functions of tasks, made of the nodes of the step.

LARGE = 1 << 18
"""Least bytes of a gradient that is added up behind the call that gives it."""


def build_task(partition: Partition, task: Task, keeps: Any) -> TaskFunction:
    """Make the function of a task."""
    name = "_".join(filter(None, ["parts" if task.is_parts else "once", task.place.role]))
    builder = FunctionBuilder(name, inference=partition.inference)
    builder.may_be_on_cpu = partition.layout.may_be_on_cpu
    if task.is_parts and partition.layout.is_scheduled:
        # Do not inline: inlining drops the ordering of calls.
        builder.stay_whole()
    references: dict[Tensor, str] = {}
    names: dict[Node, str] = {}
    values = Values(partition.sharding, partition.inference, builder, references)
    for node in task.nodes:
        builder.origin = node.source
        gates = [references[t] for t in partition.staged.gates.get(node, ()) if t in references]
        builder.waits = [gate.partition(":")[0] for gate in gates]
        decision = partition.sharding.decisions.get(node)
        inputs = [values.get(tensor, request) for tensor, request in partition.requests(node)]
        if decision is not None and decision.lower is not None:
            outputs = list(decision.lower(builder, node, inputs))
        elif decision is not None and decision.bodies:
            outputs = list(add_functional(builder, node, inputs, decision))
        elif node.bodies:
            outputs = list(copy_functional(builder, node, inputs))
        else:
            after = [names[n] for n in node.after if n in names]
            is_functional = node.op in LOOPS | CONDITIONS
            attrs = lowered(builder, node.attrs) if is_functional and node.xla else node.attrs
            outputs = builder.copy(node.op, node.name, inputs, attrs, after=after)
        if node.is_stateful:
            names[node] = builder.last_name
        references.update(zip(node.outputs, outputs, strict=True))
    added_inside = frozenset(t for t in task.fetches if is_added_inside(partition, t))
    for tensor in task.fetches:
        reference = references[tensor]
        if tensor in added_inside:
            so_far = builder.argument(SumArgument(tensor), tensor.dtype)
            reference = builder.op("AddV2", [so_far, reference], {"T": tensor.dtype})[0]
        builder.output(reference, tensor.dtype)
    obstacle = ""
    if task.place.by_xla:
        given = [a.tensor for a in builder.arguments if isinstance(a, TensorArgument)]
        obstacle = find_obstacle(partition, task, given)
        if not obstacle:
            builder.stay_whole()
    stateful = [node for node in task.nodes if node.is_stateful]
    for node in stateful:
        # Reads too: if the call is inlined, later calls wait for these nodes only.
        builder.keep(names[node])
    builder.register(keeps)
    after = {partition.task_of.get(before) for node in task.nodes for before in node.after}
    decisions = [partition.sharding.decisions.get(node) for node in task.nodes]
    return TaskFunction(
        task=task,
        builder=builder,
        is_stateful=bool(stateful),
        is_read_only=not any(node.has_side_effect for node in stateful),
        needs_samples=any(d is not None and d.needs_samples for d in decisions),
        after=frozenset(other for other in after if other is not None and other is not task),
        added_inside=added_inside,
        by_xla=task.place.by_xla and not obstacle,
        obstacle=obstacle,
    )


def is_added_inside(partition: Partition, tensor: Tensor) -> bool:
    """Return whether a device adds a tensor up inside its calls, from micro-batch to micro-batch.

    Small gradients are: a step has hundreds of them, and an addition of each for every micro-batch
    would make the graph of the step large. Large ones are added up behind the call, where they can
    be freed at once.
    """
    if max(replica.num_micro_batches for replica in partition.layout.replicas) == 1:
        return False
    shape, state = tensor.shape, partition.sharding.states[tensor]
    if state != SUM or shape is None or not tensor.dtype.is_floating:
        return False
    count = math.prod(size for size in shape if isinstance(size, int))
    is_small = all(isinstance(size, int) for size in shape) and count * tensor.dtype.size < LARGE
    return is_small and tensor in partition.summed
