"""Operations on every element by itself, with broadcasting."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from evener.graph.dims import Dim, Size
from evener.graph.nodes import Node, Tensor
from evener.graph.symbols import SymbolTable
from evener.ops.axes import alike, broadcast, like_input
from evener.ops.decision import PARTIALS, ROWS, Decision
from evener.ops.equal_rows import has_equal_rows
from evener.ops.lists import of_any_length
from evener.ops.registry import (
    EVERY_ELEMENT,
    IN_PLACE,
    TOTAL,
    Shapes,
    Trait,
    equal_sizes_rule,
    has_trait,
    partial_rule,
    rule,
    shape_rule,
    traits,
)
from evener.ops.states import REPLICATED, Partial, Sharded, State


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
