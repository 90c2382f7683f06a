"""The traced step as a plain graph: nodes and tensors with symbolic shapes.

It is read once from TensorFlow's graph, calls of functions are inlined, and the passes after it
never touch TensorFlow's own objects.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from evener._tf_private import graphs, operation_types
from evener.graph.definitions import in_order, static_shape
from evener.graph.dims import Size

CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
CHECKS = frozenset({"CheckNumerics", "CheckNumericsV2"})
"""Operations that fail or return what they are given: they run even if nobody uses it."""
SIDE_EFFECT_FREE = CHECKS | frozenset(
    {
        # Stateful for the masks of its dropout.
        "CudnnRNNV3",
        "CudnnRNNBackpropV3",
        "ReadVariableOp",
        "ResourceGather",
        "ResourceGatherNd",
        "VariableShape",
        "VarIsInitializedOp",
        "LookupTableFind",
        "LookupTableFindV2",
        "LookupTableSizeV2",
        "Placeholder",
        "PlaceholderWithDefault",
    }
)
"""Operations that TensorFlow calls stateful but that change nothing."""


class Tensor:
    """One output of a node.

    Attributes:
        node: Node that computes it.
        index: Index among the outputs of the node.
        dtype: Its dtype.
        shape: Its symbolic shape, or None if its rank is not known. Of a tensor list: the shape
            of the stacked list, with 1 for a number of elements that is not known by symbols.
        value: Symbolic numbers of a small integer tensor of rank 0 or 1, if they are known.
        is_sizes: Whether it is made of sizes alone: then it is made anew where it is needed,
            instead of being computed by its node.
    """

    __slots__ = ("dtype", "index", "is_sizes", "node", "shape", "value")

    def __init__(self, node: Node, index: int, dtype: tf.DType) -> None:
        self.node = node
        self.index = index
        self.dtype = dtype
        self.shape: tuple[Size, ...] | None = None
        self.value: tuple[Size, ...] | None = None
        self.is_sizes = False

    @property
    def rank(self) -> int | None:
        """The number of axes, if it is known."""
        return None if self.shape is None else len(self.shape)

    def __repr__(self) -> str:
        return f"{self.node.name}:{self.index}{self.shape}"


class Node:
    """One operation.

    Attributes:
        name: Unique in its graph.
        op: The type of operation, such as ``"MatMul"``.
        inputs: The tensors it reads.
        attrs: Its attributes, as TensorFlow's protocol buffers.
        device: The device that was asked for, or an empty string.
        outputs: Tensors that it computes.
        after: The stateful nodes that must run before, by control dependencies.
        bodies: Graphs of the functions of a loop or condition, by attribute; empty if they change
            state.
        row_loop: Roles in a loop over rows, as far as they are certain; known with the shapes.
        static_shapes: TensorFlow's own shapes of the outputs, None for an unknown size or rank.
        source: The name of TensorFlow's operation that it was read from, and its graph.
        xla: The name of the function with ``jit_compile=True`` it was inlined from, or empty.
    """

    __slots__ = (
        "after",
        "attrs",
        "bodies",
        "device",
        "inputs",
        "name",
        "op",
        "outputs",
        "row_loop",
        "source",
        "static_shapes",
        "xla",
    )

    def __init__(
        self,
        name: str,
        op: str,
        inputs: Sequence[Tensor],
        attrs: Mapping[str, Any],
        *,
        dtypes: Sequence[tf.DType],
        device: str = "",
        static_shapes: Sequence[tuple[int | None, ...] | None] = (),
        source: tuple[Any, str] | None = None,
        xla: str = "",
    ) -> None:
        self.name = name
        self.op = op
        self.inputs = list(inputs)
        self.attrs = attrs
        self.device = device
        self.outputs = tuple(Tensor(self, k, dtype) for k, dtype in enumerate(dtypes))
        self.after: frozenset[Node] = frozenset()
        self.bodies: dict[str, Graph] = {}
        self.row_loop: RowLoop | None = None
        self.static_shapes = tuple(static_shapes) or (None,) * len(self.outputs)
        self.source = source
        self.xla = xla

    @property
    def is_stateful(self) -> bool:
        """Whether it reads or changes state, so that its place in the order matters."""
        return operation_types.is_stateful(self.op)

    @property
    def has_side_effect(self) -> bool:
        """Whether it must run even if nobody uses its outputs."""
        return self.is_stateful and self.op not in SIDE_EFFECT_FREE

    def bool_attr(self, name: str) -> bool:
        """Return a boolean attribute, False if it is not there."""
        return name in self.attrs and self.attrs[name].b

    def int_attr(self, name: str) -> int:
        """Return an integer attribute."""
        return self.attrs[name].i

    def ints_attr(self, name: str) -> tuple[int, ...]:
        """Return a list of integers."""
        return tuple(self.attrs[name].list.i) if name in self.attrs else ()

    def text_attr(self, name: str) -> str:
        """Return an attribute that is text."""
        return self.attrs[name].s.decode() if name in self.attrs else ""

    def function_attr(self, name: str) -> str:
        """Return the name of a function that an attribute holds."""
        return self.attrs[name].func.name

    def __repr__(self) -> str:
        return f"{self.name}({self.op})"


class Role(enum.Enum):
    """Roles of the arguments of a loop over rows."""

    COUNTER = enum.auto()
    """The number of the round, from 0."""
    SAME = enum.auto()
    """Handed through."""
    READ = enum.auto()
    """A list that is handed through, of which a round reads its row."""
    WRITTEN = enum.auto()
    """A list of which a round writes its row, and may read it."""
    PUSHED = enum.auto()
    """A list that begins empty and grows by one row in every round."""
    POPPED = enum.auto()
    """A list that loses its last row in every round."""
    SUM = enum.auto()
    """What is added to in every round, and not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLoop:
    """A loop whose rounds have one row each.

    Attributes:
        count: The number of rounds, and of elements in the lists of rows.
        roles: Role of every argument.
        tests: The comparisons of a counter with the number of rounds, in the condition.
        at_rows: The reads and writes at the row of the round, with the number of the list.
        made: Lists that the body makes, of as many elements, and adds to a list of rows.
        indices: The lists that the counter is pushed to.
    """

    count: Size
    roles: tuple[Role, ...]
    tests: frozenset[Node]
    at_rows: dict[Node, int]
    made: frozenset[Node]
    indices: frozenset[int]


class Graph:
    """Nodes in an order in which they can run, with what goes in and comes out.

    Attributes:
        nodes: Every node after what it reads.
        inputs: The outputs of the placeholders, in the order of the function's arguments.
        outputs: Tensors that the function returns.
        functions: Finds the graph of a function by its name, for loops and conditions.
    """

    def __init__(self, func_graph: Any) -> None:
        self.functions = graphs.FunctionBodies(func_graph)
        self.nodes: list[Node] = []
        reader = _Reader(self.functions, self.nodes, prefix="", xla="")
        reader.read(func_graph, arguments=None, after=frozenset())
        self.inputs = [reader.tensor(t.name) for t in func_graph.inputs]
        self.outputs = [reader.tensor(t.name) for t in func_graph.outputs]

    def new_input(self, spec: tf.TensorSpec) -> Tensor:
        """Add an argument behind the others, and return it."""
        name, shape = f"argument_{len(self.inputs)}", tuple(spec.shape)
        node = Node(name, "Placeholder", [], {}, dtypes=[spec.dtype], static_shapes=[shape])
        self.nodes.append(node)
        self.inputs += node.outputs
        return node.outputs[0]

    def add(self, function: Callable[..., Any], inputs: Sequence[Tensor]) -> list[Tensor]:
        """Add the operations that a function of tensors makes, and return its results."""
        shapes: list[Any] = [t.node.static_shapes[t.index] for t in inputs]
        specs = [tf.TensorSpec(s, t.dtype) for s, t in zip(shapes, inputs, strict=True)]
        traced = tf.function(function, autograph=False).get_concrete_function(*specs)
        reader = _Reader(self.functions, self.nodes, prefix=f"added_{len(self.nodes)}/", xla="")
        reader.read(traced.graph, inputs, frozenset())
        return [reader.tensor(t.name) for t in traced.graph.outputs]

    def body(self, name: str) -> Graph:
        """Return a new graph of a function that a loop or a condition calls."""
        return Graph(self.functions.find(name))

    def drop_identities_of_results(self) -> None:
        """Return what comes before identities that only hand results out.

        TensorFlow adds them behind all writes, where they would be tasks of their own.
        """
        num_readers = Counter(tensor.node for node in self.nodes for tensor in node.inputs)
        instead: dict[Tensor, Tensor] = {}
        for node in reversed(self.nodes):
            if node.op != "Identity" or num_readers[node]:
                continue
            if any(n.op != "ReadVariableOp" and not n.has_side_effect for n in node.after):
                continue  # It alone asks for a check, which else would not run.
            [before] = node.inputs
            if before not in self.inputs and node.device in ("", before.node.device):
                num_readers[before.node] -= 1
                instead[node.outputs[0]] = before
        for number, tensor in enumerate(self.outputs):
            while tensor in instead:
                tensor = instead[tensor]
            self.outputs[number] = tensor
        dropped = {tensor.node for tensor in instead}
        self.nodes = [node for node in self.nodes if node not in dropped]

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)


class _Reader:
    """Reads one graph of TensorFlow's into a list of nodes; calls are read in place."""

    def __init__(self, functions: Any, nodes: list[Node], *, prefix: str, xla: str) -> None:
        self._functions = functions
        self._nodes = nodes
        self._prefix = prefix
        self._xla = xla
        self._tensors: dict[str, Tensor] = {}
        # What a control dependency on a node of this name waits for.
        self._ends: dict[str, frozenset[Node]] = {}

    def tensor(self, name: str) -> Tensor:
        name = name.removesuffix(":0") if name.endswith(":0") else name
        return self._tensors[name]

    def read(
        self, func_graph: Any, arguments: Sequence[Tensor] | None, after: frozenset[Node]
    ) -> frozenset[Node]:
        """Read all nodes; return the stateful ones that a caller has to wait for."""
        definition = func_graph.as_graph_def(add_shapes=True)
        given = {}
        if arguments is not None:
            given = {t.op.name: a for t, a in zip(func_graph.inputs, arguments, strict=True)}
        by_name = {node.name: node for node in definition.node}
        for definition_node in in_order(by_name):
            if definition_node.name in given:
                self._tensors[definition_node.name] = given[definition_node.name]
                self._ends[definition_node.name] = frozenset()
            else:
                self._read_node(definition_node, func_graph, after)
        ends: frozenset[Node] = frozenset()
        for operation in func_graph.control_outputs:
            ends |= self._ends[operation.name]
        return ends

    def _read_node(self, definition: Any, func_graph: Any, after: frozenset[Node]) -> None:
        inputs, waits = [], after
        for name in definition.input:
            if name.startswith("^"):
                waits |= self._ends[name[1:]]
            else:
                inputs.append(self._tensors[name])
        xla = self._xla
        is_operation = operation_types.is_operation(definition.op)
        if definition.op in CALLS or not is_operation:
            name = definition.attr["f"].func.name if is_operation else definition.op
            body = self._functions.find(name)
            if "_XlaMustCompile" in definition.attr and definition.attr["_XlaMustCompile"].b:
                xla = xla or self._prefix + definition.name
            reader = _Reader(
                self._functions, self._nodes, prefix=f"{self._prefix}{definition.name}/", xla=xla
            )
            ends = reader.read(body, inputs, waits)
            for index, output in enumerate(body.outputs):
                self._enter(definition.name, index, reader.tensor(output.name))
            self._ends[definition.name] = ends | waits
            return
        if definition.op == "IdentityN":
            # Tensors that have nothing to do with each other.
            self._ends[definition.name] = waits
            for index, tensor in enumerate(inputs):
                self._enter(definition.name, index, tensor)
            return
        shapes = [static_shape(s) for s in definition.attr["_output_shapes"].list.shape]
        node = Node(
            self._prefix + definition.name,
            definition.op,
            inputs,
            definition.attr,
            dtypes=operation_types.output_dtypes(definition),
            device=definition.device,
            static_shapes=shapes,
            source=(func_graph, definition.name),
            xla=xla,
        )
        for tensor in inputs:
            waits |= tensor.node.after if not tensor.node.is_stateful else frozenset()
        node.after = waits
        self._ends[definition.name] = frozenset({node}) if node.is_stateful else waits
        self._nodes.append(node)
        for index, tensor in enumerate(node.outputs):
            self._enter(definition.name, index, tensor)

    def _enter(self, name: str, index: int, tensor: Tensor) -> None:
        self._tensors[name if index == 0 else f"{name}:{index}"] = tensor
