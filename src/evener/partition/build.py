"""Functions of tasks, made of the nodes of the step.

A node reads its function's results, arguments, constants, or sizes that are computed where they are
read. Bodies of loops and conditions become functions too, for a part or for all; numbers that a
body is not given in the traced step, such as the samples of its part, become further arguments,
which a loop hands through.

Kernels that fail on no rows, or give other sizes then, are skipped on a part without samples::

    samples?  yes -> the task, or the operation in the body of a loop
              no  -> no rows of what is sharded, for sums what changes nothing

A task is skipped as a whole. A loop is not: it counts its rounds, and nodes behind it read the
count, so only the operation in its body is skipped. A replacement needs the sizes of the results.
Sizes that only a kernel knows, as of a convolution over unknown lengths, are computed from one
sample of zeros.

XLA compiles a whole function on one device. Between tasks it can pass neither tensor lists nor
sizes that depend on the data, and what one branch of a condition keeps for its gradient has no
shape in the other. A task that needs one of these runs without XLA.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from evener._tf_private import graphs
from evener.graph.dims import Dim, PartSymbol, Size
from evener.graph.functions import (
    FunctionBuilder,
    InputArgument,
    NumberArgument,
    SumArgument,
    TensorArgument,
)
from evener.graph.nodes import Graph, Node, SymbolSource, SymbolTable, Tensor
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
    known,
    part_sizes,
    rows_of,
    rows_per_sample,
    serves,
    shape_of,
)
from evener.graph.rewrites import CONDITIONS, LOOPS, num_leading
from evener.partition.layout import HOST
from evener.partition.shard import (
    is_known_to_parts,
    is_made_of_sizes,
    replicated_sharding,
    requests_of,
)
from evener.partition.tasks import Partition, StepTask, TaskFunction

LARGE = 1 << 18  # Least bytes of a gradient that is added up behind the call that gives it


class NodeFunction(FunctionBuilder):
    def __init__(
        self,
        name: str,
        sharding: Sharding,
        *,
        table: SymbolTable,
        may_be_on_cpu: bool = True,
        is_body: bool = False,
    ) -> None:
        super().__init__(name, table=table, may_be_on_cpu=may_be_on_cpu)
        self.sharding = sharding
        self.references: dict[Tensor, str] = {}
        self.is_body = is_body
        self.names: dict[Node, str] = {}
        self._sliced: dict[tuple[Tensor, Sharded], str] = {}

    def add(self, node: Node) -> None:
        self.origin = node.source
        decision = self.sharding.decisions.get(node)
        inputs = [self.get(*request) for request in requests_of(self.sharding, node)]
        if self.is_body and decision is not None and decision.needs_samples:
            outputs = _add_guarded(self, node, inputs, decision)
        elif decision is not None and decision.lower is not None:
            outputs = decision.lower(self, node, inputs)
        elif node.bodies:
            outputs = add_functional(self, node, inputs, decision)
        else:
            after = [self.names[before] for before in node.after if before in self.names]
            is_compiled = node.op in LOOPS | CONDITIONS and node.xla
            attrs = _lowered(self, node.op, node.attrs) if is_compiled else node.attrs
            outputs = self.copy(node.op, node.name, inputs, attrs, after=after)
        if node.is_stateful:
            self.names[node] = self.definition.node_def[-1].name
        self.references.update(zip(node.outputs, outputs, strict=True))

    def get(self, tensor: Tensor, request: State | Numbers) -> str:
        """Return the reference to a tensor as it is requested."""
        is_scalar = tensor.rank == 0
        if isinstance(request, Numbers):
            return self.sizes(request.sizes, tensor.dtype, is_scalar=is_scalar)
        # Values that differ from part to part are arguments: rows, and the start of a partial sum,
        # which the first part alone has.
        is_split = isinstance(request, Sharded) and not self.is_body
        if not is_split and not isinstance(request, Partial):
            if tensor.is_sizes and tensor.value is not None:
                sizes = self.sizes(tensor.value, tensor.dtype, is_scalar=is_scalar)
                return self._part(tensor, request, sizes)
            if tensor.node.op == "Const":
                if tensor not in self.references:
                    node = tensor.node
                    [self.references[tensor]] = self.copy("Const", node.name, [], node.attrs)
                return self._part(tensor, request, self.references[tensor])
        if tensor in self.references and serves(self.sharding.states[tensor], request):
            return self.references[tensor]
        if self.is_body:
            return self._part(tensor, request, self.references[tensor])
        return self.argument(TensorArgument(tensor, request), tensor.dtype)

    def _part(self, tensor: Tensor, request: State, reference: str) -> str:
        """Take a part's rows out of a tensor that every part has as a whole."""
        if not isinstance(request, Sharded):
            return reference
        key = (tensor, request)
        if key not in self._sliced:
            self._sliced[key] = self._slice(tensor, request, reference)
        return self._sliced[key]

    def _slice(self, tensor: Tensor, request: Sharded, reference: str) -> str:
        """Slice along the axis that is split; of several blocks, in each of them."""
        axis, shape, is_whole = request.axis, shape_of(tensor), request.outer == 1
        rows = known(rows_per_sample(shape[axis], request))
        if not is_whole:
            blocks = (*shape[:axis], request.outer, request.rows * rows, *shape[axis + 1 :])
            reference, axis, shape = self._reshape(tensor, reference, blocks), axis + 1, blocks
        begin: list[Size] = [0] * len(shape)
        size: list[Size] = [-1] * len(shape)
        begin[axis] = request.before_part * rows
        size[axis] = request.in_part * rows
        numbers = [self.vector(begin, tf.int32), self.vector(size, tf.int32)]
        part = self.op("Slice", [reference, *numbers], {"T": tensor.dtype, "Index": tf.int32})[0]
        if is_whole:
            return part
        return self._reshape(tensor, part, part_sizes(shape_of(tensor), request))

    def _reshape(self, tensor: Tensor, reference: str, shape: Sequence[Size]) -> str:
        attrs = {"T": tensor.dtype, "Tshape": tf.int32}
        return self.op("Reshape", [reference, self.vector(shape, tf.int32)], attrs)[0]

    def read_symbol(self, name: str) -> str:
        """Add the number of a symbol, from a tensor in the function if it has the source."""
        source = self.table.symbols.get(name)
        reference = None if source is None else self.references.get(source.tensor)
        if source is not None and reference is not None:
            if is_known_to_parts(source, self.sharding.states[source.tensor]):
                return _read_source(self, name, source, reference)
        return super().read_symbol(name)


def _read_source(builder: FunctionBuilder, name: str, source: SymbolSource, reference: str) -> str:
    """Add the number of a symbol, read from the size or the value that it stands for."""
    tensor = source.tensor
    if source.axis is not None:
        shape = builder.op("Shape", [reference], {"T": tensor.dtype, "out_type": tf.int32})[0]
        return builder.element(shape, source.axis, tf.int32)
    if tensor.rank != 0:
        reference = builder.element(reference, source.index, tensor.dtype)
    return builder.cast(reference, tensor.dtype, builder.table.dtype_of(name))


def build_task(partition: Partition, task: StepTask, keeps: Any) -> TaskFunction:
    name = "_".join(filter(None, ["parts" if task.is_parts else "once", task.place.role]))
    sharding, layout = partition.sharding, partition.layout
    builder = NodeFunction(
        name, sharding, table=partition.inference, may_be_on_cpu=layout.may_be_on_cpu
    )
    if task.is_parts and layout.is_scheduled:
        # Do not inline: inlining drops the ordering of calls.
        builder.stay_whole()
    references = builder.references
    for node in task.nodes:
        gates = [references[t] for t in partition.gates.get(node, ()) if t in references]
        builder.waits = [gate.partition(":")[0] for gate in gates]
        builder.add(node)
    added_inside = frozenset(t for t in task.fetches if is_added_inside(partition, t))
    for tensor in task.fetches:
        reference = references[tensor]
        if tensor in added_inside:
            so_far = builder.argument(SumArgument(tensor), tensor.dtype)
            reference = builder.op("AddV2", [so_far, reference], {"T": tensor.dtype})[0]
        builder.output(reference, tensor.dtype)
    obstacle = ""
    if task.place.by_xla:
        tensors = [a.tensor for a in builder.arguments if isinstance(a, TensorArgument)]
        obstacle = _find_obstacle(partition, task, tensors)
        if not obstacle:
            builder.stay_whole()
    stateful = [node for node in task.nodes if node.is_stateful]
    for node in stateful:
        # Reads too: if the call is inlined, later calls wait for these nodes only.
        builder.keep(builder.names[node])
    builder.register(keeps)
    after = {partition.task_of.get(before) for node in task.nodes for before in node.after}
    decisions = [sharding.decisions.get(node) for node in task.nodes]
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


def _find_obstacle(partition: Partition, task: StepTask, arguments: Iterable[Tensor]) -> str:
    """Return why XLA cannot compile a task, or an empty text."""
    for tensor in (*arguments, *task.fetches):
        if tensor.dtype == tf.variant:
            return f"{tensor.node.name} is a tensor list that other tasks use"
        if tensor.node.op in CONDITIONS:
            return f"{tensor.node.name} keeps what its gradient needs of one branch"
    for node in task.nodes:
        handles = (tensor for tensor in node.inputs if tensor.dtype == tf.resource)
        if len({partition.owners.get(handle, HOST) for handle in handles}) > 1:
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


def add_functional(
    builder: FunctionBuilder, node: Node, inputs: Sequence[str], decision: Decision | None
) -> Sequence[str]:
    """Add a loop or a condition, which every part runs as decided, or one device of all samples."""
    inputs, first = list(inputs), num_leading(node)
    if decision is None:
        decision = Decision(
            inputs=(REPLICATED,) * len(inputs),
            outputs=(REPLICATED,) * len(node.outputs),
            bodies={name: replicated_sharding(body) for name, body in node.bodies.items()},
        )
    for index, length in decision.list_lengths.items():
        numbers = [inputs[index], builder.number(length, tf.int32)]
        [inputs[index]] = builder.op("TensorListResize", numbers, {})
    states = [REPLICATED if isinstance(s, Numbers) else s for s in decision.inputs[first:]]
    functions: dict[str, FunctionBuilder] = {}
    for name, body in node.bodies.items():
        # The condition of a loop answers in the state that it has.
        results = None if name == "cond" else states if name == "body" else decision.outputs
        functions[name] = _build_body(builder, body, decision.bodies[name], states, results)
    extra, types = _share_numbers(builder, functions.values(), node.inputs[first:])
    numbers = [builder.symbol(argument.name) for argument in extra]
    if node.op in LOOPS:
        body_function = functions["body"]
        for argument in extra:
            reference = body_function.arguments[argument]
            body_function.output(reference, body_function.dtype_of(reference))
        attrs: dict[str, Any] = {
            "T": types,
            "cond": graphs.function_reference(functions["cond"].name),
            "body": graphs.function_reference(body_function.name),
            "output_shapes": graphs.unknown_shapes(len(inputs) + len(extra)),
            "parallel_iterations": node.attrs["parallel_iterations"],
        }
        outputs = builder.op("StatelessWhile", [*inputs, *numbers], attrs, private=graphs.LOWERED)
        return outputs[: len(inputs)]
    return _add_branches(builder, node, [*inputs, *numbers], types, functions)


def _build_body(
    parent: FunctionBuilder,
    graph: Graph,
    sharding: Sharding,
    states: Sequence[State],
    results: Sequence[State] | None,
) -> FunctionBuilder:
    builder = NodeFunction(
        "body", sharding, table=parent.table, may_be_on_cpu=parent.may_be_on_cpu, is_body=True
    )
    for tensor, state in zip(graph.inputs, states, strict=True):
        builder.references[tensor] = builder.argument(TensorArgument(tensor, state), tensor.dtype)
    for node in graph.operations():
        if node.op != "Const" and not is_made_of_sizes(node):
            builder.add(node)
    for index, tensor in enumerate(graph.outputs):
        state = sharding.states[tensor] if results is None else results[index]
        builder.output(builder.get(tensor, state), tensor.dtype)
    return builder


def _share_numbers(
    builder: FunctionBuilder, functions: Collection[FunctionBuilder], tensors: Sequence[Tensor]
) -> tuple[list[NumberArgument], Any]:
    """Let functions have the same numbers behind their arguments for tensors.

    Returns the numbers and the types of all arguments.
    """
    extra: dict[NumberArgument, None] = {}
    for function in functions:
        for argument in list(function.arguments)[len(tensors) :]:
            assert isinstance(argument, NumberArgument)
            extra[argument] = None
    for function in functions:
        function.end_with(list(extra))
        builder.include(function)
    dtypes = [builder.table.dtype_of(argument.name) for argument in extra]
    return list(extra), graphs.type_list([*(tensor.dtype for tensor in tensors), *dtypes])


def _add_branches(
    builder: FunctionBuilder,
    node: Node,
    inputs: Sequence[str],
    types: Any,
    functions: Mapping[str, FunctionBuilder],
) -> Sequence[str]:
    """Add a condition with the results of a node: what chooses a branch is its first input."""
    attrs: dict[str, Any] = {
        "Tin": types,
        "Tout": graphs.type_list([t.dtype for t in node.outputs]),
        "output_shapes": graphs.unknown_shapes(len(node.outputs)),
    }
    if "then_branch" not in functions:
        names = [function.name for function in functions.values()]
        attrs["branches"] = graphs.function_references(names)
        return builder.op("StatelessCase", inputs, attrs, private=graphs.LOWERED)
    for name, function in functions.items():
        attrs[name] = graphs.function_reference(function.name)
    attrs["Tcond"] = node.inputs[0].dtype if node.bodies else tf.bool
    return builder.op("StatelessIf", inputs, attrs, private=graphs.LOWERED)


def _lowered(builder: FunctionBuilder, op: str, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a node whose loops and conditions may run on several devices.

    TensorFlow makes those of functions with ``jit_compile=True`` for one device, at any depth.
    """
    copies: dict[str, Any] = {}
    for key, value in attrs.items():
        copy = copies[key] = graphs.AttrValue()
        copy.CopyFrom(value)
        for reference in [copy.func] if copy.HasField("func") else copy.list.func:
            body = FunctionBuilder("body", table=builder.table)
            body.definition.CopyFrom(graphs.function_definition(reference.name))
            body.definition.signature.name = reference.name = body.name
            for node in body.definition.node_def:
                for name, changed in _lowered(body, node.op, node.attr).items():
                    node.attr[name].CopyFrom(changed)
            builder.include(body)
    return copies | graphs.LOWERED if op in LOOPS | CONDITIONS else copies


def branches_of(
    function: TaskFunction, partition: Partition
) -> tuple[FunctionBuilder, FunctionBuilder] | None:
    """Return the functions with and without samples; None if one function serves for both."""
    if not function.needs_samples:
        return None
    skipped = _skipping_function(function, partition)
    return None if skipped is None else (branch_of(function, partition), skipped)


def branch_of(function: TaskFunction, partition: Partition) -> FunctionBuilder:
    """Return the branch that runs a task: its function, or a function that calls it.

    A condition does not compile its branches by XLA. And TensorFlow does not optimize the body of a
    branch that is not inlined for its device: convolutions take about twice as long on a CPU.
    """
    own = function.builder
    if not function.by_xla and not partition.layout.is_scheduled:
        return own
    builder = FunctionBuilder("branch", table=own.table, may_be_on_cpu=own.may_be_on_cpu)
    _take_arguments(builder, own)
    attrs = {
        "Tin": graphs.type_list([own.dtype_of(name) for name in own.arguments.values()]),
        "Tout": graphs.type_list(own.outputs),
        "f": graphs.function_reference(own.name),
    }
    builder.include(own)
    private = graphs.BY_XLA if function.by_xla else {}
    outputs = builder.op(
        "PartitionedCall", list(builder.arguments.values()), attrs, private=private
    )
    for reference, dtype in zip(outputs, own.outputs, strict=True):
        builder.output(reference, dtype)
    builder.register()
    return builder


def _take_arguments(builder: FunctionBuilder, function: FunctionBuilder) -> None:
    for argument, reference in function.arguments.items():
        builder.argument(argument, function.dtype_of(reference))


def _skipping_function(function: TaskFunction, partition: Partition) -> FunctionBuilder | None:
    """Make a function with the arguments of a task's that returns results without samples.

    It is None if the task has a tensor list among its results, or sizes that nobody knows.
    """
    builder = _NoSamples(function, partition.sharding)
    for tensor in function.task.fetches:
        state = partition.sharding.states[tensor]
        if tensor in function.added_inside:
            result = builder.arguments[SumArgument(tensor)]
        elif isinstance(state, Unset) and tensor.dtype != tf.variant:
            # Saved by one operation for another, which does not run either.
            result = builder.constant(np.zeros([0]), tensor.dtype)
        else:
            try:
                result = _without_samples(builder, tensor, state)
            except _UnknownSizeError:
                return None
        builder.output(result, tensor.dtype)
    builder.register()
    return builder


def _add_guarded(
    builder: FunctionBuilder, node: Node, inputs: Sequence[str], decision: Decision
) -> Sequence[str]:
    """Add an operation of a body that runs where a part has samples; elsewhere are no rows."""
    functions: dict[str, FunctionBuilder] = {}
    for branch, name in (("then_branch", "samples"), ("else_branch", "no_samples")):
        function = functions[branch] = FunctionBuilder(
            name, table=builder.table, may_be_on_cpu=builder.may_be_on_cpu
        )
        function.origin = builder.origin
        arguments = [
            function.argument(InputArgument(k), tensor.dtype)
            for k, tensor in enumerate(node.inputs)
        ]
        if branch == "else_branch":
            pairs = zip(node.outputs, decision.outputs, strict=True)
            outputs = [_without_samples(function, tensor, state) for tensor, state in pairs]
        elif decision.lower is not None:
            outputs = decision.lower(function, node, arguments)
        else:
            outputs = function.copy(node.op, node.name, arguments, node.attrs)
        for reference, tensor in zip(outputs, node.outputs, strict=True):
            function.output(reference, tensor.dtype)
    extra, types = _share_numbers(builder, functions.values(), node.inputs)
    numbers = [builder.symbol(argument.name) for argument in extra]
    in_part = builder.number(Sharded(0, 1, rows_of(decision)).in_part, tf.int32)
    has_samples = builder.op("Greater", [in_part, builder.constant(0, tf.int32)], {"T": tf.int32})
    return _add_branches(builder, node, [*has_samples, *inputs, *numbers], types, functions)


def _without_samples(builder: FunctionBuilder, tensor: Tensor, state: State) -> str:
    """Add the tensor of a part without samples: no rows, or terms that change nothing."""
    dtype = tensor.dtype
    if tensor.shape is None or dtype in (tf.variant, tf.resource):
        raise _UnknownSizeError(tensor.node.name)
    sizes = list(tensor.shape)
    if isinstance(state, Sharded):
        sizes[state.axis] = 0
    combine = state.combine if isinstance(state, Partial) else "sum"
    numbers: dict[str, Any] = {"sum": 0, "prod": 1, "all": True, "any": False}
    if combine in ("max", "min"):
        least = float("-inf") if dtype.is_floating else dtype.min
        numbers[combine] = least if combine == "max" else dtype.max
        if combine == "min" and dtype.is_floating:
            numbers[combine] = float("inf")
    return _fill(builder, sizes, numbers[combine], dtype)


def _fill(builder: FunctionBuilder, sizes: Sequence[Size], number: Any, dtype: tf.DType) -> str:
    inputs = [builder.vector(sizes, tf.int32), builder.constant(number, dtype)]
    return builder.op("Fill", inputs, {"T": dtype, "index_type": tf.int32})[0]


class _UnknownSizeError(Exception):
    """A size that does not follow from what a task is given."""


class _NoSamples(FunctionBuilder):
    """Function with the arguments of a task's, which reads sizes of one sample from shapes."""

    def __init__(self, function: TaskFunction, sharding: Sharding) -> None:
        own = function.builder
        super().__init__("no_samples", table=own.table, may_be_on_cpu=own.may_be_on_cpu)
        _take_arguments(self, own)
        self._nodes = function.task.nodes
        self._sharding = sharding
        self._tensors = {
            argument.tensor: (argument.state, reference)
            for argument, reference in self.arguments.items()
            if isinstance(argument, TensorArgument)
        }
        self._asked: set[str] = set()

    def number(self, size: Size, dtype: tf.DType | str) -> str:
        """Add a size; one that an earlier task has computed may be an argument as it is."""
        for tensor, (state, reference) in self._tensors.items():
            value = tensor.value or ()
            if state == REPLICATED and not isinstance(size, int) and size in value:
                if tensor.rank != 0:
                    reference = self.element(reference, value.index(size), tensor.dtype)
                return self.cast(reference, tensor.dtype, tf.as_dtype(dtype))
        return super().number(size, dtype)

    def read_symbol(self, name: str) -> str:
        """Return the number of a symbol; raise _UnknownSizeError if nothing in the task tells."""
        if isinstance(name, PartSymbol):
            return self.constant(0 if name.is_offset else 1, tf.int32)
        argument = NumberArgument(name)
        if argument in self.arguments:
            return self.arguments[argument]
        source = self.table.symbols.get(name)
        if source is not None and source.tensor in self._tensors:
            state, reference = self._tensors[source.tensor]
            if _has_sizes(source.tensor, state) and is_known_to_parts(source, state):
                return _read_source(self, name, source, reference)
        for tensor, (state, reference) in self._tensors.items():
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
        attrs = {"T": tensor.dtype, "out_type": tf.int32}
        number = self.element(self.op("Shape", [reference], attrs)[0], told.axis, tf.int32)
        if told.more:
            numbers = [number, self.constant(told.more, tf.int32)]
            [number] = self.op("Sub", numbers, {"T": tf.int32})
        if told.times != 1:
            numbers = [number, self.constant(told.times, tf.int32)]
            [number] = self.op("FloorDiv", numbers, {"T": tf.int32})
        return self.cast(number, tf.int32, self.table.dtype_of(name))

    def _of_zeros(self, node: Node) -> Sequence[str]:
        """Add an operation on one sample of zeros, whose results have the sizes of any sample's."""
        decision = self._sharding.decisions[node]
        if decision.bodies or node.is_stateful:
            raise _UnknownSizeError(node.name)
        inputs = [self._zeros(*pair) for pair in zip(node.inputs, decision.inputs, strict=True)]
        if decision.lower is not None:
            return decision.lower(self, node, inputs)
        return self.copy(node.op, node.name, inputs, node.attrs)

    def _zeros(self, tensor: Tensor, wanted: State | Numbers) -> str:
        """Return zeros with the rows of one sample; inputs that may be sizes keep their values."""
        is_scalar = tensor.rank == 0
        if isinstance(wanted, Numbers):
            return self.sizes(wanted.sizes, tensor.dtype, is_scalar=is_scalar)
        if wanted == REPLICATED:
            if tensor.node.op == "Const":
                return self.copy("Const", tensor.node.name, [], tensor.node.attrs)[0]
            if tensor.value is not None:
                return self.sizes(tensor.value, tensor.dtype, is_scalar=is_scalar)
            state, reference = self._tensors.get(tensor, (None, ""))
            if state == REPLICATED:
                return reference
        is_data = tensor.dtype.is_floating or tensor.dtype.is_complex or wanted != REPLICATED
        if tensor.shape is None or not is_data or tensor.dtype in (tf.variant, tf.string):
            raise _UnknownSizeError(tensor.node.name)
        sizes = part_sizes(tensor.shape, wanted) if isinstance(wanted, Sharded) else tensor.shape
        return _fill(self, sizes, 0, tensor.dtype)


def _has_sizes(tensor: Tensor, state: State) -> bool:
    """Return whether every part has the tensor in its sizes, with rows or without."""
    is_held = isinstance(state, Sharded | Partial) or state == REPLICATED
    return is_held and tensor.dtype not in (tf.variant, tf.resource)


class _Told(NamedTuple):
    """A size of a tensor from which the number of a symbol follows: ``times * symbol + more``."""

    axis: int
    times: int
    more: int


def _told_by(name: str, tensor: Tensor, state: State) -> _Told | None:
    """Return a size of a tensor that tells the number of a symbol, in every part."""
    if tensor.shape is None or not _has_sizes(tensor, state):
        return None
    for axis, size in enumerate(tensor.shape):
        is_shared = not isinstance(state, Sharded) or state.axis != axis
        if is_shared and isinstance(size, Dim) and {*size.terms} - {()} == {(name,)}:
            return _Told(axis, times=size.terms[name,], more=size.terms.get((), 0))
    return None
