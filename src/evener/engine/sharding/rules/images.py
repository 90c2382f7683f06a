"""Images: transforms, crops, boxes, pooling with positions, blocks of space as rows."""

from __future__ import annotations

from collections.abc import Sequence

from evener.engine.sharding.rules.own_rows import with_own_rows
from evener.engine.trace.own_rows import in_own_rows
from evener.graph.dims import Size, divide, has_batch, product
from evener.graph.nodes import Node, Tensor
from evener.ops.decision import ROWS, WHOLE, Decision, rule
from evener.ops.states import (
    FIRST,
    REPLICATED,
    SUM,
    Numbers,
    Sharded,
    State,
    is_first,
    is_shardable,
    part_sizes,
)


def all_first(tensors: Sequence[Tensor]) -> bool:
    """Return whether the first axis of all tensors counts samples."""
    return all(is_shardable(tensor.shape, FIRST) for tensor in tensors)


@rule("ImageProjectiveTransformV2", inputs=(ROWS, ROWS, WHOLE))
@rule("ImageProjectiveTransformV3", inputs=(ROWS, ROWS, WHOLE, WHOLE))
def _transform(node: Node, states: Sequence[State]) -> Decision | None:
    """One transform for every image, or one for all."""
    images, transforms = node.inputs[:2]
    if not (is_first(states[0]) or is_first(states[1])) or not all_first([images]):
        return None
    shape = transforms.shape
    wanted: State = FIRST
    if shape is not None and shape[0] == 1:
        wanted = REPLICATED
    elif shape is None or images.shape is None or shape[0] != images.shape[0]:
        return None
    others = (REPLICATED,) * (len(states) - 2)
    return Decision(inputs=(FIRST, wanted, *others), outputs=(FIRST,), needs_samples=True)


@rule("DrawBoundingBoxes", inputs=ROWS)
@rule("DrawBoundingBoxesV2", inputs=(ROWS, ROWS, WHOLE))
@rule("CombinedNonMaxSuppression", inputs=(ROWS, ROWS, WHOLE, WHOLE, WHOLE, WHOLE))
def _boxes(node: Node, states: Sequence[State]) -> Decision | None:
    """Boxes of every image."""
    if not any(is_first(state) for state in states) or not all_first(node.inputs[:2]):
        return None
    others = (REPLICATED,) * (len(states) - 2)
    outputs = (FIRST,) * len(node.outputs)
    return Decision(inputs=(FIRST, FIRST, *others), outputs=outputs, needs_samples=True)


@rule("ExtractGlimpse", "ExtractGlimpseV2", inputs=(ROWS, WHOLE, ROWS))
def _glimpse(node: Node, states: Sequence[State]) -> Decision | None:
    """Windows of every image; noise outside of it would be drawn by every part for itself."""
    if node.text_attr("noise") != "zero" or not all_first([node.inputs[0], node.inputs[2]]):
        return None
    if not (is_first(states[0]) or is_first(states[2])):
        return None
    return Decision(inputs=(FIRST, REPLICATED, FIRST), outputs=(FIRST,), needs_samples=True)


@rule("ScaleAndTranslate", inputs=(ROWS, WHOLE, WHOLE, WHOLE))
def _scale(node: Node, states: Sequence[State]) -> Decision | None:
    if not is_first(states[0]) or not all_first(node.inputs[:1]):
        return None
    return Decision(inputs=(FIRST, *[REPLICATED] * 3), outputs=(FIRST,), needs_samples=True)


@rule("ScaleAndTranslateGrad", inputs=(ROWS, ROWS, WHOLE, WHOLE))
def _gradient_of_scale(node: Node, states: Sequence[State]) -> Decision | None:
    if not is_first(states[0]) or not all_first(node.inputs[:2]):
        return None
    wanted = (FIRST, FIRST, REPLICATED, REPLICATED)
    return Decision(inputs=wanted, outputs=(FIRST,), needs_samples=True)


@rule("MaxPoolWithArgmax", inputs=ROWS)
@rule("MaxPoolGradWithArgmax", inputs=ROWS)
def _pool_with_positions(node: Node, states: Sequence[State]) -> Decision | None:
    """Positions in every image; positions in the whole batch are not those of a part."""
    if node.bool_attr("include_batch_in_index") or not all_first(node.inputs):
        return None
    if not any(is_first(state) for state in states):
        return None
    outputs = (FIRST,) * len(node.outputs)
    return Decision(inputs=(FIRST,) * len(states), outputs=outputs, needs_samples=True)


@rule("FractionalMaxPoolGrad", inputs=(ROWS, ROWS, ROWS, WHOLE, WHOLE))
def _gradient_of_fractional(node: Node, states: Sequence[State]) -> Decision | None:
    if not any(is_first(state) for state in states[:3]) or not all_first(node.inputs[:3]):
        return None
    wanted = (FIRST, FIRST, FIRST, REPLICATED, REPLICATED)
    return Decision(inputs=wanted, outputs=(FIRST,), needs_samples=True)


@rule("FractionalAvgPoolGrad", inputs=(WHOLE, ROWS, WHOLE, WHOLE))
def _gradient_of_fractional_average(node: Node, states: Sequence[State]) -> Decision | None:
    shape = node.outputs[0].shape
    if shape is None or not is_first(states[1]) or not is_shardable(shape, FIRST):
        return None
    wanted = (Numbers(part_sizes(shape, FIRST)), FIRST, REPLICATED, REPLICATED)
    return Decision(inputs=wanted, outputs=(FIRST,), needs_samples=True)


@rule("Dilation2DBackpropInput", "Dilation2DBackpropFilter", inputs=(ROWS, WHOLE, ROWS))
def _gradient_of_dilation(node: Node, states: Sequence[State]) -> Decision | None:
    if not all_first([node.inputs[0], node.inputs[2]]):
        return None
    if not (is_first(states[0]) or is_first(states[2])):
        return None
    state = FIRST if node.op == "Dilation2DBackpropInput" else SUM
    return Decision(inputs=(FIRST, REPLICATED, FIRST), outputs=(state,), needs_samples=True)


@rule("CropAndResize", inputs=(ROWS, ROWS, ROWS, WHOLE))
def _crop(node: Node, states: Sequence[State]) -> Decision | None:
    """Boxes by rows. Which image a box is of is in the data, unless it is its own row."""
    if not any(is_first(states[k]) for k in (1, 2)) or not all_first(node.inputs[1:3]):
        return None
    if in_own_rows(node.inputs[2]) and all_first(node.inputs[:1]):
        return Decision(
            inputs=(FIRST, FIRST, FIRST, REPLICATED),
            outputs=(FIRST,),
            lower=with_own_rows(2),
            needs_samples=True,
        )
    wanted = (REPLICATED, FIRST, FIRST, REPLICATED)
    return Decision(inputs=wanted, outputs=(FIRST,), needs_samples=True)


@rule("CropAndResizeGradBoxes", inputs=(ROWS, ROWS, ROWS, ROWS))
def _boxes_of_crops(node: Node, states: Sequence[State]) -> Decision | None:
    grads, _, boxes, places = node.inputs
    if not any(is_first(states[k]) for k in (0, 2, 3)) or not all_first([grads, boxes, places]):
        return None
    if in_own_rows(places) and all_first([node.inputs[1]]):
        lower, image = with_own_rows(3), FIRST
    else:
        lower, image = None, REPLICATED
    return Decision(
        inputs=(FIRST, image, FIRST, FIRST), outputs=(FIRST,), lower=lower, needs_samples=True
    )


@rule("CropAndResizeGradImage", inputs=(ROWS, ROWS, ROWS, WHOLE))
def _images_of_crops(node: Node, states: Sequence[State]) -> Decision | None:
    """Every part adds what its boxes have taken to images: to its own, or to all."""
    shape = node.outputs[0].shape
    if not any(is_first(state) for state in states[:3]) or not all_first(node.inputs[:3]):
        return None
    if shape is not None and in_own_rows(node.inputs[2]) and is_shardable(shape, FIRST):
        return Decision(
            inputs=(FIRST, FIRST, FIRST, Numbers(part_sizes(shape, FIRST))),
            outputs=(FIRST,),
            lower=with_own_rows(2),
            needs_samples=True,
        )
    wanted = (FIRST, FIRST, FIRST, REPLICATED)
    return Decision(inputs=wanted, outputs=(SUM,), needs_samples=True)


@rule("SpaceToBatchND", "BatchToSpaceND", inputs=(ROWS, WHOLE, WHOLE))
def _blocks(node: Node, states: Sequence[State]) -> Decision | None:
    """Positions of a block become blocks of the whole batch, one behind the other, or back."""
    state, block, result = states[0], node.inputs[1].value, node.outputs[0].shape
    if not isinstance(state, Sharded) or state.axis != 0 or block is None or result is None:
        return None
    count = product(block)
    if not isinstance(count, int) or not is_shardable(node.inputs[0].shape, state):
        return None
    outer: Size | None = state.outer * count
    if node.op == "BatchToSpaceND":
        outer = divide(state.outer, count)
    if outer is None or has_batch(outer) or not is_shardable(result, state.with_blocks(0, outer)):
        return None
    wanted = (state, REPLICATED, REPLICATED)
    return Decision(inputs=wanted, outputs=(state.with_blocks(0, outer),), needs_samples=True)
