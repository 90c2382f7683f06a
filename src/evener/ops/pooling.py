"""Pooling and its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import tensorflow as tf

from evener.graph.nodes import Node
from evener.graph.symbols import SymbolTable
from evener.ops.axes import batch_first, behind, given_by_input, like_input, per_image, per_image_of
from evener.ops.builder import Builder
from evener.ops.decision import ROWS, WHOLE, Decision
from evener.ops.known import shape_of
from evener.ops.registry import Shapes, rule, shape_rule
from evener.ops.states import (
    FIRST,
    REPLICATED,
    Numbers,
    State,
    first_of,
    is_first,
    is_shardable,
    part_sizes,
)

# The first axis of all inputs and outputs counts samples. (oneDNN's kernels of convolutions and
# pooling are wrong, or end the process, where there are none.)
PER_SAMPLE = """
MaxPool AvgPool MaxPool3D AvgPool3D MaxPoolGradGrad
""".split()
_CACHED = (tf.float32, tf.bfloat16, tf.float16)
"""Dtypes of oneDNN's kernels of pooling."""


@rule(*PER_SAMPLE, inputs=ROWS)
@rule("MaxPoolV2", inputs=(ROWS, WHOLE, WHOLE))
@rule("MaxPoolGradV2", inputs=(ROWS, ROWS, ROWS, WHOLE, WHOLE))
def per_sample(node: Node, states: Sequence[State]) -> Decision | None:
    """Return a decision by rows of images; what is smaller than a matrix is the same for all."""
    rows = next(filter(None, map(first_of, states)), None)
    if rows is not None:
        tensors = (*node.inputs, *node.outputs)
        if all(is_shardable(t.shape, rows) or not t.rank for t in tensors):
            wanted = tuple(rows if t.rank and t.rank > 1 else REPLICATED for t in node.inputs)
            outputs = (rows,) * len(node.outputs)
            return Decision(inputs=wanted, outputs=outputs, needs_samples=True)
    return None


@rule("MaxPoolGrad", "MaxPool3DGrad", inputs=ROWS)
def _gradient_of_maximum(node: Node, states: Sequence[State]) -> Decision | None:
    decision = per_sample(node, states)
    return None if decision is None else replace(decision, lower=_beside_its_pooling)


def _beside_its_pooling(builder: Builder, node: Node, inputs: Sequence[str]) -> Sequence[str]:
    """Add the gradient of a maximum; on a CPU also its pooling, if another function computes that.

    oneDNN's pooling keeps the positions of the maxima for a gradient that reads its output in the
    same graph. Without them the gradient takes ten times as long as both.
    """
    images, pooled, upstream = inputs
    is_elsewhere = builder.is_argument(pooled)
    if builder.may_be_on_cpu and is_elsewhere and node.outputs[0].dtype in _CACHED:
        [pooled] = builder.op(node.op.removesuffix("Grad"), [images], node.attrs)
    return builder.copy(node.op, node.name, [images, pooled, upstream], node.attrs)


@rule("AvgPoolGrad", "AvgPool3DGrad", inputs=(WHOLE, ROWS))
def _gradient_of_average(node: Node, states: Sequence[State]) -> Decision | None:
    shape, rows = shape_of(node.outputs[0]), first_of(states[1])
    if rows is None or not is_shardable(shape, rows):
        return None
    sizes = Numbers(part_sizes(shape, rows))
    return Decision(inputs=(sizes, rows), outputs=(rows,), needs_samples=True)


@rule("MaxPoolWithArgmax", inputs=ROWS)
@rule("MaxPoolGradWithArgmax", inputs=ROWS)
def _pool_with_positions(node: Node, states: Sequence[State]) -> Decision | None:
    """Positions in every image; positions in the whole batch are not those of a part."""
    if node.bool_attr("include_batch_in_index"):
        return None
    return per_image(node, states, range(len(states)))


@rule("FractionalAvgPoolGrad", inputs=(WHOLE, ROWS, WHOLE, WHOLE))
def _gradient_of_fractional_average(node: Node, states: Sequence[State]) -> Decision | None:
    shape = shape_of(node.outputs[0])
    if not is_first(states[1]) or not is_shardable(shape, FIRST):
        return None
    wanted = (Numbers(part_sizes(shape, FIRST)), FIRST, REPLICATED, REPLICATED)
    return Decision(inputs=wanted, outputs=(FIRST,), needs_samples=True)


@shape_rule("MaxPoolWithArgmax")
def _shapes_with_positions(table: SymbolTable, node: Node) -> Shapes:
    shape = node.inputs[0].shape
    return [behind(table, tensor, shape[:1]) for tensor in node.outputs] if shape else None


@shape_rule("FractionalMaxPool", "FractionalAvgPool")
def _fractional_shape(table: SymbolTable, node: Node) -> Shapes:
    shape = node.inputs[0].shape
    return [behind(table, node.outputs[0], shape[:1]), None, None] if shape else None


rule("FractionalMaxPoolGrad", inputs=(ROWS, ROWS, ROWS, WHOLE, WHOLE))(per_image_of(0, 1, 2))
shape_rule("MaxPool", "MaxPoolV2", "MaxPool3D", "AvgPool", "AvgPool3D")(batch_first)
shape_rule(
    "MaxPoolGrad",
    "MaxPool3DGrad",
    "MaxPoolGradV2",
    "MaxPoolGradWithArgmax",
    "FractionalMaxPoolGrad",
)(like_input(0))
shape_rule("AvgPoolGrad", "AvgPool3DGrad", "FractionalAvgPoolGrad")(given_by_input(0))
