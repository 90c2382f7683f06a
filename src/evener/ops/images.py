"""Images: sizes, colours, transforms, crops and boxes."""

from __future__ import annotations

from collections.abc import Sequence

from evener.graph.nodes import Node
from evener.graph.symbols import SymbolTable
from evener.ops.axes import all_first, batch_first, behind, given_by_input, like_input
from evener.ops.decision import ROWS, WHOLE, Decision
from evener.ops.own_rows import in_own_rows, with_own_rows
from evener.ops.registry import Shapes, Trait, gathered, rule, shape_rule, traits
from evener.ops.states import (
    FIRST,
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

ADJUST = "AdjustContrastv2 AdjustHue AdjustSaturation".split()


RESIZE = "ResizeBilinear ResizeNearestNeighbor ResizeBicubic ResizeArea".split()


@rule("RGBToHSV", "HSVToRGB", "ExtractImagePatches", inputs=ROWS)
@rule(*ADJUST, inputs=(ROWS, WHOLE))
def _pixels(node: Node, states: Sequence[State]) -> Decision | None:
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


@shape_rule("CropAndResize")
def _crops_shape(table: SymbolTable, node: Node) -> Shapes:
    boxes = node.inputs[1].shape
    return None if boxes is None else [behind(table, node.outputs[0], boxes[:1])]


@shape_rule("ResizeBilinearGrad", "ResizeNearestNeighborGrad", "ResizeBicubicGrad")
@shape_rule("DrawBoundingBoxes", "DrawBoundingBoxesV2", "CombinedNonMaxSuppression")
@shape_rule("ExtractGlimpse", "ExtractGlimpseV2", "ScaleAndTranslate", "ImageProjectiveTransformV2")
def _behind_images(table: SymbolTable, node: Node) -> Shapes:
    shape = node.inputs[0].shape
    return [behind(table, tensor, shape[:1]) for tensor in node.outputs] if shape else None


shape_rule(*RESIZE, "ExtractImagePatches", "ImageProjectiveTransformV3")(batch_first)
shape_rule(*ADJUST, "HSVToRGB", "RGBToHSV")(like_input(0))
shape_rule("ScaleAndTranslateGrad")(like_input(1))
shape_rule("CropAndResizeGradBoxes")(like_input(2))
shape_rule("CropAndResizeGradImage")(given_by_input(3))
traits("NonMaxSuppressionV3 NonMaxSuppressionV4 NonMaxSuppressionV5", Trait.SIZED_BY_DATA)
gathered(
    "NonMaxSuppressionV3 NonMaxSuppressionV4 NonMaxSuppressionV5",
    "It compares, sorts or permutes the samples of a batch.",
)
