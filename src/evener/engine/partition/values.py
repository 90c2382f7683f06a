"""Values that the nodes of a function read: its results, arguments, constants, or sizes."""

from __future__ import annotations

import tensorflow as tf

from evener.engine.partition.function_arguments import NumberArgument, TensorArgument
from evener.engine.partition.functions import FunctionBuilder
from evener.engine.sharding.reads import is_known_to_parts
from evener.engine.trace.inference import Inference
from evener.graph.dims import Size
from evener.graph.nodes import Tensor
from evener.graph.symbols import SymbolSource
from evener.ops.decision import Sharding
from evener.ops.states import (
    REPLICATED,
    Numbers,
    Partial,
    Sharded,
    State,
    part_sizes,
    rows_per_sample,
    serves,
)


class Values:
    """References to the values that nodes of a function read.

    Args:
        sharding: States of the graph's tensors.
        inference: Sources of the symbols of sizes.
        builder: Function that is being made.
        references: References to the tensors that the function has so far.
        is_body: Whether the function is the body of a loop or a condition, which has all tensors.
    """

    def __init__(
        self,
        sharding: Sharding,
        inference: Inference,
        builder: FunctionBuilder,
        references: dict[Tensor, str],
        *,
        is_body: bool = False,
    ) -> None:
        self._sharding = sharding
        self._inference = inference
        self._builder = builder
        self._references = references
        self._is_body = is_body
        self._sliced: dict[tuple[Tensor, Sharded], str] = {}
        builder.symbol_source = self._symbol

    def get(self, tensor: Tensor, request: State | Numbers) -> str:
        """Return the reference to a tensor as it is requested."""
        builder = self._builder
        if isinstance(request, Numbers):
            return builder.sizes(request.sizes, tensor.dtype, is_scalar=tensor.rank == 0)
        # Values that differ from part to part are arguments: rows, and the start of a partial sum,
        # which the first part alone has.
        is_split = isinstance(request, Sharded) and not self._is_body
        if not (is_split or isinstance(request, Partial)) and (
            tensor.node.op == "Const" or tensor.is_sizes
        ):
            return self._part(tensor, request, self._made_here(tensor))
        if tensor in self._references and serves(self._sharding.states[tensor], request):
            return self._references[tensor]
        if self._is_body:
            return self._part(tensor, request, self._references[tensor])
        return builder.argument(TensorArgument(tensor, request), tensor.dtype)

    def _made_here(self, tensor: Tensor) -> str:
        """Add a constant, or numbers that are made of sizes."""
        if tensor.is_sizes:
            assert tensor.value is not None
            return self._builder.sizes(tensor.value, tensor.dtype, is_scalar=tensor.rank == 0)
        if tensor not in self._references:
            node = tensor.node
            self._references[tensor] = self._builder.copy("Const", node.name, [], node.attrs)[0]
        return self._references[tensor]

    def _part(self, tensor: Tensor, request: State, reference: str) -> str:
        """Take a part's rows out of a tensor that every part has as a whole."""
        if request == REPLICATED or not isinstance(request, Sharded):
            return reference
        key = (tensor, request)
        if key not in self._sliced:
            self._sliced[key] = self._slice(tensor, request, reference)
        return self._sliced[key]

    def _slice(self, tensor: Tensor, request: Sharded, reference: str) -> str:
        """Slice along the axis that is split; of several blocks, in each of them."""
        assert tensor.shape is not None
        rows = rows_per_sample(tensor.shape[request.axis], request)
        assert rows is not None
        axis, shape, is_whole = request.axis, tensor.shape, request.outer == 1
        if not is_whole:
            blocks = (*shape[:axis], request.outer, request.rows * rows, *shape[axis + 1 :])
            reference, axis, shape = self._reshape(tensor, reference, blocks), axis + 1, blocks
        begin: list[Size] = [0] * len(shape)
        size: list[Size] = [-1] * len(shape)
        begin[axis] = request.before_part * rows
        size[axis] = request.in_part * rows
        builder = self._builder
        numbers = [builder.vector(begin, tf.int32), builder.vector(size, tf.int32)]
        attrs = {"T": tensor.dtype, "Index": tf.int32}
        part = builder.op("Slice", [reference, *numbers], attrs)[0]
        return part if is_whole else self._reshape(tensor, part, part_sizes(tensor.shape, request))

    def _reshape(self, tensor: Tensor, reference: str, shape: tuple[Size, ...]) -> str:
        numbers = self._builder.vector(shape, tf.int32)
        attrs = {"T": tensor.dtype, "Tshape": tf.int32}
        return self._builder.op("Reshape", [reference, numbers], attrs)[0]

    def _has(self, source: SymbolSource) -> bool:
        """Return whether the number of a symbol can be read from a tensor in the function."""
        tensor = source.tensor
        if tensor not in self._references:
            return False
        return is_known_to_parts(source, self._sharding.states[tensor])

    def _symbol(self, name: str) -> str:
        """Return the number of a symbol, from a tensor in the function if it has the source."""
        builder = self._builder
        source = self._inference.symbols.get(name)
        if source is None or not self._has(source):
            return builder.argument(NumberArgument(name), self._inference.dtype_of(name))
        reference, tensor = self._references[source.tensor], source.tensor
        if source.axis is None:
            if tensor.rank != 0:
                reference = builder.element(reference, source.index, tensor.dtype)
            return builder.cast(reference, tensor.dtype, self._inference.dtype_of(name))
        shape = builder.op("Shape", [reference], {"T": tensor.dtype, "out_type": tf.int32})[0]
        return builder.element(shape, source.axis, tf.int32)
