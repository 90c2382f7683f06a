"""Operations on every element by itself, with broadcasting."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from evener.engine.trace.equal_rows import has_equal_rows
from evener.engine.trace.inference import of_any_length
from evener.engine.trace.shape_rules import BROADCASTING
from evener.graph.dims import Dim, Size, is_at_least
from evener.graph.nodes import Node, Tensor, constant_array
from evener.ops.decision import (
    EXTREMES,
    PARTIALS,
    ROWS,
    SUMS,
    WHOLE,
    Decision,
    inside_rule,
    partial_rule,
    rule,
)
from evener.ops.states import REPLICATED, Partial, Sharded, State, is_shardable

UNARY = """
Abs Acos Acosh Angle AsString Asin Asinh Atan Atanh BesselI0 BesselI0e BesselI1 BesselI1e BesselJ0
BesselJ1 BesselK0 BesselK0e BesselK1 BesselK1e BesselY0 BesselY1 Bitcast Bucketize Cast Ceil
CheckNumericsV2 FakeQuantWithMinMaxArgs CheckNumerics ClipByValue Conj Cos Cosh Dawsn Digamma Elu
Erf Erfc Erfinv Exp Expint Expm1 Floor FresnelCos FresnelSin Identity Imag Inv Invert IsFinite
IsInf IsNan LeakyRelu Lgamma Log Log1p LogicalNot Ndtri Neg OnesLike PopulationCount
PreventGradient Real ComplexAbs Reciprocal Relu Relu6 Rint Round Rsqrt Selu Sigmoid Sign Sin Sinh
Snapshot Softplus Softsign Spence Sqrt Square StaticRegexFullMatch StaticRegexReplace StopGradient
StringLength StringLower StringStrip StringUpper StringToHashBucketFast StringToHashBucketStrong
StringToNumber Tan Tanh ZerosLike
""".split()
GRADIENTS = """
EluGrad FakeQuantWithMinMaxArgsGradient InvGrad LeakyReluGrad ReciprocalGrad Relu6Grad ReluGrad
RsqrtGrad SeluGrad SigmoidGrad SoftplusGrad SoftsignGrad SqrtGrad TanhGrad
""".split()
_BROADCASTING = frozenset(BROADCASTING)
LINEAR = "Identity Neg StopGradient PreventGradient Snapshot Conj Real Imag".split()


@rule(*UNARY, *GRADIENTS, *BROADCASTING, "AddN", inputs=ROWS)
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
    if node.op not in _BROADCASTING and len({_shape_of_elements(t) for t in node.inputs}) > 1:
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
        if isinstance(one, Sharded)
        and is_same_but_blocks(state, one)
        and has_equal_rows(tensor, one.axis)
        else one
        for tensor, state, one in zip(node.inputs, states, wanted, strict=True)
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


@rule("EnsureShape", inputs=ROWS)
def _ensure_shape(node: Node, states: Sequence[State]) -> Decision | None:
    """The parts check the sizes of other axes; a number of samples that is demanded stays whole."""
    state, wanted = states[0], node.attrs["shape"].shape
    if not isinstance(state, Sharded):
        return None
    if not wanted.unknown_rank and wanted.dim[state.axis].size != -1:
        return None
    return Decision(inputs=(state,), outputs=(state,))


@rule("Select", inputs=ROWS)
def _select(node: Node, states: Sequence[State]) -> Decision | None:
    """The old select: a condition of rank 1 chooses whole rows."""
    condition, shape = node.inputs[0].shape, node.outputs[0].shape
    sharded = next(
        (
            state
            for tensor, state in zip(node.inputs, states, strict=True)
            if isinstance(state, Sharded) and not has_equal_rows(tensor, state.axis)
        ),
        next((s for s in states[1:] if isinstance(s, Sharded)), states[0]),
    )
    if condition is None or shape is None or not isinstance(sharded, Sharded):
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


@partial_rule(*LINEAR, inputs=PARTIALS)
def _linear(node: Node, states: Sequence[State]) -> Decision | None:
    """f(a + b) = f(a) + f(b)."""
    state = states[0]
    if node.op in ("Identity", "StopGradient", "PreventGradient", "Snapshot") or _is_sum(state):
        return Decision(inputs=(state,), outputs=(state,))
    return None


@partial_rule("Mul", inputs=SUMS)
@partial_rule("RealDiv", "Div", "DivNoNan", inputs=(SUMS, WHOLE), inexact=True)
def _scale(node: Node, states: Sequence[State]) -> Decision | None:
    """A partial sum times or over a number is one, if that is finite, not 0 and not too large.

    Otherwise the parts would give inf - inf, which is no number: 1 / 0 - 3 / 0 for -2 / 0, or 0 for
    the product of 0 and a sum that is infinite. And where each term overflows, their sum need not.
    """
    first, second = states
    left, right = node.inputs
    number = right if _is_sum(first) else left
    if not _is_moderate(number, divides=node.op != "Mul"):
        return None
    if not (is_not_zero(number) or (node.op == "DivNoNan" and is_count(number))):
        return None
    if _is_sum(first) and second == REPLICATED and _keeps_size(node, left.shape):
        return Decision(inputs=(first, second), outputs=(first,))
    if node.op == "Mul" and _is_sum(second) and first == REPLICATED:
        if _keeps_size(node, right.shape):
            return Decision(inputs=(first, second), outputs=(second,))
    return None


@partial_rule("Add", "AddV2", "AddN", "Sub", inputs=SUMS)
def _add(node: Node, states: Sequence[State]) -> Decision | None:
    """A sum of partial sums; a replicated term would be counted once per part."""
    if all(_is_sum(state) for state in states):
        shapes = {t.shape for t in node.inputs}
        if len(shapes) == 1 and None not in shapes:
            return Decision(inputs=tuple(states), outputs=(states[0],))
    return None


@inside_rule("Add", "AddV2", "AddN", inputs=SUMS)
def _add_to_start(node: Node, states: Sequence[State]) -> Decision | None:
    """A sum that a loop adds up is partial from the start: the start belongs to the first part."""
    if not any(_is_sum(s) for s in states) or not all(
        _is_sum(s) or s == REPLICATED for s in states
    ):
        return None
    if len({t.shape for t in node.inputs}) != 1:
        return None
    return Decision(inputs=(Partial("sum"),) * len(states), outputs=(Partial("sum"),))


@partial_rule("Maximum", "Minimum", "LogicalAnd", "LogicalOr", inputs=EXTREMES)
def _extreme(node: Node, states: Sequence[State]) -> Decision | None:
    combine = {"Maximum": "max", "Minimum": "min", "LogicalAnd": "all", "LogicalOr": "any"}
    state = Partial(combine[node.op])
    if all(one == state for one in states) and node.inputs[0].shape == node.inputs[1].shape:
        return Decision(inputs=tuple(states), outputs=(state,))
    return None


def is_not_zero(tensor: Tensor) -> bool:
    """Return whether a tensor is certain to be finite and not 0: a constant, or a size."""
    if is_count(tensor):
        return all(is_at_least(size, 1) for size in tensor.node.inputs[0].value or ())
    array = constant_array(tensor)
    return array is not None and bool(np.all(np.isfinite(array) & (array != 0)))


def _is_moderate(tensor: Tensor, *, divides: bool) -> bool:
    """Return whether a number makes a term at most so many times as large as a size does.

    Types of few bits have no room for that: there it makes nothing larger.
    """
    array = constant_array(tensor)
    if array is None:
        return is_count(tensor)
    has_room = tensor.dtype.real_dtype.max >= tf.int32.max
    limit = float(tf.int32.max) if has_room else 1.0
    sizes = np.abs(array.astype(np.complex128 if tensor.dtype.is_complex else np.float64))
    return bool(np.all(sizes >= 1 / limit if divides else sizes <= limit))


def is_count(tensor: Tensor) -> bool:
    """Return whether a tensor is made of sizes alone, as numbers that are finite for certain."""
    return (
        tensor.node.op == "Cast"
        and tensor.node.inputs[0].is_sizes
        and tensor.dtype.real_dtype.max >= tf.int32.max
    )


def _is_sum(state: State) -> bool:
    return state == Partial("sum")


def _keeps_size(node: Node, shape: tuple[Size, ...] | None) -> bool:
    return shape is not None and shape == node.outputs[0].shape
