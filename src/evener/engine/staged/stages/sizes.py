"""Sizes of the tensors of a graph, as far as they can be told before it runs.

A size that no number is known for is a name times a number:

      x           (n, 32, 64)          n: the samples, whatever they will be
      x * gamma   (n, 32, 64)
      reshaped    (32 n, 64)

Two sizes that are written alike are equal in every run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

_MOST_VALUES = 16


@dataclass(frozen=True, slots=True)
class Unknown:
    """A size without a number: ``factor`` times what ``name`` stands for."""

    name: Any
    factor: int = 1


Size = int | Unknown
Sizes = tuple[Size, ...]

# Results are as large as the first input.
_LIKE_FIRST = frozenset(
    """Abs AddN BiasAdd Cast Ceil Cos Elu EluGrad Erf Erfc Exp Expm1 Floor Identity Inv InvGrad
    IsFinite IsNan LeakyRelu LeakyReluGrad Log Log1p LogicalNot LogSoftmax MatrixBandPart Neg
    OnesLike PreventGradient Reciprocal ReciprocalGrad Relu Relu6 Relu6Grad ReluGrad Round Rsqrt
    RsqrtGrad Selu SeluGrad Sigmoid SigmoidGrad Sign Sin Softmax Softplus SoftplusGrad Softsign
    SoftsignGrad Sqrt SqrtGrad Square StopGradient Tanh TanhGrad ZerosLike""".split()
)
_BROADCAST = frozenset(
    """Add AddV2 Div DivNoNan Equal FloorDiv FloorMod Greater GreaterEqual Less LessEqual LogicalAnd
    LogicalOr Maximum Minimum Mul MulNoNan NotEqual Pow RealDiv SelectV2 SquaredDifference Sub
    Xdivy Xlogy""".split()
)
REDUCE = frozenset("All Any Max Mean Min Prod Sum".split())
_SAME_ELEMENTS = frozenset("ExpandDims Reshape Squeeze".split())


class GraphSizes:
    """The sizes of the tensors of one graph; operations are added after those they need."""

    def __init__(self) -> None:
        self._sizes: dict[int, Sizes | None] = {}
        self._values: dict[int, Sizes] = {}

    def add(self, op: tf.Operation) -> None:
        """Find out the sizes and the values of what an operation gives."""
        if op.type == "BroadcastGradientArgs":
            values: Sequence[Sizes | None] = _summed_axes([self.values(t) for t in op.inputs])
        else:
            values = [self._values_of(op)] if len(op.outputs) == 1 else []
        for tensor, found in zip(op.outputs, values, strict=False):
            if found is not None and len(found) <= _MOST_VALUES:
                self._values[id(tensor)] = found
        rule = self._rule(op.type)
        for tensor in op.outputs:
            by_rule = rule(op) if rule is not None and tensor is op.outputs[0] else None
            self._sizes[id(tensor)] = _known(tensor, by_rule)

    def of(self, tensor: tf.Tensor) -> Sizes | None:
        """Return a tensor's sizes, or None if not even their number is known."""
        if id(tensor) not in self._sizes:
            return _known(tensor, None)
        return self._sizes[id(tensor)]

    def values(self, tensor: tf.Tensor) -> Sizes | None:
        """Return the elements of a small tensor of whole numbers, or None."""
        return self._values.get(id(tensor))

    def numbers(self, tensor: tf.Tensor) -> list[int] | None:
        """Return the elements of a tensor if all are known numbers."""
        found = self.values(tensor)
        if found is None or not all(isinstance(one, int) for one in found):
            return None
        return [one for one in found if isinstance(one, int)]

    def _rule(self, kind: str) -> Callable[[tf.Operation], Sizes | None] | None:
        if kind in _LIKE_FIRST:
            return lambda op: self.of(op.inputs[0])
        if kind in _BROADCAST:
            return self._broadcast
        if kind in REDUCE:
            return self._reduced
        if kind in _SAME_ELEMENTS:
            return self._same_elements
        return {
            "BatchMatMulV2": self._batch_product,
            "BroadcastTo": lambda op: self.values(op.inputs[1]),
            "Einsum": self._einsum,
            "Fill": lambda op: self.values(op.inputs[0]),
            "GatherV2": self._gathered,
            "MatMul": self._product,
            "Transpose": self._transposed,
        }.get(kind)

    def _broadcast(self, op: tf.Operation) -> Sizes | None:
        return _broadcast_sizes([self.of(t) for t in op.inputs])

    def _reduced(self, op: tf.Operation) -> Sizes | None:
        sizes, axes = self.of(op.inputs[0]), self.numbers(op.inputs[1])
        if sizes is None or axes is None:
            return None
        gone = {axis % len(sizes) for axis in axes} if sizes else set()
        if op.get_attr("keep_dims"):
            return tuple(1 if k in gone else size for k, size in enumerate(sizes))
        return tuple(size for k, size in enumerate(sizes) if k not in gone)

    def _same_elements(self, op: tf.Operation) -> Sizes | None:
        """Return sizes whose product is that of the input's: one of them may be unknown."""
        asked = self.values(op.inputs[1]) if op.type == "Reshape" else None
        if asked is not None and -1 not in asked:
            return asked
        before, shape = self.of(op.inputs[0]), op.outputs[0].shape
        if before is None or shape.rank is None:
            return None
        total, after = product(before), shape.as_list()
        if total is None or isinstance(total, int) or after.count(None) != 1:
            return None
        rest = math.prod(n for n in after if n is not None)
        if rest == 0 or total.factor % rest:
            return None
        size = Unknown(total.name, total.factor // rest)
        return tuple(size if n is None else n for n in after)

    def _batch_product(self, op: tf.Operation) -> Sizes | None:
        x, y = self.of(op.inputs[0]), self.of(op.inputs[1])
        batch = _broadcast_sizes([None if s is None else s[:-2] for s in (x, y)])
        if x is None or y is None or batch is None:
            return None
        rows, columns = x[-1 if op.get_attr("adj_x") else -2], y[-2 if op.get_attr("adj_y") else -1]
        return (*batch, rows, columns)

    def _product(self, op: tf.Operation) -> Sizes | None:
        x, y = self.of(op.inputs[0]), self.of(op.inputs[1])
        if x is None or y is None:
            return None
        return x[1 if op.get_attr("transpose_a") else 0], y[0 if op.get_attr("transpose_b") else 1]

    def _einsum(self, op: tf.Operation) -> Sizes | None:
        equation = op.get_attr("equation").decode()
        if not re.fullmatch(r"[a-zA-Z,]*->[a-zA-Z]*", equation):
            return None
        given, result = equation.split("->")
        sizes: dict[str, Size] = {}
        for labels, tensor in zip(given.split(","), op.inputs, strict=True):
            of_tensor = self.of(tensor)
            if of_tensor is None or len(of_tensor) != len(labels):
                return None
            sizes.update(zip(labels, of_tensor, strict=True))
        return tuple(sizes[label] for label in result) if set(result) <= set(sizes) else None

    def _gathered(self, op: tf.Operation) -> Sizes | None:
        rows, chosen = self.of(op.inputs[0]), self.of(op.inputs[1])
        axis = self.numbers(op.inputs[2])
        if rows is None or chosen is None or axis is None or op.get_attr("batch_dims"):
            return None
        place = axis[0] % len(rows)
        return (*rows[:place], *chosen, *rows[place + 1 :])

    def _transposed(self, op: tf.Operation) -> Sizes | None:
        sizes, order = self.of(op.inputs[0]), self.numbers(op.inputs[1])
        if sizes is None or order is None:
            return None
        return tuple(sizes[axis] for axis in order)

    def _values_of(self, op: tf.Operation) -> Sizes | None:
        """Return the elements of what an operation gives, for sizes and what is made of them."""
        tensor = op.outputs[0]
        if tensor.dtype not in (tf.int32, tf.int64) or tensor.shape.rank not in (0, 1):
            return None
        if op.type == "Const":
            # Most are large or no sizes; these are not looked at.
            few = (tensor.shape.num_elements() or 0) <= _MOST_VALUES
            return _constant(op) if few else None
        if op.type in ("Shape", "ShapeN"):
            return self.of(op.inputs[0])
        if op.type == "Size":
            return _single(product(self.of(op.inputs[0])))
        given = [self.values(t) for t in op.inputs]
        if not given or any(one is None for one in given):
            return None
        return _computed(op, [one for one in given if one is not None])


def product(sizes: Sizes | None) -> Size | None:
    """Return the product of sizes; None if two of them are unknown.

    Example:
        >>> product((2, Unknown("n"), 3))
        Unknown(name='n', factor=6)
    """
    if sizes is None:
        return None
    unknown = [size for size in sizes if isinstance(size, Unknown)]
    number = math.prod(size for size in sizes if isinstance(size, int))
    if len(unknown) > 1 or (unknown and number == 0):
        return None
    return Unknown(unknown[0].name, unknown[0].factor * number) if unknown else number


def _known(tensor: tf.Tensor, by_rule: Sizes | None) -> Sizes | None:
    """Return the sizes that TensorFlow knows, and for the rest those that a rule gives."""
    if tensor.shape.rank is None:
        return by_rule
    static = tensor.shape.as_list()
    if by_rule is None or len(by_rule) != len(static):
        by_rule = tuple(Unknown((id(tensor), axis)) for axis in range(len(static)))
    return tuple(
        size if number is None else number for number, size in zip(static, by_rule, strict=True)
    )


def _broadcast_sizes(shapes: Sequence[Sizes | None]) -> Sizes | None:
    known = [s for s in shapes if s is not None]
    if len(known) < len(shapes):
        return None
    rank = max(map(len, known))
    aligned = zip(*[(1,) * (rank - len(s)) + s for s in known], strict=True)
    sizes = [_broadcast_size(column) for column in aligned]
    return None if None in sizes else tuple(s for s in sizes if s is not None)


def _broadcast_size(sizes: Sequence[Size]) -> Size | None:
    """Return what equal sizes, or ones, are stretched to; None where it cannot be told."""
    others = list(dict.fromkeys(size for size in sizes if size != 1))
    if len(others) > 1:
        return None
    return others[0] if others else 1


def _summed_axes(shapes: Sequence[Sizes | None]) -> Sequence[Sizes]:
    """Return over which axes the gradients of two tensors are summed that were broadcast.

    A size that is not known may be 1 in a run, in both; TensorFlow then sums over that one
    element, and here it is not summed over, which is the same.
    """
    known = [s for s in shapes if s is not None]
    if len(known) < 2 or _broadcast_sizes(known) is None:
        return ()
    rank = max(map(len, known))
    first, second = ((1,) * (rank - len(s)) + s for s in known)
    return [
        tuple(k for k in range(rank) if one[k] == 1 and other[k] != 1)
        for one, other in ((first, second), (second, first))
    ]


def _single(size: Size | None) -> Sizes | None:
    return None if size is None else (size,)


def _constant(op: tf.Operation) -> Sizes:
    array = np.ravel(tf.make_ndarray(op.get_attr("value")))
    return tuple(int(n) for n in array)


def _computed(op: tf.Operation, given: Sequence[Sizes]) -> Sizes | None:
    """Return the elements of what an operation makes of others."""
    if op.type in ("Cast", "Identity", "Reshape", "ExpandDims", "Squeeze"):
        return given[0]
    if op.type == "Pack":
        return tuple(one[0] for one in given) if all(len(one) == 1 for one in given) else None
    if op.type == "ConcatV2":
        return tuple(size for part in given[:-1] for size in part)
    if op.type == "Prod":
        # Over no axis, nothing is multiplied.
        return _single(product(given[0])) if given[1] else None
    if op.type == "GatherV2":
        inside = range(len(given[0]))
        positions = [n for n in given[1] if isinstance(n, int) and n in inside]
        return tuple(given[0][n] for n in positions) if len(positions) == len(given[1]) else None
    if op.type == "StridedSlice":
        return _sliced(op, given)
    if op.type == "Mul" and len(given[0]) == len(given[1]) == 1:
        return _single(product((given[0][0], given[1][0])))
    return None


def _sliced(op: tf.Operation, given: Sequence[Sizes]) -> Sizes | None:
    sizes, *ends = given
    if op.get_attr("ellipsis_mask") or op.get_attr("new_axis_mask"):
        return None
    places = [place for end in ends for place in end if isinstance(place, int)]
    if [len(end) for end in ends] != [1, 1, 1] or len(places) < 3:
        return None
    begin, end, stride = places
    if op.get_attr("shrink_axis_mask"):
        return (sizes[begin],) if -len(sizes) <= begin < len(sizes) else None
    first = None if op.get_attr("begin_mask") else begin
    last = None if op.get_attr("end_mask") else end
    return sizes[first:last:stride]
