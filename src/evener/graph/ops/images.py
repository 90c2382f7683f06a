"""Images: sizes, colours, transforms, crops and boxes; blocks of space as rows or channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from evener.graph.dims import Size, divide, has_batch, product
from evener.graph.nodes import Node, SymbolTable
from evener.graph.ops.gathering import from_own_rows, in_own_rows
from evener.graph.ops.registry import (
    Shapes,
    Trait,
    all_first,
    batch_first,
    behind,
    beside,
    given_by_input,
    last_axes,
    like_input,
    matrix_of,
    per_image,
    per_image_of,
    replicated,
    rule,
    shape_rule,
    traits,
)
from evener.graph.ops.states import (
    FIRST,
    REPLICATED,
    ROWS,
    SUM,
    WHOLE,
    Decision,
    Numbers,
    State,
    first_of,
    integer,
    is_first,
    is_shardable,
    known,
    numbers_of,
    part_sizes,
    require,
    shape_of,
    sharded,
)

ADJUST = "AdjustContrastv2 AdjustHue AdjustSaturation".split()


RESIZE = "ResizeBilinear ResizeNearestNeighbor ResizeBicubic ResizeArea".split()


@rule("RGBToHSV", "HSVToRGB", "ExtractImagePatches", inputs=ROWS)
@rule(*ADJUST, inputs=(ROWS, WHOLE))
def _pixels(node: Node, states: Sequence[State]) -> Decision | None:
    return replace(beside(node, states, last_axes(node.inputs[0], 3)), needs_samples=True)


@rule(*RESIZE, "ResizeNearestNeighborGrad", inputs=(ROWS, WHOLE))
@rule("ResizeBilinearGrad", "ResizeBicubicGrad", inputs=ROWS)
def _resize(node: Node, states: Sequence[State]) -> Decision | None:
    rows = first_of(states[0])
    require(is_shardable(node.outputs[0].shape, rows))
    others = [
        rows if is_shardable(t.shape, rows) and (t.rank or 0) > 1 else REPLICATED
        for t in node.inputs[1:]
    ]
    return Decision(inputs=(rows, *others), outputs=(rows,), needs_samples=True)


@rule("ImageProjectiveTransformV2", inputs=(ROWS, ROWS, WHOLE))
@rule("ImageProjectiveTransformV3", inputs=(ROWS, ROWS, WHOLE, WHOLE))
def _transform(node: Node, states: Sequence[State]) -> Decision | None:
    """One transform for every image, or one for all."""
    images, count = shape_of(node.inputs[0]), shape_of(node.inputs[1])[0]
    require((is_first(states[0]) or is_first(states[1])) and is_shardable(images, FIRST))
    require(count in (1, images[0]))
    wanted = (FIRST, REPLICATED if count == 1 else FIRST, *replicated(len(states) - 2))
    return Decision(inputs=wanted, outputs=(FIRST,), needs_samples=True)


@rule("ExtractGlimpse", "ExtractGlimpseV2", inputs=(ROWS, WHOLE, ROWS))
def _glimpse(node: Node, states: Sequence[State]) -> Decision | None:
    """Windows of every image; noise outside of it would be drawn by every part for itself."""
    require(node.text_attr("noise") == "zero")
    return per_image(node, states, (0, 2))


@rule("ScaleAndTranslateGrad", inputs=(ROWS, ROWS, WHOLE, WHOLE))
def _gradient_of_scale(node: Node, states: Sequence[State]) -> Decision | None:
    require(is_first(states[0]))
    return per_image(node, states, (0, 1))


@rule("CropAndResize", inputs=(ROWS, ROWS, ROWS, WHOLE))
def _crop(node: Node, states: Sequence[State]) -> Decision | None:
    """Boxes by rows. Which image a box is of is in the data, unless it is its own row."""
    decision = per_image(node, states, (1, 2))
    if not in_own_rows(node.inputs[2]) or not all_first(node.inputs[:1]):
        return decision
    wanted = (FIRST, FIRST, FIRST, REPLICATED)
    return replace(decision, inputs=wanted, lower=from_own_rows(2))


@rule("CropAndResizeGradBoxes", inputs=(ROWS, ROWS, ROWS, ROWS))
def _boxes_of_crops(node: Node, states: Sequence[State]) -> Decision | None:
    decision = per_image(node, states, (0, 2, 3))
    if not in_own_rows(node.inputs[3]) or not all_first([node.inputs[1]]):
        return decision
    return replace(decision, inputs=(FIRST,) * 4, lower=from_own_rows(3))


@rule("CropAndResizeGradImage", inputs=(ROWS, ROWS, ROWS, WHOLE))
def _images_of_crops(node: Node, states: Sequence[State]) -> Decision | None:
    """Every part adds what its boxes have taken to images: to its own, or to all."""
    decision, shape = per_image(node, states, (0, 1, 2)), node.outputs[0].shape
    if shape is None or not in_own_rows(node.inputs[2]) or not is_shardable(shape, FIRST):
        return replace(decision, outputs=(SUM,))
    wanted = (FIRST, FIRST, FIRST, Numbers(part_sizes(shape, FIRST)))
    return replace(decision, inputs=wanted, lower=from_own_rows(2))


@shape_rule("CropAndResize")
def _crops_shape(table: SymbolTable, node: Node) -> Shapes:
    return [behind(table, node.outputs[0], shape_of(node.inputs[1])[:1])]


@shape_rule("ResizeBilinearGrad", "ResizeNearestNeighborGrad", "ResizeBicubicGrad")
@shape_rule("DrawBoundingBoxes", "DrawBoundingBoxesV2", "CombinedNonMaxSuppression")
@shape_rule("ExtractGlimpse", "ExtractGlimpseV2", "ScaleAndTranslate", "ImageProjectiveTransformV2")
def _behind_images(table: SymbolTable, node: Node) -> Shapes:
    front = shape_of(node.inputs[0])[:1]
    return [behind(table, tensor, front) for tensor in node.outputs] if front else None


rule("DrawBoundingBoxes", inputs=ROWS)(per_image_of(0, 1))
rule("DrawBoundingBoxesV2", inputs=(ROWS, ROWS, WHOLE))(per_image_of(0, 1))
rule("CombinedNonMaxSuppression", inputs=(ROWS, ROWS, *[WHOLE] * 4))(per_image_of(0, 1))
rule("ScaleAndTranslate", inputs=(ROWS, WHOLE, WHOLE, WHOLE))(per_image_of(0))
shape_rule(*RESIZE, "ExtractImagePatches", "ImageProjectiveTransformV3")(batch_first)
shape_rule(*ADJUST, "HSVToRGB", "RGBToHSV")(like_input(0))
shape_rule("ScaleAndTranslateGrad")(like_input(1))
shape_rule("CropAndResizeGradBoxes")(like_input(2))
shape_rule("CropAndResizeGradImage")(given_by_input(3))
traits("NonMaxSuppressionV3 NonMaxSuppressionV4 NonMaxSuppressionV5", Trait.SIZED_BY_DATA)


@shape_rule("SpaceToBatchND", "BatchToSpaceND")
def _blocks_shape(table: SymbolTable, node: Node) -> Shapes:
    """Positions of every block become rows: ``block_row * B + sample``, or back."""
    shape, block = shape_of(node.inputs[0]), numbers_of(node.inputs[1])
    pads = matrix_of(node.inputs[2])
    space = shape[1 : len(block) + 1]
    sizes: list[Size] = []
    is_forward = node.op == "SpaceToBatchND"
    first = shape[0] * product(block) if is_forward else known(divide(shape[0], product(block)))
    for size, factor, row in zip(space, block, pads, strict=True):
        edge = row[0] + row[1]
        length = divide(size + edge, factor) if is_forward else size * factor - edge
        if length is None:
            length = table.new_symbol(node.outputs[0], len(sizes) + 1)
        sizes.append(length)
    return [(first, *sizes, *shape[len(block) + 1 :])]


@rule("SpaceToBatchND", "BatchToSpaceND", inputs=(ROWS, WHOLE, WHOLE))
def _blocks(node: Node, states: Sequence[State]) -> Decision | None:
    """Positions of a block become blocks of the whole batch, one behind the other, or back."""
    state, block, result = sharded(states[0]), numbers_of(node.inputs[1]), shape_of(node.outputs[0])
    require(state.axis == 0)
    count = integer(product(block))
    require(is_shardable(node.inputs[0].shape, state))
    is_forward = node.op == "SpaceToBatchND"
    outer = state.outer * count if is_forward else known(divide(state.outer, count))
    target = state.in_blocks(0, outer)
    require(not has_batch(outer) and is_shardable(result, target))
    return Decision(inputs=(state, REPLICATED, REPLICATED), outputs=(target,), needs_samples=True)


@rule("SpaceToDepth", "DepthToSpace", inputs=ROWS)
def _blocks_of_space(node: Node, states: Sequence[State]) -> Decision | None:
    return beside(node, states, (1, 2, 3))


shape_rule("SpaceToDepth", "DepthToSpace")(batch_first)
