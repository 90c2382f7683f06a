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
from evener.graph.ops.lists import any_length
from evener.graph.ops.registry import (
    LARGEST_VALUE,
    Shape,
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
from evener.graph.ops.reshaping import rearranged_partial
from evener.graph.ops.states import (
    PARTIALS,
    REPLICATED,
    ROWS,
    SUM,
    Decision,
    Sharded,
    State,
    UnknownError,
    by_rows,
    first_sharded,
    integers_of,
    is_shardable,
    known,
    numbers_of,
    require,
    shape_of,
    sharded,
)

_MOST_TENSORS = 100  # Number of tensors that an answer may depend on; beyond, it is not certain


def has_equal_rows(
    tensor: Tensor, axis: int, answers: dict[tuple[Tensor, int], bool] | None = None
) -> bool:
    """Return whether all rows along an axis are certain to be equal."""
    answers = {} if answers is None else answers
    key = tensor, axis
    if key not in answers:
        if len(answers) >= _MOST_TENSORS:
            return False
        answers[key] = False
        answers[key] = _are_rows_equal(tensor, axis, answers)
    return answers[key]


def _are_rows_equal(tensor: Tensor, axis: int, answers: dict[tuple[Tensor, int], bool]) -> bool:
    node, shape = tensor.node, tensor.shape
    if shape is None or not 0 <= axis < len(shape):
        return False
    if shape[axis] == 1 or has_trait(node, Trait.EQUAL_ELEMENTS):
        return True
    source = node.inputs[0] if node.inputs else tensor
    if has_trait(node, Trait.EVERY_ELEMENT):
        for operand in [source] if node.op in ("Tile", "BroadcastTo") else node.inputs:
            if operand.shape is None or node.outputs[0].shape is None:
                return False
            own = axis - (len(node.outputs[0].shape) - len(operand.shape))
            if node.op == "Select" and len(operand.shape) == 1:
                own = axis  # The old select: its condition chooses rows from the front.
            if own >= 0 and not has_equal_rows(operand, own, answers):
                return False
        return True
    if node.op in ("Reshape", "ExpandDims", "Squeeze"):
        # Axes behind it may be others.
        keeps_front = source.shape is not None and source.shape[: axis + 1] == shape[: axis + 1]
        return keeps_front and has_equal_rows(source, axis, answers)
    if node.op in ("Sum", "Mean") and source.shape is not None:
        reduced = reduced_axes(source.shape, node.inputs[1].value)
        if reduced is None:
            return False
        if not node.bool_attr("keep_dims"):
            axis = [k for k in range(len(source.shape)) if k not in reduced][axis]
        return has_equal_rows(source, axis, answers)
    return False


def unary(ops: str) -> None:
    shape_rule.table({ops: like_input(0)})
    rule(*ops.split(), inputs=ROWS)(elementwise)


def broadcasting(ops: str) -> None:
    shape_rule.table({ops: lambda table, node: [broadcast([t.shape for t in node.inputs])]})
    rule(*ops.split(), inputs=ROWS)(elementwise)
    equal_sizes_rule(*ops.split())(alike)
    traits(ops, Trait.BROADCASTS | Trait.EVERY_ELEMENT)


@rule("Bitcast", inputs=ROWS)
def elementwise(node: Node, states: Sequence[State]) -> Decision | None:
    """All operands by the rows of the first sharded one."""
    shape = node.outputs[0].shape
    require(node.op != "Bitcast" or node.inputs[0].rank == node.outputs[0].rank)
    if shape is None:
        # A tensor list whose elements are not known.
        require(node.inputs[0].dtype == tf.variant and len(states) == 1)
        state = sharded(states[0])
        return Decision(inputs=(state,), outputs=(state,))
    target = _target_state(node, states, shape)
    if node.outputs[0].dtype == tf.variant and target.axis == 0:
        # Lists of rows: of as many elements in every part, so that all lengths have to be known.
        require(isinstance(shape[0], Dim) and {t.shape for t in node.inputs} == {shape})
    if not has_trait(node, Trait.BROADCASTS):
        # Not all is known of the length of a tensor list.
        shapes = {any_length(t.shape) if t.dtype == tf.variant else t.shape for t in node.inputs}
        require(len(shapes) <= 1)
    wanted = [operand_state(t, shape, target) for t in node.inputs]
    return Decision(inputs=keep_blocks(node, states, wanted), outputs=(target,))


def keep_blocks(node: Node, states: Sequence[State], wanted: Sequence[State]) -> tuple[State, ...]:
    """Return the states in which operands are needed: of equal rows, those that the parts have.

    Where two batches were joined, the ones of a gradient may be split in one block of both.
    """
    return tuple(
        state
        if isinstance(needed, Sharded)
        and isinstance(state, Sharded)
        and state == needed.in_blocks(needed.axis, state.outer)
        and has_equal_rows(tensor, needed.axis)
        else needed
        for tensor, state, needed in zip(node.inputs, states, wanted, strict=True)
    )


def _target_state(node: Node, states: Sequence[State], shape: Shape) -> Sharded:
    """Return the state of the result: the rows of the operand that is sharded, if they are its."""
    pairs = list(zip(node.inputs, states, strict=True))
    if len({state.outer for state in states if isinstance(state, Sharded)}) > 1:
        # Equal rows are in whichever blocks the others are in.
        pairs.sort(
            key=lambda pair: isinstance(pair[1], Sharded) and has_equal_rows(pair[0], pair[1].axis)
        )
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
    raise UnknownError


def operand_state(tensor: Tensor, result: Shape, target: Sharded) -> State:
    shape = shape_of(tensor)
    axis = target.axis - (len(result) - len(shape))
    if axis < 0 or shape[axis] == 1:
        return REPLICATED
    require(shape[axis] == result[target.axis])
    return target.at(axis)


@partial_rule("Neg", "Conj", "Real", "Imag", inputs=PARTIALS)
def _linear(node: Node, states: Sequence[State]) -> Decision | None:
    """f(a + b) = f(a) + f(b)."""
    require(states[0] == SUM)
    return Decision(inputs=(SUM,), outputs=(SUM,))


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
shape_rule.table(
    {
        """
        DebugIdentityV3 EnsureShape FakeQuantWithMinMaxVars FakeQuantWithMinMaxVarsPerChannel
        QuantizeAndDequantizeV2 QuantizeAndDequantizeV3 QuantizeAndDequantizeV4
        """: like_input(0),
        "LookupTableFind LookupTableFindV2": like_input(1),
        "Bitcast": lambda table, node: [
            t.shape if t.dtype.size == node.outputs[0].dtype.size else None for t in node.inputs
        ],
        "IdentityN": lambda table, node: [t.shape for t in node.inputs],
        "Select": lambda table, node: [node.inputs[1].shape or node.inputs[2].shape],
    }
)
traits(
    "Elu Erf Exp Neg Relu ReluGrad Rsqrt Sigmoid SigmoidGrad Sqrt Square Tanh TanhGrad",
    Trait.IN_PLACE,
)
traits(
    """
    Abs Ceil ClipByValue Cos Erf Exp Expm1 Floor IsFinite IsInf IsNan Log Log1p Neg Reciprocal Relu
    Round Rsqrt Sigmoid Sign Sin Softplus Sqrt Square Tanh
    """,
    Trait.TOTAL,
)
traits("Abs Exp Log Log1p Neg Reciprocal Rsqrt Sign Sigmoid Sqrt Square Tanh", Trait.EVERY_ELEMENT)


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
    Trait.TOTAL,
)
traits("LogicalNot Select", Trait.EVERY_ELEMENT)
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


@value_rule("SelectV2")
def _select_value(table: SymbolTable, node: Node) -> Shapes:
    condition, (a, b) = node.inputs[0], (t.value for t in node.inputs[1:])
    if condition.rank == 1:
        truths, a, b = known(truths_of(condition)), known(a), known(b)
        require(len(a) == len(b) == len(truths))
        return [tuple(x if holds else y for x, y, holds in zip(a, b, truths, strict=True))]
    require(condition.rank == 0)
    chosen = truth_of(condition)
    if chosen is not None:
        return [a if chosen else b] if node.inputs[1].rank == node.inputs[2].rank else None
    return [a] if a is not None and a == b else None


@rule("Select", inputs=ROWS)
def _select(node: Node, states: Sequence[State]) -> Decision | None:
    """The old select: a condition of rank 1 chooses whole rows."""
    condition, shape = shape_of(node.inputs[0]), shape_of(node.outputs[0])
    unlike = (
        state
        for tensor, state in zip(node.inputs, states, strict=True)
        if isinstance(state, Sharded) and not has_equal_rows(tensor, state.axis)
    )
    state = next(unlike, None) or first_sharded([*states[1:], states[0]])
    require(is_shardable(shape, state))
    if len(condition) == 0:
        return Decision(inputs=(REPLICATED, state, state), outputs=(state,))
    require(len(condition) == len(shape) or (len(condition) == 1 and state.axis == 0))
    return Decision(inputs=keep_blocks(node, states, (state,) * 3), outputs=(state,))


unary("Cast CheckNumerics CheckNumericsV2 Identity PreventGradient Snapshot StopGradient")
traits("Identity StopGradient", Trait.VIEW | Trait.FREE)
traits("Identity StopGradient Snapshot", Trait.COPY)
traits("Cast Const NoOp Placeholder ReadVariableOp", Trait.FREE)
traits("Cast Const Identity NoOp PreventGradient StopGradient", Trait.TOTAL)
traits("Cast Identity PreventGradient Snapshot StopGradient", Trait.EVERY_ELEMENT)
index_inputs("Cast Identity", slice(1))
value_rule.table(
    {
        "Identity IdentityN StopGradient Snapshot PreventGradient EnsureShape": (
            lambda table, node: [t.value for t in node.inputs]
        )
    }
)
matrix_rule.table({"Identity StopGradient": lambda node: matrix_of(node.inputs[0])})
truth_rule.table({"Identity StopGradient": lambda node: truths_of(node.inputs[0])})
partial_rule("Identity", "StopGradient", "PreventGradient", "Snapshot", inputs=PARTIALS)(
    rearranged_partial
)


@rule("EnsureShape", inputs=ROWS)
def _ensure_shape(node: Node, states: Sequence[State]) -> Decision | None:
    """The parts check the sizes of other axes; a number of samples that is demanded stays whole."""
    state, wanted = sharded(states[0]), node.attrs["shape"].shape
    require(wanted.unknown_rank or wanted.dim[state.axis].size == -1)
    return by_rows(node, state, state)


@value_rule("Cast")
def _cast_value(table: SymbolTable, node: Node) -> Shapes:
    source, target = node.inputs[0].dtype, node.outputs[0].dtype
    require(target in (tf.int32, tf.int64))
    if source == tf.bool:
        # `tf.vectorized_map` counts which axes are not negative.
        return [tuple(map(int, known(truths_of(node.inputs[0]))))]
    value, result = numbers_of(node.inputs[0]), node.outputs[0]
    require(source.is_integer)
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
    numbers = [own.tensor.dtype for own in of_symbols if own.axis is None]
    return all(np.can_cast(dtype.as_numpy_dtype, holds) for dtype in numbers)


@value_rule("Const")
def _constant_value(table: SymbolTable, node: Node) -> Shapes:
    proto = node.attrs["value"].tensor
    rank = len(proto.tensor_shape.dim)
    require(rank <= 1 and (rank != 1 or proto.tensor_shape.dim[0].size <= LARGEST_VALUE))
    return [tuple(int(n) for n in tf.make_ndarray(proto).ravel())]


@truth_rule("Const")
def _constant_truth(node: Node) -> tuple[bool, ...] | None:
    array = constant_array(node.outputs[0])
    return (bool(array),) if array is not None and array.shape == () else None


unary("""
AsString StaticRegexFullMatch StaticRegexReplace StringLength StringLower StringStrip
StringToHashBucketFast StringToHashBucketStrong StringToNumber StringUpper
""")
