"""Symbolic shapes of all tensors of a traced step, and the numbers in its small integer tensors.

TensorFlow knows the sizes that are the same in every step. What it calls unknown (``None``) is
found here: from the batch size, through shapes that a program computes itself. A size that cannot
be found gets a symbol of its own, which equals nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import tensorflow as tf

from evener.engine.trace.functional import LOOPS, num_leading
from evener.engine.trace.row_loops import find_row_loop
from evener.graph.dims import (
    Dim,
    Size,
    evaluate,
    is_at_least,
    per_sample,
    symbols_of,
)
from evener.graph.nodes import Graph, Node, Role, Tensor
from evener.graph.symbols import SymbolTable
from evener.ops.lists import UNLIKE_ELEMENTS, of_any_length
from evener.ops.registry import Shape, operation
from evener.ops.values import truth_of

Facts: TypeAlias = "tuple[Shape | None, Shape | None]"
"""The shape of a tensor and the numbers in it."""
_LARGEST_FACTOR = 2**20


@dataclass(slots=True)
class Inference(SymbolTable):
    """Finds the symbolic shapes of graphs.

    Attributes:
        meet: Function that is given every node before its shapes are inferred.
    """

    meet: Callable[[Node], None] | None = None

    def run(self, graph: Graph) -> None:
        """Find the shapes of all tensors whose inputs' shapes are known."""
        inputs = {tensor.node for tensor in graph.inputs}
        outside, self.scope = self.scope, id(graph)
        for node in graph:
            if node not in inputs or node.op != "Placeholder":
                self._infer(node)
        self.scope = outside

    def input_shape(self, tensor: Tensor, batch_axis: int | None, batch: Size) -> None:
        """Set the shape of an argument of the step: its batch axis has the size of the batch."""
        shape = self.with_symbols(tensor, None)
        if shape is not None and batch_axis is not None:
            shape = (*shape[:batch_axis], batch, *shape[batch_axis + 1 :])
        tensor.shape = shape

    def with_symbols(self, tensor: Tensor, found: Shape | None) -> Shape | None:
        """Return TensorFlow's static shape, where it is unknown what was found, else symbols."""
        static = self.shapes.get(tensor, tensor.node.static_shapes[tensor.index])
        if static is None:
            return found
        if found is not None and len(found) != len(static):
            found = None
        sizes: list[Size] = []
        for axis, size in enumerate(static):
            if isinstance(size, int):
                sizes.append(self._with_batch(size, None if found is None else found[axis]))
            elif size is not None:
                sizes.append(size)
            elif found is not None and found[axis] is not None:
                sizes.append(found[axis])
            else:
                sizes.append(self.new_symbol(tensor, axis))
        return tuple(sizes)

    def _with_batch(self, size: int, found: Size | None) -> Size:
        """Return the size that counts samples, where the number alone does not say that it does.

        Samples beside other rows stay a number: the gradients behind them know no other size.
        """
        if self.num_samples is None or not isinstance(found, Dim) or per_sample(found) is None:
            return size
        if symbols_of(found) != {"B"} or evaluate(found, {"B": self.num_samples}) != size:
            return size
        return found

    def _infer(self, node: Node) -> None:
        if self.meet is not None:
            self.meet(node)
        if node.bodies:
            self._infer_bodies(node)
            return
        rules = operation(node.op)
        found = None if rules.shape is None else rules.shape(self, node)
        for tensor in node.outputs:
            shape = found[tensor.index] if found else None
            if tensor.dtype != tf.variant:
                shape = self.with_symbols(tensor, shape)
            tensor.shape = shape
        if not any(t.dtype.is_integer or t.dtype == tf.variant for t in node.outputs):
            return
        values = None if rules.value is None else rules.value(self, node)
        for tensor in node.outputs:
            value = values[tensor.index] if values else None
            value = self.values.get(tensor, value)
            if value is not None and not all(_fits(size, tensor.dtype) for size in value):
                value = None
            tensor.value = value if value is not None else self._opaque(tensor)
            tensor.is_sizes = node.op not in ("Const", "Placeholder") and self._is_sizes(tensor)

    def _is_sizes(self, tensor: Tensor) -> bool:
        """Numbers that a program computes from data are no sizes: they may be large, as seeds."""
        if tensor.value is None or tensor.dtype == tf.variant:
            return False
        return all(map(self.is_made_of_sizes, tensor.value))

    def _infer_bodies(self, node: Node) -> None:
        """Find the shapes in a loop or condition, until what comes out of a loop may go in."""
        is_loop = node.op in LOOPS
        arguments = node.inputs[num_leading(node) :]
        known = {name for t in arguments for size in t.shape or () for name in symbols_of(size)}
        known.add("B")
        facts = [(t.shape, t.value) for t in arguments]
        stays: list[bool] = []
        if is_loop:
            body = node.bodies["body"]
            pairs = zip(body.inputs, body.outputs, strict=True)
            stays = [given is returned for given, returned in pairs]
            facts = [
                (t.shape, t.value if same else _list_value(t))
                for t, same in zip(arguments, stays, strict=True)
            ]
        results: list[Facts] = []
        # Each round knows less than the one before, so it ends.
        while True:
            for body in node.bodies.values():
                self._give(body.inputs, facts)
                self.run(body)
            if not is_loop:
                results = self._joined(node)
                break
            body = node.bodies["body"]
            # A size that a round has found itself may be another one in the next round.
            results = [
                fact
                if same
                else _widened(
                    fact,
                    _outside((t.shape, _list_value(t)), known),
                    is_list=t.dtype == tf.variant,
                )
                for fact, t, same in zip(facts, body.outputs, stays, strict=True)
            ]
            if results == facts:
                break
            # What depends on lists that were empty so far is seen in the next round.
            filled = any(
                a[0] is None and b[0] is not None for a, b in zip(facts, results, strict=True)
            )
            if filled:
                pairs = zip(facts, results, strict=True)
                results = [b if a[0] is None else a for a, b in pairs]
            facts = results
        for tensor, fact in zip(node.outputs, results, strict=True):
            shape, value = _outside(fact, known)
            if tensor.dtype != tf.variant:
                shape = self.with_symbols(tensor, shape)
            tensor.shape = self._given(tensor, shape) if shape is not None else None
            tensor.value = self._opaque(tensor) if value is None else value
        node.row_loop = find_row_loop(node)
        self._infer_rows(node)

    def _infer_rows(self, node: Node) -> None:
        """Set what is known behind a loop over rows: its counters, and how long its lists are."""
        loop = node.row_loop
        if loop is None:
            return
        for tensor, role in zip(node.outputs, loop.roles, strict=True):
            is_certain = self.is_made_of_sizes(loop.count) and is_at_least(loop.count, 0)
            if role is Role.COUNTER and is_certain:
                tensor.value, tensor.is_sizes = (loop.count,), True
            elif role in (Role.WRITTEN, Role.PUSHED) and tensor.shape:
                tensor.shape = (loop.count, *tensor.shape[1:])
            elif role is Role.POPPED:
                tensor.shape = of_any_length(tensor.shape)

    def _give(self, inputs: Sequence[Tensor], facts: Sequence[Facts]) -> None:
        for tensor, (shape, value) in zip(inputs, facts, strict=True):
            tensor.value = value
            if shape is None and tensor.dtype != tf.variant:
                tensor.shape = self.with_symbols(tensor, None)
            else:
                tensor.shape = self._given(tensor, shape)

    def _given(self, tensor: Tensor, shape: Shape | None) -> Shape | None:
        """Return a shape with symbols for what is not known."""
        if shape is None:
            return None
        return tuple(self.new_symbol(tensor, k) if s is None else s for k, s in enumerate(shape))

    def _joined(self, node: Node) -> list[Facts]:
        """Return what is the same in all branches of a condition."""
        bodies = list(node.bodies.values())
        chosen = truth_of(node.inputs[0]) if "then_branch" in node.bodies else None
        if chosen is not None:
            bodies = [node.bodies["then_branch" if chosen else "else_branch"]]
        columns = zip(*(body.outputs for body in bodies), strict=True)
        joined: list[Facts] = []
        for tensors in columns:
            shapes = {t.shape for t in tensors}
            if len(shapes) > 1 and tensors[0].dtype == tf.variant:
                shapes = {of_any_length(shape) for shape in shapes}
            values = {t.value for t in tensors}
            shape = shapes.pop() if len(shapes) == 1 else None
            joined.append((shape, values.pop() if len(values) == 1 else None))
        return joined

    def _opaque(self, tensor: Tensor) -> Shape | None:
        """Give numbers that nobody knows a symbol each, so that sizes made of them have one."""
        if tensor.shape == () and tensor.dtype.is_integer and tensor.node.op != "Placeholder":
            return (self.new_symbol(tensor, None),)
        return None


def _list_value(tensor: Tensor) -> Shape | None:
    return tensor.value if tensor.dtype == tf.variant else None


def _widened(before: Facts, after: Facts, *, is_list: bool) -> Facts:
    """Return what holds before and after one round of a loop; None for sizes that change."""
    if is_list and before[0] is not None and before[0] != after[0]:
        alike = of_any_length(before[0])
        if not alike or alike != of_any_length(after[0]):
            return UNLIKE_ELEMENTS, None
        return alike, before[1] if before[1] == after[1] else None
    (shape, value), (new_shape, new_value) = before, after
    if shape is None:
        return new_shape, new_value
    if new_shape is None or len(new_shape) != len(shape):
        return None, None
    pairs = zip(shape, new_shape, strict=True)
    sizes: Any = tuple(size if size == new else None for size, new in pairs)
    return sizes, value if value == new_value else None


def _outside(facts: Facts, known: set[str]) -> Facts:
    """Return facts without what is said in symbols of a body, which mean nothing outside."""
    shape, value = facts
    if shape:
        kept: Any = [s if s is None or symbols_of(s) <= known else None for s in shape]
        shape = tuple(kept)
    if value is not None and not all(symbols_of(size) <= known for size in value):
        value = None
    return shape, value


def _fits(size: Size, dtype: tf.DType) -> bool:
    """Return whether a kernel computes a number without an overflow.

    Sizes are far from it; what a program multiplies by large numbers is a hash or a seed.
    """
    if not dtype.is_integer:
        return True
    if isinstance(size, int):
        return bool(dtype.min <= size <= dtype.max)
    largest = min(_LARGEST_FACTOR, dtype.max)
    return all(abs(factor) <= largest for factor in size.terms.values())
