"""Functions made of nodes of a traced step, without tracing it again.

A function definition is a list of node definitions. A part computes the traced nodes with other
inputs: its rows instead of the batch, its own sizes instead of those of the whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import tensorflow as tf

from evener._tf_private import graphs
from evener.graph.dims import Dim, Size
from evener.graph.nodes import SymbolTable, Tensor

if TYPE_CHECKING:
    from evener.graph.ops.states import State


@dataclass(frozen=True, slots=True)
class NumberArgument:
    name: str  # Name of the symbol: ``"B"``, ``"b"``, ``"o"`` or another symbol of the step


@dataclass(frozen=True, slots=True)
class TensorArgument:
    tensor: Tensor  # Tensor
    state: State  # State in which it is given: a part of it, or the whole


@dataclass(frozen=True, slots=True)
class SumArgument:
    tensor: Tensor  # Tensor of which every micro-batch gives a partial sum


@dataclass(frozen=True, slots=True)
class InputArgument:
    index: int  # Index of the input


Argument: TypeAlias = NumberArgument | TensorArgument | SumArgument | InputArgument


class FunctionBuilder:
    def __init__(self, name: str, *, table: SymbolTable, may_be_on_cpu: bool = True) -> None:
        self.table = table
        self.may_be_on_cpu = may_be_on_cpu
        self.origin: tuple[Any, str] | None = None
        self.waits: Sequence[str] = ()
        self.definition = graphs.FunctionDef()
        self.definition.signature.name = self.name = graphs.unique_function_name(name)
        self.arguments: dict[Argument, str] = {}
        self.outputs: list[tf.DType] = []
        self._origins: dict[str, Any] = {}
        self._included: list[FunctionBuilder] = []
        self._function: graphs.Function | None = None
        self._dtypes: dict[str, tf.DType] = {}
        self._sizes: dict[object, str] = {}
        self._names: set[str] = set()

    def argument(self, argument: Argument, dtype: tf.DType) -> str:
        """Return the reference to an argument; it is added when it is first asked for."""
        if argument not in self.arguments:
            name = f"a{len(self.arguments)}"
            entry = self.definition.signature.input_arg.add()
            entry.name, entry.type = name, dtype.as_datatype_enum
            self.arguments[argument] = name
            self._dtypes[name] = dtype
        return self.arguments[argument]

    def end_with(self, numbers: Sequence[NumberArgument]) -> None:
        """Let numbers be the last arguments, in the order that all branches share."""
        for number in numbers:
            self.argument(number, self.table.dtype_of(number.name))
        first = [argument for argument in self.arguments if argument not in numbers]
        self.arguments = {key: self.arguments[key] for key in (*first, *numbers)}
        entries = {entry.name: entry for entry in self.definition.signature.input_arg}
        ordered = [entries[name] for name in self.arguments.values()]
        copies = [type(entry).FromString(entry.SerializeToString()) for entry in ordered]
        del self.definition.signature.input_arg[:]
        self.definition.signature.input_arg.extend(copies)

    def output(self, reference: str, dtype: tf.DType) -> None:
        name = f"r{len(self.outputs)}"
        entry = self.definition.signature.output_arg.add()
        entry.name, entry.type = name, dtype.as_datatype_enum
        self.definition.ret[name] = reference
        self.outputs.append(dtype)

    def copy(
        self,
        op: str,
        name: str,
        inputs: Sequence[str],
        attrs: Mapping[str, Any],
        *,
        after: Sequence[str] = (),
    ) -> list[str]:
        node = self.definition.node_def.add()
        node.op, node.name = op, self._unique(name)
        node.input.extend([*inputs, *(f"^{name}" for name in (*after, *self.waits))])
        for key, value in attrs.items():
            if key not in ("_class", "_output_shapes"):
                node.attr[key].CopyFrom(value)
        if self.origin is not None:
            graph, original = self.origin
            function = f"{graph.name}_{id(graph)}"
            self._origins[function] = graph
            node.experimental_debug_info.original_node_names.append(original)
            node.experimental_debug_info.original_func_names.append(function)
        return [f"{node.name}:{output}" for output in graphs.output_names(op, node.attr)]

    def op(
        self,
        op: str,
        inputs: Sequence[str],
        attrs: Mapping[str, Any],
        *,
        private: Mapping[str, Any] | None = None,
    ) -> list[str]:
        known = {a.name for a in graphs.op_definition(op).attr}
        values = {key: attribute(value) for key, value in attrs.items() if key in known}
        return self.copy(op, op, inputs, {**values, **(private or {})})

    def include(self, function: FunctionBuilder) -> None:
        """Register another function, which a node of this one calls, together with this one."""
        self._included.append(function)

    def constant(self, value: Any, dtype: tf.DType) -> str:
        array = np.asarray(value, dtype=dtype.as_numpy_dtype)
        key = ("constant", dtype, array.shape, array.tobytes())
        if key not in self._sizes:
            proto = tf.make_tensor_proto(array, dtype=dtype)
            attrs = {"dtype": dtype, "value": graphs.AttrValue(tensor=proto)}
            self._sizes[key] = self.op("Const", [], attrs)[0]
        return self._sizes[key]

    def number(self, size: Size, dtype: tf.DType | str) -> str:
        """Add a scalar: the value of a size in the part that calls the function."""
        dtype = tf.as_dtype(dtype)
        if isinstance(size, int):
            return self.constant(size, dtype)
        key = ("number", size, dtype)
        if key not in self._sizes:
            # The number of elements of a large tensor is no int32.
            computed = tf.int32 if dtype == tf.int32 else tf.int64
            self._sizes[key] = self.cast(self._polynomial(size, computed), computed, dtype)
        return self._sizes[key]

    def vector(self, sizes: Sequence[Size], dtype: tf.DType | str) -> str:
        dtype = tf.as_dtype(dtype)
        if all(isinstance(size, int) for size in sizes):
            return self.constant(np.asarray(sizes).reshape([len(sizes)]), dtype)
        key = ("vector", tuple(sizes), dtype)
        if key not in self._sizes:
            numbers = [self.number(size, dtype) for size in sizes]
            attrs = {"T": dtype, "N": len(numbers), "axis": 0}
            self._sizes[key] = self.op("Pack", numbers, attrs)[0]
        return self._sizes[key]

    def sizes(self, sizes: Sequence[Size], dtype: tf.DType, *, is_scalar: bool) -> str:
        return self.number(sizes[0], dtype) if is_scalar else self.vector(sizes, dtype)

    def element(self, vector: str, index: int, dtype: tf.DType) -> str:
        bounds = [self.constant([k], tf.int32) for k in (index, index + 1, 1)]
        return self.strided_slice([vector, *bounds], dtype, shrink_axis_mask=1)

    def strided_slice(self, inputs: Sequence[str], dtype: tf.DType, **masks: int) -> str:
        names = ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
        masks = {**dict.fromkeys((f"{name}_mask" for name in names), 0), **masks}
        return self.op("StridedSlice", inputs, {"T": dtype, "Index": tf.int32, **masks})[0]

    def keep(self, name: str) -> None:
        """Let a node run although nothing uses its outputs."""
        entry = f"c{len(self.definition.control_ret)}"
        self.definition.signature.control_output.append(entry)
        self.definition.control_ret[entry] = name

    def stay_whole(self) -> None:
        self.definition.attr["_noinline"].b = True

    def dtype_of(self, argument: str) -> tf.DType:
        return self._dtypes[argument]

    def symbol(self, name: str) -> str:
        key = ("symbol", name)
        if key not in self._sizes:
            self._sizes[key] = self.read_symbol(name)
        return self._sizes[key]

    def read_symbol(self, name: str) -> str:
        """Add the number of a symbol: an argument, unless the function can tell it."""
        return self.argument(NumberArgument(name), self.table.dtype_of(name))

    def register(self, keeps: Any = None) -> None:
        for function in self._included:
            if function._function is None:
                function.register(keeps)
        children = [function.function for function in self._included]
        origins = {**self._origins}
        for child in children:
            origins.update(child.origins)
        self._function = graphs.Function(
            self.definition, children=children, origins=origins, keeps=keeps
        )

    @property
    def function(self) -> graphs.Function:
        assert self._function is not None
        return self._function

    def _polynomial(self, size: Dim, dtype: tf.DType) -> str:
        total = ""
        for monomial, factor in size.terms.items():
            factors = [
                self.cast(self.symbol(name), self.table.dtype_of(name), dtype) for name in monomial
            ]
            if factor != 1 or not factors:
                factors.append(self.constant(factor, dtype))
            term = factors[0]
            for other in factors[1:]:
                term = self.op("Mul", [term, other], {"T": dtype})[0]
            total = self.op("AddV2", [total, term], {"T": dtype})[0] if total else term
        return total

    def cast(self, reference: str, source: tf.DType, target: tf.DType) -> str:
        if source == target:
            return reference
        key = ("cast", reference, target)
        if key not in self._sizes:
            attrs = {"SrcT": source, "DstT": target, "Truncate": False}
            self._sizes[key] = self.op("Cast", [reference], attrs)[0]
        return self._sizes[key]

    def _unique(self, name: str) -> str:
        base = name.replace("/", "_").lstrip("_") or "n"
        if not base[0].isalpha():
            base = f"n{base}"
        name, count = base, 0
        while name in self._names or name in self._dtypes:
            count += 1
            name = f"{base}_{count}"
        self._names.add(name)
        return name


def attribute(value: Any) -> Any:
    if isinstance(value, graphs.AttrValue):
        return value
    if isinstance(value, tf.DType) or value in ("int32", "int64"):
        return graphs.AttrValue(type=tf.as_dtype(value).as_datatype_enum)
    for kind, field in ((bool, "b"), (int, "i"), (float, "f")):
        if isinstance(value, kind):
            return graphs.AttrValue(**{field: value})
    return graphs.AttrValue(s=str(value).encode())
