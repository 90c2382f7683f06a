"""Operations on every element by itself: functions, comparisons, choices, copies, casts, strings.

Operands are broadcast; the result has the rows of the first sharded one. Tensors whose rows are all
equal, such as the ones that a gradient begins with, are rows of the batch in whatever order.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from evener.graph.dims import Dim, Size, symbol, symbols_of
from evener.graph.nodes import Node, SymbolTable, Tensor, constant_array
from evener.graph.ops.lists import of_any_length
from evener.graph.ops.registry import (
    COPY,
    EVERY_ELEMENT,
    FREE,
    IN_PLACE,
    LARGEST_VALUE,
    TOTAL,
    VIEW,
    Matrix,
    Shapes,
    Trait,
    alike,
    broadcast,
    equal_sizes_rule,
    has_trait,
    index_inputs,
    like_input,
    matrix_of,
    matrix_rule,
    partial_rule,
    reduced_axes,
    rule,
    shape_rule,
    traits,
    truth_of,
    truth_rule,
    truths_of,
    value_rule,
)
from evener.graph.ops.states import (
    PARTIALS,
    REPLICATED,
    ROWS,
    Decision,
    Partial,
    Sharded,
    State,
    integers_of,
    is_shardable,
    shape_of,
    sharded,
)

# Tensors whose rows are all the same, such as the ones that a gradient begins with.
#
# They are rows of the batch in whatever order: of two batches that were joined, a part may have its
# rows of both, or as many rows of the whole.

_MOST_TENSORS = 100
"""Number of tensors that an answer may depend on; beyond, it is not certain."""


def has_equal_rows(tensor: Tensor, axis: int) -> bool:
    """Return whether all rows along an axis are certain to be equal."""
    return _Answers().of(tensor, axis)


class _Answers:
    """Answers for the tensors that a tensor is computed from; each is found once."""

    def __init__(self) -> None:
        self._found: dict[tuple[Tensor, int], bool] = {}

    def of(self, tensor: Tensor, axis: int) -> bool:
        """Return whether all rows along an axis are certain to be equal."""
        key = tensor, axis
        if key not in self._found:
            if len(self._found) >= _MOST_TENSORS:
                return False
            self._found[key] = False
            self._found[key] = self._find(tensor, axis)
        return self._found[key]

    def _find(self, tensor: Tensor, axis: int) -> bool:
        node, shape = tensor.node, tensor.shape
        if shape is None or not 0 <= axis < len(shape):
            return False
        if shape[axis] == 1 or has_trait(node, Trait.EQUAL_ELEMENTS):
            return True
        if has_trait(node, EVERY_ELEMENT):
            return all(self._is_stretched(operand, axis, node) for operand in _operands(node))
        if node.op in ("Reshape", "ExpandDims", "Squeeze"):
            # Axes behind it may be others.
            source = node.inputs[0]
            keeps_front = source.shape is not None and source.shape[: axis + 1] == shape[: axis + 1]
            return keeps_front and self.of(source, axis)
        if node.op in ("Sum", "Mean"):
            own = _axis_before(node, axis)
            return own is not None and self.of(node.inputs[0], own)
        return False

    def _is_stretched(self, operand: Tensor, axis: int, node: Node) -> bool:
        """Return whether an operand gives equal rows to a result, along an axis of the result."""
        result = node.outputs[0].shape
        if operand.shape is None or result is None:
            return False
        own = axis - (len(result) - len(operand.shape))
        if node.op == "Select" and len(operand.shape) == 1:
            own = axis  # The old select: its condition chooses rows from the front.
        return own < 0 or self.of(operand, own)


def _axis_before(node: Node, axis: int) -> int | None:
    """Return which axis of what a node reduces is an axis of the result."""
    shape = node.inputs[0].shape
    reduced = None if shape is None else reduced_axes(shape, node.inputs[1].value)
    if reduced is None or shape is None:
        return None
    if node.bool_attr("keep_dims"):
        return axis
    return [k for k in range(len(shape)) if k not in reduced][axis]


def _operands(node: Node) -> list[Tensor]:
    return node.inputs[:1] if node.op in ("Tile", "BroadcastTo") else node.inputs


# Operations on every element by itself, with broadcasting.


def unary(ops: str) -> None:
    """Enter operations on the elements of their inputs, which all have one shape."""
    shape_rule(*ops.split())(like_input(0))
    rule(*ops.split(), inputs=ROWS)(elementwise)


def broadcasting(ops: str) -> None:
    """Enter operations on the elements of operands that are broadcast."""
    shape_rule(*ops.split())(broadcast_shape)
    rule(*ops.split(), inputs=ROWS)(elementwise)
    equal_sizes_rule(*ops.split())(alike)
    traits(ops, Trait.BROADCASTS | EVERY_ELEMENT)


def broadcast_shape(table: SymbolTable, node: Node) -> Shapes:
    """Return the shape to which all operands are broadcast."""
    shape = broadcast([t.shape for t in node.inputs])
    return None if shape is None else [shape]


@rule("Bitcast", inputs=ROWS)
def elementwise(node: Node, states: Sequence[State]) -> Decision | None:
    """All operands by the rows of the first sharded one."""
    shape = node.outputs[0].shape
    if node.op == "Bitcast" and node.inputs[0].rank != node.outputs[0].rank:
        return None
    if shape is None:
        return _of_list(node, states)
    target = target_state(node, states, shape)
    if target is None:
        return None
    if node.outputs[0].dtype == tf.variant and target.axis == 0:
        # Lists of rows: of as many elements in every part, so that all lengths have to be known.
        if not isinstance(shape[0], Dim) or {t.shape for t in node.inputs} != {shape}:
            return None
    if (
        not has_trait(node, Trait.BROADCASTS)
        and len({_shape_of_elements(t) for t in node.inputs}) > 1
    ):
        return None
    wanted = [operand_state(t.shape, shape, target) for t in node.inputs]
    if any(state is None for state in wanted):
        return None
    inputs = as_they_are(node, states, [s for s in wanted if s is not None])
    return Decision(inputs=inputs, outputs=(target,))


def _shape_of_elements(tensor: Tensor) -> tuple[Size, ...] | None:
    """Return a shape; of a tensor list without its length, of which not all is known."""
    return of_any_length(tensor.shape) if tensor.dtype == tf.variant else tensor.shape


def as_they_are(node: Node, states: Sequence[State], wanted: Sequence[State]) -> tuple[State, ...]:
    """Return the states in which operands are needed: of equal rows, those that the parts have.

    Where two batches were joined, the ones of a gradient may be split in one block of both.
    """
    return tuple(
        state
        if isinstance(needed, Sharded)
        and is_same_but_blocks(state, needed)
        and has_equal_rows(tensor, needed.axis)
        else needed
        for tensor, state, needed in zip(node.inputs, states, wanted, strict=True)
    )


def is_same_but_blocks(state: State, other: Sharded) -> bool:
    """Return whether a state differs from another in how many blocks its rows are in, alone."""
    return (
        state != other
        and isinstance(state, Sharded)
        and state == other.with_blocks(other.axis, state.outer)
    )


def _of_list(node: Node, states: Sequence[State]) -> Decision | None:
    """A tensor list whose elements are not known."""
    if node.inputs[0].dtype == tf.variant and len(node.inputs) == 1:
        if isinstance(states[0], Sharded):
            return Decision(inputs=(states[0],), outputs=(states[0],))
    return None


def target_state(node: Node, states: Sequence[State], shape: tuple[Size, ...]) -> Sharded | None:
    """Return the state of the result: the rows of the operand that is sharded, if they are its."""
    pairs = list(zip(node.inputs, states, strict=True))
    if len({state.outer for state in states if isinstance(state, Sharded)}) > 1:
        # Equal rows are in whichever blocks the others are in.
        pairs.sort(key=lambda pair: _has_equal_rows(*pair))
    for tensor, state in pairs:
        if not isinstance(state, Sharded) or tensor.shape is None:
            continue
        if state.axis >= len(tensor.shape):
            # A list whose elements have unlike shapes.
            continue
        axis = state.axis + len(shape) - len(tensor.shape)
        # An operand of 1 row is stretched when the batch is not: then its rows are no samples.
        if shape[axis] == tensor.shape[state.axis]:
            return state.at(axis)
    return None


def operand_state(
    shape: tuple[Size, ...] | None, result: tuple[Size, ...], target: Sharded
) -> State | None:
    """Return how an operand is needed for a result that is sharded; None if nobody can tell."""
    if shape is None:
        return None
    axis = target.axis - (len(result) - len(shape))
    if axis < 0 or shape[axis] == 1:
        return REPLICATED
    if shape[axis] == result[target.axis]:
        return target.at(axis)
    return None


def _has_equal_rows(tensor: Tensor, state: State) -> bool:
    return isinstance(state, Sharded) and has_equal_rows(tensor, state.axis)


@shape_rule("Bitcast")
def _bitcast_shape(table: SymbolTable, node: Node) -> Shapes:
    is_same = node.inputs[0].dtype.size == node.outputs[0].dtype.size
    return [node.inputs[0].shape] if is_same else None


@partial_rule("Neg", "Conj", "Real", "Imag", inputs=PARTIALS)
def _linear(node: Node, states: Sequence[State]) -> Decision | None:
    """f(a + b) = f(a) + f(b)."""
    state = states[0]
    if is_sum(state):
        return Decision(inputs=(state,), outputs=(state,))
    return None


def is_sum(state: State) -> bool:
    """Return whether the parts hold terms of a sum."""
    return state == Partial("sum")


GRADIENTS = """
EluGrad InvGrad LeakyReluGrad ReciprocalGrad Relu6Grad ReluGrad RsqrtGrad SeluGrad SigmoidGrad
SoftplusGrad SoftsignGrad SqrtGrad TanhGrad
"""


unary(GRADIENTS + "FakeQuantWithMinMaxArgsGradient")
equal_sizes_rule(*GRADIENTS.split())(alike)
unary("""
Abs Acos Acosh Angle Asin Asinh Atan Atanh BesselI0 BesselI0e BesselI1 BesselI1e BesselJ0 BesselJ1
BesselK0 BesselK0e BesselK1 BesselK1e BesselY0 BesselY1 Bucketize Ceil ClipByValue ComplexAbs Conj
Cos Cosh Dawsn Digamma Elu Erf Erfc Erfinv Exp Expint Expm1 FakeQuantWithMinMaxArgs Floor FresnelCos
FresnelSin Imag Inv Invert IsFinite IsInf IsNan LeakyRelu Lgamma Log Log1p Ndtri Neg
PopulationCount Real Reciprocal Relu Relu6 Rint Round Rsqrt Selu Sigmoid Sign Sin Sinh Softplus
Softsign Spence Sqrt Square Tan Tanh
""")
broadcasting("""
Atan2 Betainc BitwiseAnd BitwiseOr BitwiseXor Complex Igamma Igammac IgammaGradA LeftShift NextAfter
Polygamma RandomGammaGrad RightShift Xdivy Xlog1py Xlogy Zeta
""")
shape_rule(
    "FakeQuantWithMinMaxVars",
    "FakeQuantWithMinMaxVarsPerChannel",
    "QuantizeAndDequantizeV2",
    "QuantizeAndDequantizeV3",
    "QuantizeAndDequantizeV4",
)(like_input(0))
traits(
    "Elu Erf Exp Neg Relu ReluGrad Rsqrt Sigmoid SigmoidGrad Sqrt Square Tanh TanhGrad", IN_PLACE
)
traits(
    """
    Abs Ceil ClipByValue Cos Erf Exp Expm1 Floor IsFinite IsInf IsNan Log Log1p Neg Reciprocal Relu
    Round Rsqrt Sigmoid Sign Sin Softplus Sqrt Square Tanh
    """,
    TOTAL,
)
traits("Abs Exp Log Log1p Neg Reciprocal Rsqrt Sign Sigmoid Sqrt Square Tanh", EVERY_ELEMENT)


# Comparisons, logic, and what is chosen by them.

broadcasting("""
ApproximateEqual Equal Greater GreaterEqual Less LessEqual LogicalAnd LogicalOr NotEqual SelectV2
""")
unary("LogicalNot")
equal_sizes_rule("Select")(alike)
traits(
    """
    Equal Greater GreaterEqual Less LessEqual LogicalAnd LogicalNot LogicalOr NotEqual Select
    SelectV2
    """,
    TOTAL,
)
traits("LogicalNot Select", EVERY_ELEMENT)
index_inputs("Select SelectV2", slice(1, 3))


_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "Equal": operator.eq,
    "NotEqual": operator.ne,
    "Greater": operator.gt,
    "GreaterEqual": operator.ge,
    "Less": operator.lt,
    "LessEqual": operator.le,
}


@truth_rule(*_COMPARED)
def _compared_truth(node: Node) -> tuple[bool, ...] | None:
    values = [integers_of(tensor) for tensor in node.inputs]
    count = max(map(len, values))
    a, b = (numbers * count if len(numbers) == 1 else numbers for numbers in values)
    return tuple(map(_COMPARED[node.op], a, b))


@truth_rule("LogicalAnd", "LogicalOr", "LogicalNot")
def _combined_truth(node: Node) -> tuple[bool, ...] | None:
    op, parts = node.op, [truth_of(tensor) for tensor in node.inputs]
    if op == "LogicalNot":
        return None if parts[0] is None else (not parts[0],)
    # One answer decides, whatever the other is.
    decides = op == "LogicalOr"
    if decides in parts:
        return (decides,)
    return None if None in parts else (not decides,)


@shape_rule("Select")
def _select_shape(table: SymbolTable, node: Node) -> Shapes:
    return [node.inputs[1].shape or node.inputs[2].shape]


@value_rule("SelectV2")
def _select_value(table: SymbolTable, node: Node) -> Shapes:
    condition, (a, b) = node.inputs[0], (t.value for t in node.inputs[1:])
    if condition.rank == 1:
        truths = truths_of(condition)
        if truths is None or a is None or b is None or not len(a) == len(b) == len(truths):
            return None
        return [tuple(x if holds else y for x, y, holds in zip(a, b, truths, strict=True))]
    if condition.rank != 0:
        return None
    chosen = truth_of(condition)
    if chosen is not None:
        return [a if chosen else b] if node.inputs[1].rank == node.inputs[2].rank else None
    return [a] if a is not None and a == b else None


@rule("Select", inputs=ROWS)
def _select(node: Node, states: Sequence[State]) -> Decision | None:
    """The old select: a condition of rank 1 chooses whole rows."""
    condition, shape = shape_of(node.inputs[0]), shape_of(node.outputs[0])
    sharded = next(
        (
            state
            for tensor, state in zip(node.inputs, states, strict=True)
            if isinstance(state, Sharded) and not has_equal_rows(tensor, state.axis)
        ),
        next((s for s in states[1:] if isinstance(s, Sharded)), states[0]),
    )
    if not isinstance(sharded, Sharded):
        return None
    if not is_shardable(shape, sharded):
        return None
    if len(condition) == len(shape):
        inputs = as_they_are(node, states, (sharded,) * 3)
        return Decision(inputs=inputs, outputs=(sharded,))
    if len(condition) == 0:
        return Decision(inputs=(REPLICATED, sharded, sharded), outputs=(sharded,))
    if len(condition) == 1 and sharded.axis == 0:
        inputs = as_they_are(node, states, (sharded,) * 3)
        return Decision(inputs=inputs, outputs=(sharded,))
    return None


# Copies of a tensor, checks of it, casts and constants.

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


# Strings, and tables that are looked up.

unary("""
AsString StaticRegexFullMatch StaticRegexReplace StringLength StringLower StringStrip
StringToHashBucketFast StringToHashBucketStrong StringToNumber StringUpper
""")
shape_rule("LookupTableFind", "LookupTableFindV2")(like_input(1))
