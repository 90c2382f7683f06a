"""Layers of neural networks: pooling, resizing, normalisation, cross entropy."""

from __future__ import annotations

from collections.abc import Sequence

from evener.graph.nodes import Node
from evener.ops.decision import ROWS, WHOLE, Decision, rule
from evener.ops.states import (
    REPLICATED,
    SUM,
    Numbers,
    Sharded,
    State,
    first_of,
    is_first,
    is_shardable,
    part_sizes,
)

# The first axis of all inputs and outputs counts samples. (oneDNN's kernels of convolutions and
# pooling are wrong, or end the process, where there are none.)
PER_SAMPLE = """
MaxPool AvgPool MaxPool3D AvgPool3D MaxPoolGrad MaxPool3DGrad MaxPoolGradGrad
LRN LRNGrad
""".split()
ADJUST = "AdjustContrastv2 AdjustHue AdjustSaturation".split()
RESIZE = "ResizeBilinear ResizeNearestNeighbor ResizeBicubic ResizeArea".split()


@rule(*PER_SAMPLE, inputs=ROWS)
@rule("MaxPoolV2", inputs=(ROWS, WHOLE, WHOLE))
@rule("MaxPoolGradV2", inputs=(ROWS, ROWS, ROWS, WHOLE, WHOLE))
def _per_sample(node: Node, states: Sequence[State]) -> Decision | None:
    rows = next(filter(None, map(first_of, states)), None)
    if rows is not None:
        tensors = (*node.inputs, *node.outputs)
        if all(is_shardable(t.shape, rows) or not t.rank for t in tensors):
            wanted = tuple(rows if t.rank and t.rank > 1 else REPLICATED for t in node.inputs)
            outputs = (rows,) * len(node.outputs)
            return Decision(inputs=wanted, outputs=outputs, needs_samples=True)
    return None


@rule("RGBToHSV", "HSVToRGB", "ExtractImagePatches", inputs=ROWS)
@rule(*ADJUST, inputs=(ROWS, WHOLE))
def _images(node: Node, states: Sequence[State]) -> Decision | None:
    state, rank = states[0], node.inputs[0].rank
    if rank is None or not isinstance(state, Sharded) or state.axis > rank - 4:
        return None
    others = (REPLICATED,) * (len(states) - 1)
    return Decision(inputs=(state, *others), outputs=(state,), needs_samples=True)


@rule(*RESIZE, "ResizeNearestNeighborGrad", inputs=(ROWS, WHOLE))
@rule("ResizeBilinearGrad", "ResizeBicubicGrad", inputs=ROWS)
def _resize(node: Node, states: Sequence[State]) -> Decision | None:
    rows = first_of(states[0])
    if rows is None or not is_shardable(node.outputs[0].shape, rows):
        return None
    others = [
        rows if is_shardable(t.shape, rows) and (t.rank or 0) > 1 else REPLICATED
        for t in node.inputs[1:]
    ]
    return Decision(inputs=(rows, *others), outputs=(rows,), needs_samples=True)


@rule("AvgPoolGrad", "AvgPool3DGrad", inputs=(WHOLE, ROWS))
def _gradient_of_average(node: Node, states: Sequence[State]) -> Decision | None:
    shape, rows = node.outputs[0].shape, first_of(states[1])
    if shape is None or rows is None or not is_shardable(shape, rows):
        return None
    sizes = Numbers(part_sizes(shape, rows))
    return Decision(inputs=(sizes, rows), outputs=(rows,), needs_samples=True)


@rule("BiasAdd", inputs=(ROWS, WHOLE))
def _bias(node: Node, states: Sequence[State]) -> Decision | None:
    state, rank = states[0], node.inputs[0].rank
    if rank is None or not isinstance(state, Sharded) or state.axis == _channels(node, rank):
        return None
    return Decision(inputs=(state, REPLICATED), outputs=(state,))


@rule("BiasAddGrad", inputs=ROWS)
def _gradient_of_bias(node: Node, states: Sequence[State]) -> Decision | None:
    state, rank = states[0], node.inputs[0].rank
    if rank is None or not isinstance(state, Sharded) or state.axis == _channels(node, rank):
        return None
    return Decision(inputs=(state,), outputs=(SUM,))


def _channels(node: Node, rank: int) -> int:
    return 1 if node.text_attr("data_format") == "NCHW" else rank - 1


@rule("Softmax", "LogSoftmax", inputs=ROWS)
def _softmax(node: Node, states: Sequence[State]) -> Decision | None:
    state, rank = states[0], node.inputs[0].rank
    if rank is None or not isinstance(state, Sharded) or state.axis == rank - 1:
        return None
    return Decision(inputs=(state,), outputs=(state,))


@rule("SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits", inputs=ROWS)
def _cross_entropy(node: Node, states: Sequence[State]) -> Decision | None:
    target = next((s for s in states if is_first(s)), None)
    if not isinstance(target, Sharded):
        return None
    if not all(is_shardable(t.shape, target) for t in node.inputs):
        return None
    return Decision(inputs=(target, target), outputs=(target, target))


@rule("InTopKV2", inputs=(ROWS, ROWS, WHOLE))
@rule("InTopK", inputs=ROWS)
def _in_top_k(node: Node, states: Sequence[State]) -> Decision | None:
    state = next((s for s in states[:2] if is_first(s)), None)
    if not isinstance(state, Sharded):
        return None
    others = (REPLICATED,) * (len(states) - 2)
    return Decision(inputs=(state, state, *others), outputs=(state,))
