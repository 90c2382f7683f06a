"""Copies of a tensor, checks of it, casts and constants."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from evener.graph.constants import constant_array
from evener.graph.dims import Size, symbol, symbols_of
from evener.graph.nodes import Node
from evener.graph.symbols import SymbolTable
from evener.ops.axes import like_input
from evener.ops.decision import PARTIALS, ROWS, Decision
from evener.ops.elementwise import unary
from evener.ops.known import sharded
from evener.ops.registry import (
    COPY,
    EVERY_ELEMENT,
    FREE,
    TOTAL,
    VIEW,
    Matrix,
    Shapes,
    index_inputs,
    matrix_rule,
    partial_rule,
    rule,
    shape_rule,
    traits,
    truth_rule,
    value_rule,
)
from evener.ops.states import State
from evener.ops.values import LARGEST_VALUE, matrix_of, truths_of

unary("Cast CheckNumerics CheckNumericsV2 Identity PreventGradient Snapshot StopGradient")
shape_rule("DebugIdentityV3", "EnsureShape")(like_input(0))
traits("Identity StopGradient", VIEW | FREE)
traits("Identity StopGradient Snapshot", COPY)
traits("Cast Const NoOp Placeholder ReadVariableOp", FREE)
traits("Cast Const Identity NoOp PreventGradient StopGradient", TOTAL)
traits("Cast Identity PreventGradient Snapshot StopGradient", EVERY_ELEMENT)
index_inputs("Cast Identity", slice(1))


@shape_rule("IdentityN")
def _each_shape(table: SymbolTable, node: Node) -> Shapes:
    return [t.shape for t in node.inputs]


@value_rule("IdentityN")
def _each(table: SymbolTable, node: Node) -> Shapes:
    return [t.value for t in node.inputs]


@value_rule("Identity", "StopGradient", "Snapshot", "PreventGradient", "EnsureShape")
def _same_value(table: SymbolTable, node: Node) -> Shapes:
    return [node.inputs[0].value]


@matrix_rule("Identity", "StopGradient")
def _same_matrix(node: Node) -> Matrix | None:
    return matrix_of(node.inputs[0])


@truth_rule("Identity", "StopGradient")
def _same_truth(node: Node) -> tuple[bool, ...] | None:
    return truths_of(node.inputs[0])


@partial_rule("Identity", "StopGradient", "PreventGradient", "Snapshot", inputs=PARTIALS)
def _copy_of_partial(node: Node, states: Sequence[State]) -> Decision | None:
    return Decision(inputs=(states[0],), outputs=(states[0],))


@rule("EnsureShape", inputs=ROWS)
def _ensure_shape(node: Node, states: Sequence[State]) -> Decision | None:
    """The parts check the sizes of other axes; a number of samples that is demanded stays whole."""
    state, wanted = sharded(states[0]), node.attrs["shape"].shape
    if not wanted.unknown_rank and wanted.dim[state.axis].size != -1:
        return None
    return Decision(inputs=(state,), outputs=(state,))


@value_rule("Cast")
def _cast_value(table: SymbolTable, node: Node) -> Shapes:
    source, target = node.inputs[0].dtype, node.outputs[0].dtype
    if target not in (tf.int32, tf.int64):
        return None
    if source == tf.bool:
        # `tf.vectorized_map` counts which axes are not negative.
        truths = truths_of(node.inputs[0])
        return None if truths is None else [tuple(map(int, truths))]
    value, result = node.inputs[0].value, node.outputs[0]
    if value is None or not source.is_integer:
        return None
    return [
        tuple(
            size
            if _is_kept(table, size, source, target)
            else table.symbol_for(("Cast", size, source, target), result, index)
            for index, size in enumerate(value)
        )
    ]


def _is_kept(table: SymbolTable, size: Size, source: tf.DType, target: tf.DType) -> bool:
    """Return whether a number is the same polynomial in both dtypes.

    A number of the data may not fit fewer bits. And sums and products of such numbers may have
    wrapped, which they do not in more bits.
    """
    if table.is_made_of_sizes(size):
        return True
    of_symbols = [table.symbols[name] for name in symbols_of(size) - {"B"}]
    is_wider = target.size > source.size
    if is_wider and size not in [symbol(name) for name in symbols_of(size)]:
        return False
    holds = (source if is_wider else target).as_numpy_dtype
    numbers = [found.tensor.dtype for found in of_symbols if found.axis is None]
    return all(np.can_cast(dtype.as_numpy_dtype, holds) for dtype in numbers)


@value_rule("Const")
def _constant_value(table: SymbolTable, node: Node) -> Shapes:
    proto = node.attrs["value"].tensor
    rank = len(proto.tensor_shape.dim)
    if rank > 1 or (rank == 1 and proto.tensor_shape.dim[0].size > LARGEST_VALUE):
        return None
    return [tuple(int(n) for n in tf.make_ndarray(proto).ravel())]


@truth_rule("Const")
def _constant_truth(node: Node) -> tuple[bool, ...] | None:
    array = constant_array(node.outputs[0])
    return (bool(array),) if array is not None and array.shape == () else None
