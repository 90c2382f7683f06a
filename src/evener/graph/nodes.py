"""The traced step as a plain graph: nodes and tensors with symbolic shapes.

It is read once from TensorFlow's graph, with calls of functions inlined; the passes after it never
touch TensorFlow's own objects. Below: values of constants, numbers of elements, and the table of
symbols with their sources.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from evener._tf_private import graphs
from evener.graph.dims import Dim, Size, evaluate, symbol, symbols_of

# Definitions of nodes in TensorFlow's graphs: an order in which they can run, and their shapes.


def in_order(by_name: Mapping[str, Any]) -> Iterator[Any]:
    """Yield definitions of nodes after what they read.

    The gradient of a loop adds inputs to operations that were there before them, so the order in
    which a graph was made is not enough.
    """
    done: set[str] = set()
    for first in by_name:
        if first in done:
            continue
        stack = [(first, False)]
        while stack:
            name, is_ready = stack.pop()
            if is_ready:
                yield by_name[name]
                continue
            if name in done:
                continue
            done.add(name)
            stack.append((name, True))
            for text in reversed(by_name[name].input):
                before = text.removeprefix("^").partition(":")[0]
                if before not in done:
                    stack.append((before, False))


def static_shape(proto: Any) -> tuple[int | None, ...] | None:
    """Return the sizes in a shape, None for each that is not known, and if the rank is not."""
    if proto.unknown_rank:
        return None
    return tuple(None if dim.size < 0 else dim.size for dim in proto.dim)


CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
# Operations that fail or return what they are given: they run even if nobody uses it.
CHECKS = frozenset({"CheckNumerics", "CheckNumericsV2"})
# Operations that TensorFlow calls stateful but that change nothing; those of cuDNN are so for the
# masks of their dropout.
SIDE_EFFECT_FREE = CHECKS | frozenset(
    """
    CudnnRNNV3 CudnnRNNBackpropV3 ReadVariableOp ResourceGather ResourceGatherNd VariableShape
    VarIsInitializedOp LookupTableFind LookupTableFindV2 LookupTableSizeV2 Placeholder
    PlaceholderWithDefault
    """.split()
)


@dataclass(slots=True, eq=False, repr=False)
class Tensor:
    node: Node
    index: int
    dtype: tf.DType
    shape: tuple[Size, ...] | None = None
    value: tuple[Size, ...] | None = None
    is_sizes: bool = False

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    def __repr__(self) -> str:
        return f"{self.node.name}:{self.index}{self.shape}"


@dataclass(slots=True, eq=False, repr=False)
class Node:
    name: str
    op: str
    inputs: list[Tensor]
    attrs: Mapping[str, Any]
    _: KW_ONLY
    dtypes: InitVar[Sequence[tf.DType]]
    device: str = ""
    static_shapes: tuple[tuple[int | None, ...] | None, ...] = ()
    source: tuple[Any, str] | None = None
    xla: str = ""
    outputs: tuple[Tensor, ...] = field(init=False)
    after: frozenset[Node] = field(default=frozenset(), init=False)
    bodies: dict[str, Graph] = field(default_factory=dict, init=False)
    row_loop: RowLoop | None = field(default=None, init=False)

    def __post_init__(self, dtypes: Sequence[tf.DType]) -> None:
        self.outputs = tuple(Tensor(self, k, dtype) for k, dtype in enumerate(dtypes))
        self.static_shapes = self.static_shapes or (None,) * len(self.outputs)

    @property
    def is_stateful(self) -> bool:
        """Whether it reads or changes state, so that its place in the order matters."""
        return graphs.is_stateful(self.op)

    @property
    def has_side_effect(self) -> bool:
        """Whether it must run even if nobody uses its outputs."""
        return self.is_stateful and self.op not in SIDE_EFFECT_FREE

    def bool_attr(self, name: str) -> bool:
        return name in self.attrs and self.attrs[name].b

    def int_attr(self, name: str) -> int:
        return self.attrs[name].i

    def ints_attr(self, name: str) -> tuple[int, ...]:
        return tuple(self.attrs[name].list.i) if name in self.attrs else ()

    def text_attr(self, name: str) -> str:
        return self.attrs[name].s.decode() if name in self.attrs else ""

    def __repr__(self) -> str:
        return f"{self.name}({self.op})"


class Role(enum.Enum):
    COUNTER = enum.auto()  # The number of the round, from 0
    SAME = enum.auto()  # Handed through
    READ = enum.auto()  # A list that is handed through, of which a round reads its row
    WRITTEN = enum.auto()  # A list of which a round writes its row, and may read it
    PUSHED = enum.auto()  # A list that begins empty and grows by one row in every round
    POPPED = enum.auto()  # A list that loses its last row in every round
    SUM = enum.auto()  # What is added to in every round, and not read


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLoop:
    count: Size  # The number of rounds, and of elements in the lists of rows
    roles: tuple[Role, ...]  # Role of every argument
    # The comparisons of a counter with the number of rounds, in the condition
    tests: frozenset[Node]
    # The reads and writes at the row of the round, with the number of the list
    at_rows: dict[Node, int]
    # Lists that the body makes, of as many elements, and adds to a list of rows
    made: frozenset[Node]
    indices: frozenset[int]  # The lists that the counter is pushed to


class Graph:
    def __init__(self, func_graph: Any) -> None:
        self.functions = graphs.FunctionBodies(func_graph)
        self.nodes: list[Node] = []
        reader = _GraphReader(self.functions, self.nodes, prefix="", xla="")
        reader.read(func_graph, arguments=None, after=frozenset())
        self.inputs = [reader.tensor(t.name) for t in func_graph.inputs]
        self.outputs = [reader.tensor(t.name) for t in func_graph.outputs]

    def new_input(self, spec: tf.TensorSpec) -> Tensor:
        name, shape = f"argument_{len(self.inputs)}", tuple(spec.shape)
        node = Node(name, "Placeholder", [], {}, dtypes=[spec.dtype], static_shapes=(shape,))
        self.nodes.append(node)
        self.inputs += node.outputs
        return node.outputs[0]

    def add(self, function: Callable[..., Any], inputs: Sequence[Tensor]) -> list[Tensor]:
        """Add the operations that a function of tensors makes, and return its results."""
        shapes: list[Any] = [t.node.static_shapes[t.index] for t in inputs]
        specs = [tf.TensorSpec(s, t.dtype) for s, t in zip(shapes, inputs, strict=True)]
        traced = tf.function(function, autograph=False).get_concrete_function(*specs)
        reader = _GraphReader(
            self.functions, self.nodes, prefix=f"added_{len(self.nodes)}/", xla=""
        )
        reader.read(traced.graph, inputs, frozenset())
        return [reader.tensor(t.name) for t in traced.graph.outputs]

    def body(self, name: str) -> Graph:
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

    def operations(self) -> list[Node]:
        """Return the nodes that are no arguments."""
        arguments = {tensor.node for tensor in self.inputs}
        return [node for node in self.nodes if node not in arguments]


class _GraphReader:
    def __init__(self, functions: Any, nodes: list[Node], *, prefix: str, xla: str) -> None:
        self._functions = functions
        self._nodes = nodes
        self._prefix = prefix
        self._xla = xla
        self._tensors: dict[str, Tensor] = {}
        # What a control dependency on a node of this name waits for.
        self._ends: dict[str, frozenset[Node]] = {}

    def tensor(self, name: str) -> Tensor:
        return self._tensors[name.removesuffix(":0")]

    def read(
        self, func_graph: Any, arguments: Sequence[Tensor] | None, after: frozenset[Node]
    ) -> frozenset[Node]:
        definition = func_graph.as_graph_def(add_shapes=True)
        if arguments is not None:
            for tensor, argument in zip(func_graph.inputs, arguments, strict=True):
                self._tensors[tensor.op.name], self._ends[tensor.op.name] = argument, frozenset()
        for node in in_order({node.name: node for node in definition.node}):
            if node.name not in self._ends:
                self._read_node(node, func_graph, after)
        return frozenset[Node]().union(*(self._ends[op.name] for op in func_graph.control_outputs))

    def _read_node(self, definition: Any, func_graph: Any, after: frozenset[Node]) -> None:
        inputs, waits = [], after
        for name in definition.input:
            if name.startswith("^"):
                waits |= self._ends[name[1:]]
            else:
                inputs.append(self._tensors[name])
        xla = self._xla
        is_operation = graphs.is_operation(definition.op)
        if definition.op in CALLS or not is_operation:
            name = definition.attr["f"].func.name if is_operation else definition.op
            body = self._functions.find(name)
            if "_XlaMustCompile" in definition.attr and definition.attr["_XlaMustCompile"].b:
                xla = xla or self._prefix + definition.name
            reader = _GraphReader(
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
        node = Node(
            self._prefix + definition.name,
            definition.op,
            inputs,
            definition.attr,
            dtypes=graphs.output_dtypes(definition),
            device=definition.device,
            static_shapes=tuple(map(static_shape, definition.attr["_output_shapes"].list.shape)),
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


def constant_array(tensor: Tensor) -> np.ndarray | None:
    """Return the value of a constant, or of a slice of one; None for other tensors.

    The gradient of `tf.pad` cuts a column out of the paddings, which are a matrix.
    """
    node = tensor.node
    while node.op in ("Identity", "StopGradient"):
        node = node.inputs[0].node
    if node.op == "Slice":
        array = constant_array(node.inputs[0])
        begin, size = node.inputs[1].value, node.inputs[2].value
        numbers = [*(begin or ("",)), *(size or ("",))]
        if array is None or not all(isinstance(n, int) and n >= 0 for n in numbers):
            return None
        pairs = zip(begin or (), size or (), strict=True)
        return array[tuple(slice(first, first + count) for first, count in pairs)]
    return tf.make_ndarray(node.attrs["value"].tensor) if node.op == "Const" else None


def numbers(sizes: Sequence[Size], num_samples: int) -> tuple[int, ...]:
    """Return what sizes are where all samples are in one part."""
    values = dict.fromkeys(symbols_of(*sizes), 1)
    values |= {"B": num_samples, "b": num_samples, "o": 0}
    return tuple(int(evaluate(size, values)) for size in sizes)


def sizes_of(tensor: Tensor, num_samples: int) -> tuple[int, ...]:
    return numbers(tensor.shape or (), num_samples)


def num_elements(tensor: Tensor, num_samples: int) -> int:
    return math.prod(sizes_of(tensor, num_samples))


# Dtypes with numbers that are no int32. Those of uint64 keep their bits in an int64.
_WIDE = frozenset({tf.int64, tf.uint32, tf.uint64})


@dataclass(frozen=True, slots=True)
class SymbolSource:
    tensor: Tensor  # A tensor of the step
    axis: int | None  # The axis of it that has this size, or None if the symbol is a number in it
    index: int = 0  # Index of the element that is the number, if ``axis`` is None


@dataclass(slots=True)
class SymbolTable:
    """Makes symbols, always the same for the same size or number."""

    # Source of the number of each symbol; ``"B"`` is not among them
    symbols: dict[str, SymbolSource] = field(default_factory=dict)
    # The size of the batch, if the step was traced for batches of one size alone
    num_samples: int | None = None
    # Shapes that are known of tensors; None for sizes that are not known
    shapes: Mapping[Tensor, tuple[Size | None, ...]] = field(default_factory=dict)
    # Numbers that are known of constants
    values: Mapping[Tensor, tuple[Size, ...]] = field(default_factory=dict)
    scope: int = 0  # The graph whose nodes are read: a body has symbols of its own
    _by_key: dict[object, Dim] = field(default_factory=dict)

    def new_symbol(self, tensor: Tensor, axis: int | None, index: int = 0) -> Dim:
        """Return a symbol for a size, or for a number in an integer tensor."""
        key = (tensor, axis, index)
        if key not in self._by_key:
            name = f"s{len(self.symbols)}"
            self.symbols[name] = SymbolSource(tensor, axis, index)
            self._by_key[key] = symbol(name)
        return self._by_key[key]

    def symbol_for(self, key: object, tensor: Tensor, index: int = 0) -> Dim:
        """Return the symbol for a number that is computed from others: always the same one.

        A body has symbols of its own: what it computes is not there outside of it.
        """
        key = (self.scope, key)
        if key not in self._by_key:
            self._by_key[key] = self.new_symbol(tensor, None, index)
        return self._by_key[key]

    def dtype_of(self, name: str) -> tf.DType:
        """Return the dtype in which the number of a symbol is handed on: it holds all of them."""
        source = self.symbols.get(name)
        is_wide = source is not None and source.axis is None and source.tensor.dtype in _WIDE
        return tf.int64 if is_wide else tf.int32

    def is_made_of_sizes(self, size: Size) -> bool:
        """Return whether no symbol of a size is a number that is computed from data."""
        return all(self.symbols[name].axis is not None for name in symbols_of(size) - {"B"})

    def is_of_list(self, size: Size) -> bool:
        """Return whether a size has a symbol that only a tensor list knows."""
        names = symbols_of(size) - {"B"}
        return any(self.symbols[name].tensor.dtype == tf.variant for name in names)
