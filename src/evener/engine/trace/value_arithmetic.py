"""The numbers that are computed from others: sums and quotients of sizes and constants."""

from __future__ import annotations

from evener.engine.trace.inference import Inference, Shape
from evener.engine.trace.shape_rules import reduced_axes
from evener.engine.trace.value_rules import Values, value_rule
from evener.graph.dims import Size, divide, product
from evener.graph.nodes import Node


@value_rule("Neg")
def _neg(inference: Inference, node: Node) -> Values:
    value = node.inputs[0].value
    return None if value is None else [tuple(number * -1 for number in value)]


@value_rule(
    "Add", "AddV2", "Sub", "Mul", "FloorDiv", "FloorMod", "Maximum", "Minimum", "TruncateDiv"
)
def _arithmetic(inference: Inference, node: Node) -> Values:
    a, b = (t.value for t in node.inputs)
    shape = node.outputs[0].shape
    if node.op == "FloorMod" and a is None and b is not None and len(shape or ()) == 1:
        return _remainders(inference, node, b)
    if a is None or b is None or shape is None or len(shape) > 1:
        return None
    length = shape[0] if shape else 1
    if not isinstance(length, int):
        return None
    a, b = (v * length if len(v) == 1 else v for v in (a, b))
    if len(a) != len(b):
        return None
    return [
        tuple(
            _computed(inference, node, one, other, index)
            for index, (one, other) in enumerate(zip(a, b, strict=True))
        )
    ]


def _remainders(inference: Inference, node: Node, divisors: Shape) -> Values:
    """Return the remainders of numbers that are not known: those of 1 are 0."""
    result = node.outputs[0]
    if result.shape != (len(divisors),):
        return None
    return [
        tuple(
            0 if divisor == 1 else inference.new_symbol(result, None, index)
            for index, divisor in enumerate(divisors)
        )
    ]


def _computed(inference: Inference, node: Node, a: Size, b: Size, index: int) -> Size:
    op = node.op
    if op in ("Add", "AddV2"):
        return a + b
    if op == "Sub":
        return a - b
    if op == "Mul":
        return a * b
    if isinstance(a, int) and isinstance(b, int):
        numbers = {"Maximum": max(a, b), "Minimum": min(a, b)}
        if op in numbers:
            return numbers[op]
        if b:
            truncated = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
            return {"FloorMod": a % b, "FloorDiv": a // b, "TruncateDiv": truncated}[op]
    if op in ("Maximum", "Minimum") and a == b:
        return a
    # A number that is computed from data may be 0, and then the division fails.
    quotient = divide(a, b) if inference.is_made_of_sizes(b) else None
    if quotient is not None and op in ("FloorDiv", "TruncateDiv"):
        return quotient
    if quotient is not None and op == "FloorMod":
        return 0
    return inference.symbol_for((op, a, b), node.outputs[0], index)


@value_rule("Prod", "Sum", "Max", "Min")
def _reduce(inference: Inference, node: Node) -> Values:
    value, shape = node.inputs[0].value, node.inputs[0].shape
    if value is None or shape is None:
        return None
    axes = reduced_axes(shape, node.inputs[1].value)
    if axes is None:
        return None
    if shape and not axes:
        return [value]
    if node.op == "Prod":
        return [(product(value),)]
    if node.op == "Sum":
        total: Size = 0
        for number in value:
            total = number + total
        return [(total,)]
    if len(set(value)) == 1:
        return [value[:1]]
    numbers = [number for number in value if isinstance(number, int)]
    if len(numbers) < len(value) or not numbers:
        return None
    return [(max(numbers) if node.op == "Max" else min(numbers),)]
