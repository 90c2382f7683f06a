"""Operations of layers and images: convolutions, pooling, normalisation, recurrence, resizing.

Keras compiles a convolution of several groups by XLA, because TensorFlow's own kernels for its
gradients know one group alone on a CPU. XLA takes up to hundreds of times as long there, so such a
convolution runs without it: its gradients are computed group by group, or by the kernels of
depthwise convolutions where each group has one channel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import tensorflow as tf

from evener.graph.dims import Size, divide, has_batch, product
from evener.graph.functions import FunctionBuilder
from evener.graph.nodes import Node, SymbolTable, Tensor, num_elements, sizes_of
from evener.graph.ops.gathering import from_own_rows, in_own_rows
from evener.graph.ops.registry import (
    Shapes,
    Trait,
    alike,
    all_first,
    batch_first,
    behind,
    behind_images,
    beside,
    beside_last,
    broadcast,
    equal_sizes_rule,
    flops_rule,
    given_by_input,
    index_limit_rule,
    last_axes,
    leading,
    like_input,
    matrix_of,
    per_image,
    per_image_of,
    rule,
    shape_rule,
    traits,
)
from evener.graph.ops.states import (
    FIRST,
    REPLICATED,
    ROWS,
    SUM,
    UNSET,
    WHOLE,
    Decision,
    Lower,
    Numbers,
    Sharded,
    State,
    Unset,
    by_rows,
    first_of,
    first_sharded,
    integer,
    is_first,
    is_shardable,
    known,
    numbers_of,
    part_sizes,
    rank_of,
    require,
    shape_of,
    sharded,
)

CONVOLUTIONS = ("Conv2D", "Conv3D", "DepthwiseConv2dNative")
OF_IMAGES = ("Conv2DBackpropInput", "Conv3DBackpropInputV2", "DepthwiseConv2dNativeBackpropInput")
OF_FILTERS = (
    "Conv2DBackpropFilter",
    "Conv3DBackpropFilterV2",
    "DepthwiseConv2dNativeBackpropFilter",
)


@shape_rule(*CONVOLUTIONS)
def _convolution_shape(table: SymbolTable, node: Node) -> Shapes:
    shape, static = shape_of(node.inputs[0]), known(node.static_shapes[0])
    require(len(shape) > 0 and static[:1] == (None,))
    sizes = [_windows(node, k) if size is None else size for k, size in enumerate(static[1:], 1)]
    result = node.outputs[0]
    rest = (table.new_symbol(result, k) if s is None else s for k, s in enumerate(sizes, 1))
    return [(*shape[:1], *rest)]


def _windows(node: Node, axis: int) -> int | None:
    """Return the windows of a convolution along an axis that TensorFlow takes for unknown."""
    images, kernel = (t.shape for t in node.inputs)
    strides, dilations = node.ints_attr("strides"), node.ints_attr("dilations")
    is_last = node.text_attr("data_format") in ("NHWC", "NDHWC")
    if images is None or kernel is None or not is_last or axis >= len(images) - 1:
        return None
    size, extent, stride = images[axis], kernel[axis - 1], strides[axis]
    if not isinstance(size, int) or not isinstance(extent, int):
        return None
    if node.text_attr("padding") == "SAME":
        return -(-size // stride)
    if node.text_attr("padding") != "VALID":
        return None
    covered = (extent - 1) * dilations[axis] + 1
    return max(0, (size - covered) // stride + 1)


def is_grouped(node: Node) -> bool:
    """Return whether a node is a convolution of several groups, or a gradient of one."""
    return _groups(node) > 1


traits("Conv2D Conv3D DepthwiseConv2dNative", Trait.COSTLY | Trait.OF_LAYERS)


@rule(*CONVOLUTIONS, "Dilation2D", inputs=(ROWS, WHOLE))
def _convolution(node: Node, states: Sequence[State]) -> Decision | None:
    rows = sharded(states[0])
    require(rows.axis == 0 and is_shardable(node.inputs[0].shape, rows))
    return by_rows(node, rows, rows, needs_samples=True)


@rule(*OF_IMAGES, inputs=(WHOLE, WHOLE, ROWS))
def _gradient_of_images(node: Node, states: Sequence[State]) -> Decision | None:
    shape, rows = shape_of(node.outputs[0]), sharded(states[2])
    require(rows.axis == 0 and is_shardable(shape, rows))
    sizes = part_sizes(shape, rows)
    return Decision(
        inputs=(Numbers(sizes), REPLICATED, rows),
        outputs=(rows,),
        needs_samples=True,
        lower=_by_groups(node, sizes),
        lower_rows=rows.rows,
    )


@rule(*OF_FILTERS, inputs=(ROWS, WHOLE, ROWS))
def _gradient_of_filter(node: Node, states: Sequence[State]) -> Decision | None:
    rows = first_sharded([state for state in (states[0], states[2]) if is_first(state)])
    require(all(is_shardable(node.inputs[k].shape, rows) for k in (0, 2)))
    return Decision(
        inputs=(rows, REPLICATED, rows),
        outputs=(SUM,),
        needs_samples=True,
        lower=_by_groups(node, node.outputs[0].shape),
        lower_rows=rows.rows,
    )


@rule("Dilation2DBackpropInput", "Dilation2DBackpropFilter", inputs=(ROWS, WHOLE, ROWS))
def _gradient_of_dilation(node: Node, states: Sequence[State]) -> Decision | None:
    decision = per_image(node, states, (0, 2))
    return replace(decision, outputs=(SUM,)) if node.op.endswith("Filter") else decision


def _groups(node: Node) -> int:
    """Return the number of groups of Conv2D or a gradient of it; 1 if it is not known."""
    match node.op:
        case "Conv2D":
            images, kernel = node.inputs
        case "Conv2DBackpropInput":
            images, kernel = node.outputs[0], node.inputs[1]
        case "Conv2DBackpropFilter":
            images, kernel = node.inputs[0], node.outputs[0]
        case _:
            return 1
    is_last = node.text_attr("data_format") in ("", "NHWC")
    if not is_last or not images.shape or not kernel.shape:
        return 1
    of_images, of_kernel = images.shape[-1], kernel.shape[-2]
    if not isinstance(of_images, int) or not isinstance(of_kernel, int) or not of_kernel:
        return 1
    return of_images // of_kernel


def _by_groups(node: Node, sizes: tuple[Size, ...] | None) -> Lower | None:
    """Return the gradient of a grouped convolution; on a CPU each group is computed alone."""
    groups, of_images = _groups(node), node.op.endswith("Input")
    if groups == 1 or not sizes or not isinstance(sizes[-1], int):
        return None
    of_group = (*sizes[:-1], sizes[-1] // groups)

    def lower(builder: FunctionBuilder, node: Node, inputs: Sequence[str]) -> Sequence[str]:
        if not builder.may_be_on_cpu:
            return builder.copy(node.op, node.name, inputs, node.attrs)
        dtype, kernel = node.outputs[0].dtype, node.inputs[1] if of_images else node.outputs[0]
        if _is_depthwise(node, kernel):
            *windows, _, filters = shape_of(kernel)
            assert isinstance(filters, int), "the kernel is depthwise"
            own = builder.vector((*windows, groups, filters // groups), tf.int32)
            whole, attrs = builder.vector(sizes, tf.int32), {"T": dtype, "Tshape": tf.int32}
            if of_images:
                [weights] = builder.op("Reshape", [inputs[1], own], attrs)
                arguments = [whole, weights, inputs[2]]
                return builder.op("DepthwiseConv2dNativeBackpropInput", arguments, node.attrs)
            arguments = [inputs[0], own, inputs[2]]
            [gradient] = builder.op("DepthwiseConv2dNativeBackpropFilter", arguments, node.attrs)
            return builder.op("Reshape", [gradient, whole], attrs)
        own, channels = builder.vector(of_group, tf.int32), builder.constant(3, tf.int32)
        split = {"T": dtype, "num_split": groups}
        values, errors = (
            builder.op("Split", [channels, inputs[k]], split) for k in (int(of_images), 2)
        )
        gradients: list[str] = []
        for value, error in zip(values, errors, strict=True):
            arguments = [own, value, error] if of_images else [value, own, error]
            gradients += builder.copy(node.op, node.name, arguments, node.attrs)
        attrs = {"T": dtype, "N": groups, "Tidx": tf.int32}
        return builder.op("ConcatV2", [*gradients, channels], attrs)

    return lower


def _is_depthwise(node: Node, kernel: Tensor) -> bool:
    """Return whether the gradient of a convolution is one of a depthwise convolution on a CPU."""
    shape, strides = kernel.shape or (), node.ints_attr("strides")
    return (
        len(shape) == 4
        and all(isinstance(size, int) for size in shape)
        and shape[2] == 1
        and strides[1] == strides[2]
        and {*node.ints_attr("dilations")} <= {1}
        and node.text_attr("padding") in ("SAME", "VALID")
        and kernel.dtype in (tf.float32, tf.float64)
    )


def _by_filter(filters: Tensor, result: Tensor, num_samples: int) -> float:
    """Every element of a convolution's result is a sum over the filter and its input channels."""
    sizes = sizes_of(filters, num_samples)
    return 2 * math.prod(sizes[:-1]) * num_elements(result, num_samples)


# The gradients have as many products as the convolution itself.
flops_rule.table(
    {
        "Conv2D Conv3D": lambda node, n: _by_filter(node.inputs[1], node.outputs[0], n),
        " ".join(OF_IMAGES[:2]): lambda node, n: _by_filter(node.inputs[1], node.inputs[2], n),
        " ".join(OF_FILTERS[:2]): lambda node, n: _by_filter(node.outputs[0], node.inputs[2], n),
        "DepthwiseConv2dNative": lambda node, n: (
            2 * math.prod(sizes_of(node.inputs[1], n)[:2]) * num_elements(node.outputs[0], n)
        ),
    }
)


# The first axis of all inputs and outputs counts samples. (oneDNN's kernels of convolutions and
# pooling are wrong, or end the process, where there are none.)
_CACHED = (tf.float32, tf.bfloat16, tf.float16)  # Dtypes of oneDNN's kernels of pooling


@rule("MaxPool", "AvgPool", "MaxPool3D", "AvgPool3D", "MaxPoolGradGrad", inputs=ROWS)
@rule("MaxPoolV2", inputs=(ROWS, WHOLE, WHOLE))
@rule("MaxPoolGradV2", inputs=(ROWS, ROWS, ROWS, WHOLE, WHOLE))
def per_sample(node: Node, states: Sequence[State]) -> Decision:
    """Return a decision by rows of images; what is smaller than a matrix is the same for all."""
    rows = first_of(first_sharded([state for state in states if is_first(state)]))
    require(all(is_shardable(t.shape, rows) or not t.rank for t in (*node.inputs, *node.outputs)))
    wanted = tuple(rows if t.rank and t.rank > 1 else REPLICATED for t in node.inputs)
    return Decision(inputs=wanted, outputs=(rows,) * len(node.outputs), needs_samples=True)


@rule("MaxPoolGrad", "MaxPool3DGrad", inputs=ROWS)
def _gradient_of_maximum(node: Node, states: Sequence[State]) -> Decision | None:
    return replace(known(per_sample(node, states)), lower=_beside_its_pooling)


def _beside_its_pooling(
    builder: FunctionBuilder, node: Node, inputs: Sequence[str]
) -> Sequence[str]:
    """Add the gradient of a maximum; on a CPU also its pooling, if another function computes that.

    oneDNN's pooling keeps the positions of the maxima for a gradient that reads its output in the
    same graph. Without them the gradient takes ten times as long as both.
    """
    images, pooled, upstream = inputs
    is_elsewhere = pooled in builder.arguments.values()
    if builder.may_be_on_cpu and is_elsewhere and node.outputs[0].dtype in _CACHED:
        [pooled] = builder.op(node.op.removesuffix("Grad"), [images], node.attrs)
    return builder.copy(node.op, node.name, [images, pooled, upstream], node.attrs)


@rule("AvgPoolGrad", "AvgPool3DGrad", inputs=(WHOLE, ROWS))
@rule("FractionalAvgPoolGrad", inputs=(WHOLE, ROWS, WHOLE, WHOLE))
def _gradient_of_average(node: Node, states: Sequence[State]) -> Decision | None:
    shape, rows = shape_of(node.outputs[0]), first_of(states[1])
    require(is_shardable(shape, rows))
    wanted = (Numbers(part_sizes(shape, rows)), rows, *[REPLICATED] * (len(states) - 2))
    return Decision(inputs=wanted, outputs=(rows,), needs_samples=True)


@rule("MaxPoolWithArgmax", "MaxPoolGradWithArgmax", inputs=ROWS)
def _pool_with_positions(node: Node, states: Sequence[State]) -> Decision | None:
    """Positions in every image; positions in the whole batch are not those of a part."""
    require(not node.bool_attr("include_batch_in_index"))
    return per_image(node, states, range(len(states)))


@shape_rule("FractionalMaxPool", "FractionalAvgPool")
def _fractional_shape(table: SymbolTable, node: Node) -> Shapes:
    front = shape_of(node.inputs[0])[:1]
    return [behind(table, node.outputs[0], front), None, None] if front else None


rule("FractionalMaxPoolGrad", inputs=(ROWS, ROWS, ROWS, WHOLE, WHOLE))(per_image_of(0, 1, 2))
rule("BiasAdd", inputs=(ROWS, WHOLE))(lambda node, states: beside(node, states, [_channels(node)]))
shape_rule.table(
    {
        "MaxPool MaxPoolV2 MaxPool3D AvgPool AvgPool3D Dilation2D": batch_first,
        "MaxPoolWithArgmax": behind_images,
        """
        BatchNormWithGlobalNormalization BiasAdd Dilation2DBackpropInput FractionalMaxPoolGrad LRN
        LRNGrad LogSoftmax MaxPool3DGrad MaxPoolGrad MaxPoolGradV2 MaxPoolGradWithArgmax Softmax
        """: like_input(0),
        f"{' '.join(OF_IMAGES)} AvgPoolGrad AvgPool3DGrad FractionalAvgPoolGrad": given_by_input(0),
        "BiasAddGrad": lambda table, node: [(shape_of(node.inputs[0])[_channels(node)],)],
        "CudnnRNNBackpropV3": lambda table, node: [t.shape for t in node.inputs[:4]],
    }
)
index_limit_rule.table(
    {
        "SparseSoftmaxCrossEntropyWithLogits": (
            lambda node, shapes: (node.inputs[1], (node.inputs[0].shape or (None,))[-1])
        )
    }
)


@rule("BiasAddGrad", inputs=ROWS)
def _gradient_of_bias(node: Node, states: Sequence[State]) -> Decision | None:
    state = sharded(states[0])
    require(state.axis != _channels(node))
    return by_rows(node, state, SUM)


def _channels(node: Node) -> int:
    rank = rank_of(node.inputs[0])
    return 1 if node.text_attr("data_format") == "NCHW" else rank - 1


@shape_rule("SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits")
def _cross_entropy_shape(table: SymbolTable, node: Node) -> Shapes:
    logits, labels = (t.shape for t in node.inputs)
    if node.op == "SoftmaxCrossEntropyWithLogits":
        logits = broadcast([logits, labels])
    return None if logits is None else [logits[:1], logits]


@rule("SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits", inputs=ROWS)
def _cross_entropy(node: Node, states: Sequence[State]) -> Decision | None:
    target = first_sharded([state for state in states if is_first(state)])
    require(all(is_shardable(t.shape, target) for t in node.inputs))
    return Decision(inputs=(target, target), outputs=(target, target))


@shape_rule("FusedBatchNorm", "FusedBatchNormV3", "FusedBatchNormGradV3")
def _normalized_shape(table: SymbolTable, node: Node) -> Shapes:
    shape, static = shape_of(node.inputs[0]), known(node.static_shapes[0])
    require(static[:1] == (None,) and len(static) == len(shape))
    rest = (own if size is None else size for own, size in zip(shape[1:], static[1:], strict=True))
    return [(shape[0], *rest), *[None] * (len(node.outputs) - 1)]


rule("Softmax", "LogSoftmax", inputs=ROWS)(beside_last(1))
rule("LRN", "LRNGrad", inputs=ROWS)(per_sample)
equal_sizes_rule("SoftmaxCrossEntropyWithLogits")(alike)
equal_sizes_rule("SparseSoftmaxCrossEntropyWithLogits")(leading)
traits("BiasAdd Softmax", Trait.IN_PLACE)


@shape_rule("CudnnRNNV3")
def _forward_shape(table: SymbolTable, node: Node) -> Shapes:
    """``input, h, c, ...`` to ``output, h, c, reserved, reserved on the host``."""
    (data, hidden, cell), static = (t.shape for t in node.inputs[:3]), node.static_shapes[0]
    if data is None or static is None or static[-1] is None:
        return [None, hidden, cell, None, None]
    return [(*data[:-1], static[-1]), hidden, cell, None, None]


@rule("CudnnRNNV3", inputs=(ROWS, ROWS, ROWS, WHOLE, ROWS))
def _forward(node: Node, states: Sequence[State]) -> Decision | None:
    """``input, h, c, parameters, lengths`` to ``output, h, c, reserved, reserved on the host``."""
    (rows, cell), lengths = _rows_and_cell(node), node.inputs[4]
    data = (0, 1, 2) if cell != REPLICATED else (0, 1)
    require(states[0] == rows and (not node.attrs["dropout"].f))
    require(all(is_shardable(node.inputs[k].shape, rows) for k in data))
    require(is_shardable(lengths.shape, FIRST))
    return Decision(
        inputs=(rows, rows, cell, REPLICATED, FIRST),
        outputs=(rows, rows, cell, UNSET, UNSET),
        needs_samples=True,
    )


@rule("CudnnRNNBackpropV3", inputs=(ROWS, ROWS, ROWS, WHOLE, *[ROWS] * 9))
def _backward(node: Node, states: Sequence[State]) -> Decision | None:
    """The same inputs and outputs, with the gradients of the latter, to those of the former."""
    require(isinstance(states[11], Unset))
    rows, cell = _rows_and_cell(node)
    values = (rows, rows, cell)
    return Decision(
        inputs=(*values, REPLICATED, FIRST, *values, *values, UNSET, UNSET),
        outputs=(*values, SUM),
        needs_samples=True,
    )


def _rows_and_cell(node: Node) -> tuple[Sharded, State]:
    """Return also the state of what only an LSTM has; else it is a scalar without meaning."""
    rows = Sharded(1 if node.bool_attr("time_major") else 0)
    return rows, rows if node.text_attr("rnn_mode") == "lstm" else REPLICATED


traits("CudnnRNNV3", Trait.OF_LAYERS)


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
    wanted = (FIRST, REPLICATED if count == 1 else FIRST, *[REPLICATED] * (len(states) - 2))
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
@rule("CropAndResizeGradBoxes", inputs=ROWS)
def _crop(node: Node, states: Sequence[State]) -> Decision | None:
    """Boxes by rows. Which image a box is of is in the data, unless it is its own row."""
    rows, index, images = ((1, 2), 2, 0) if node.op == "CropAndResize" else ((0, 2, 3), 3, 1)
    decision = per_image(node, states, rows)
    if not in_own_rows(node.inputs[index]) or not all_first([node.inputs[images]]):
        return decision
    wanted = tuple(FIRST if k in (*rows, images) else REPLICATED for k in range(4))
    return replace(decision, inputs=wanted, lower=from_own_rows(index))


@rule("CropAndResizeGradImage", inputs=(ROWS, ROWS, ROWS, WHOLE))
def _images_of_crops(node: Node, states: Sequence[State]) -> Decision | None:
    """Every part adds what its boxes have taken to images: to its own, or to all."""
    decision, shape = per_image(node, states, (0, 1, 2)), node.outputs[0].shape
    if shape is None or not in_own_rows(node.inputs[2]) or not is_shardable(shape, FIRST):
        return replace(decision, outputs=(SUM,))
    wanted = (FIRST, FIRST, FIRST, Numbers(part_sizes(shape, FIRST)))
    return replace(decision, inputs=wanted, lower=from_own_rows(2))


rule("SpaceToDepth", "DepthToSpace", inputs=ROWS)(
    lambda node, states: beside(node, states, (1, 2, 3))
)
rule("DrawBoundingBoxes", inputs=ROWS)(per_image_of(0, 1))
rule("DrawBoundingBoxesV2", inputs=(ROWS, ROWS, WHOLE))(per_image_of(0, 1))
rule("CombinedNonMaxSuppression", inputs=(ROWS, ROWS, *[WHOLE] * 4))(per_image_of(0, 1))
rule("ScaleAndTranslate", inputs=(ROWS, WHOLE, WHOLE, WHOLE))(per_image_of(0))
shape_rule.table(
    {
        f"{' '.join(RESIZE)} DepthToSpace ExtractImagePatches ImageProjectiveTransformV3 "
        "SpaceToDepth": batch_first,
        """
        CombinedNonMaxSuppression DrawBoundingBoxes DrawBoundingBoxesV2 ExtractGlimpse
        ExtractGlimpseV2 ImageProjectiveTransformV2 ResizeBicubicGrad ResizeBilinearGrad
        ResizeNearestNeighborGrad ScaleAndTranslate
        """: behind_images,
        f"{' '.join(ADJUST)} HSVToRGB RGBToHSV": like_input(0),
        "ScaleAndTranslateGrad": like_input(1),
        "CropAndResizeGradBoxes": like_input(2),
        "CropAndResizeGradImage": given_by_input(3),
        "CropAndResize": lambda table, node: [
            behind(table, node.outputs[0], shape_of(node.inputs[1])[:1])
        ],
    }
)
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
    return by_rows(node, state, target, needs_samples=True)
