"""Operations of layers: convolutions, pooling, biases, normalisation, softmax, recurrent layers.

Keras compiles a convolution of several groups by XLA, because TensorFlow's own kernels for its
gradients know one group alone on a CPU. XLA takes up to hundreds of times as long there, so such a
convolution runs without it: its gradients are computed group by group, or by the kernels of
depthwise convolutions where each group has one channel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import tensorflow as tf

from evener.graph.dims import Size
from evener.graph.functions import FunctionBuilder
from evener.graph.nodes import Node, SymbolTable, Tensor, num_elements, sizes_of
from evener.graph.ops.registry import (
    IN_PLACE,
    IndexLimit,
    Shapes,
    Trait,
    alike,
    batch_first,
    behind,
    beside,
    beside_last,
    broadcast,
    equal_sizes_rule,
    flops_rule,
    given_by_input,
    index_limit_rule,
    leading,
    like_input,
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
    first_of,
    first_sharded,
    is_first,
    is_shardable,
    known,
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


shape_rule(*OF_IMAGES)(given_by_input(0))
shape_rule("Dilation2D")(batch_first)
shape_rule("Dilation2DBackpropInput")(like_input(0))
traits("Conv2D Conv3D DepthwiseConv2dNative", Trait.COSTLY | Trait.OF_LAYERS)


@rule(*CONVOLUTIONS, "Dilation2D", inputs=(ROWS, WHOLE))
def _convolution(node: Node, states: Sequence[State]) -> Decision | None:
    rows = sharded(states[0])
    require(rows.axis == 0 and is_shardable(node.inputs[0].shape, rows))
    return Decision(inputs=(rows, REPLICATED), outputs=(rows,), needs_samples=True)


@rule(*OF_IMAGES, inputs=(WHOLE, WHOLE, ROWS))
def _gradient_of_images(node: Node, states: Sequence[State]) -> Decision | None:
    shape, rows = shape_of(node.outputs[0]), sharded(states[2])
    require(rows.axis == 0 and is_shardable(shape, rows))
    sizes = part_sizes(shape, rows)
    return Decision(
        inputs=(Numbers(sizes), REPLICATED, rows),
        outputs=(rows,),
        needs_samples=True,
        lower=_images_by_groups(sizes, _groups(node)),
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
        lower=_filter_by_groups(node, _groups(node)),
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


def _images_by_groups(sizes: tuple[Size, ...], groups: int) -> Lower | None:
    channels = sizes[-1]
    if groups == 1 or not isinstance(channels, int):
        return None

    def lower(builder: FunctionBuilder, node: Node, inputs: Sequence[str]) -> Sequence[str]:
        if not builder.may_be_on_cpu:
            return builder.copy(node.op, node.name, inputs, node.attrs)
        dtype = node.outputs[0].dtype
        if _is_depthwise(node, node.inputs[1]):
            of_kernel = _by_groups(node.inputs[1], groups)
            [kernel] = _reshaped(builder, inputs[1], of_kernel, dtype)
            arguments = [builder.vector(sizes, tf.int32), kernel, inputs[2]]
            return builder.op("DepthwiseConv2dNativeBackpropInput", arguments, node.attrs)
        of_group = builder.vector((*sizes[:-1], channels // groups), tf.int32)
        kernels, errors = (_split(builder, value, groups, dtype) for value in inputs[1:])
        gradients = [
            builder.copy(node.op, node.name, [of_group, kernel, error], node.attrs)[0]
            for kernel, error in zip(kernels, errors, strict=True)
        ]
        return [_join(builder, gradients, dtype)]

    return lower


def _filter_by_groups(node: Node, groups: int) -> Lower | None:
    shape = node.outputs[0].shape
    if groups == 1 or shape is None or not isinstance(shape[-1], int):
        return None
    of_group = (*shape[:-1], shape[-1] // groups)

    def lower(builder: FunctionBuilder, node: Node, inputs: Sequence[str]) -> Sequence[str]:
        if not builder.may_be_on_cpu:
            return builder.copy(node.op, node.name, inputs, node.attrs)
        dtype = node.outputs[0].dtype
        if _is_depthwise(node, node.outputs[0]):
            of_kernel = builder.vector(_by_groups(node.outputs[0], groups), tf.int32)
            arguments = [inputs[0], of_kernel, inputs[2]]
            [gradient] = builder.op("DepthwiseConv2dNativeBackpropFilter", arguments, node.attrs)
            return _reshaped(builder, gradient, shape, dtype)
        sizes = builder.vector(of_group, tf.int32)
        images, errors = (_split(builder, inputs[k], groups, dtype) for k in (0, 2))
        gradients = [
            builder.copy(node.op, node.name, [image, sizes, error], node.attrs)[0]
            for image, error in zip(images, errors, strict=True)
        ]
        return [_join(builder, gradients, dtype)]

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


def _by_groups(kernel: Tensor, groups: int) -> tuple[Size, ...]:
    """Return the depthwise shape of a kernel of one channel for each group, ``[h, w, 1, n]``."""
    *windows, _, filters = shape_of(kernel)
    assert isinstance(filters, int), "the kernel is depthwise"
    return *windows, groups, filters // groups


def _reshaped(
    builder: FunctionBuilder, value: str, shape: Sequence[Size], dtype: tf.DType
) -> Sequence[str]:
    sizes = builder.vector(shape, tf.int32)
    return builder.op("Reshape", [value, sizes], {"T": dtype, "Tshape": tf.int32})


def _split(builder: FunctionBuilder, value: str, groups: int, dtype: tf.DType) -> list[str]:
    """Add the parts of a tensor of rank 4 along its channels."""
    axis = builder.constant(3, tf.int32)
    return builder.op("Split", [axis, value], {"T": dtype, "num_split": groups})


def _join(builder: FunctionBuilder, values: Sequence[str], dtype: tf.DType) -> str:
    axis = builder.constant(3, tf.int32)
    attrs = {"T": dtype, "N": len(values), "Tidx": tf.int32}
    return builder.op("ConcatV2", [*values, axis], attrs)[0]


@flops_rule("Conv2D", "Conv3D")
def _convolution_flops(node: Node, num_samples: int) -> float:
    """Every element of the result is a sum over the filter and its input channels."""
    return _by_filter(sizes_of(node.inputs[1], num_samples), node.outputs[0], num_samples)


@flops_rule(*OF_IMAGES[:2])
def _flops_of_images(node: Node, num_samples: int) -> float:
    """The gradient of the input: as many products as the convolution itself has."""
    return _by_filter(sizes_of(node.inputs[1], num_samples), node.inputs[2], num_samples)


@flops_rule(*OF_FILTERS[:2])
def _flops_of_filter(node: Node, num_samples: int) -> float:
    """The gradient of the filter: as many products as the convolution itself has."""
    return _by_filter(sizes_of(node.outputs[0], num_samples), node.inputs[2], num_samples)


def _by_filter(filter_sizes: Sequence[int], result: Tensor, num_samples: int) -> float:
    return 2 * math.prod(filter_sizes[:-1]) * num_elements(result, num_samples)


@flops_rule("DepthwiseConv2dNative")
def _depthwise_flops(node: Node, num_samples: int) -> float:
    window = math.prod(sizes_of(node.inputs[1], num_samples)[:2])
    return 2 * window * num_elements(node.outputs[0], num_samples)


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
def per_sample(node: Node, states: Sequence[State]) -> Decision:
    """Return a decision by rows of images; what is smaller than a matrix is the same for all."""
    rows = first_of(first_sharded([state for state in states if is_first(state)]))
    tensors = (*node.inputs, *node.outputs)
    require(all(is_shardable(t.shape, rows) or not t.rank for t in tensors))
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
    is_elsewhere = builder.is_argument(pooled)
    if builder.may_be_on_cpu and is_elsewhere and node.outputs[0].dtype in _CACHED:
        [pooled] = builder.op(node.op.removesuffix("Grad"), [images], node.attrs)
    return builder.copy(node.op, node.name, [images, pooled, upstream], node.attrs)


@rule("AvgPoolGrad", "AvgPool3DGrad", inputs=(WHOLE, ROWS))
def _gradient_of_average(node: Node, states: Sequence[State]) -> Decision | None:
    shape, rows = shape_of(node.outputs[0]), first_of(states[1])
    require(is_shardable(shape, rows))
    sizes = Numbers(part_sizes(shape, rows))
    return Decision(inputs=(sizes, rows), outputs=(rows,), needs_samples=True)


@rule("MaxPoolWithArgmax", inputs=ROWS)
@rule("MaxPoolGradWithArgmax", inputs=ROWS)
def _pool_with_positions(node: Node, states: Sequence[State]) -> Decision | None:
    """Positions in every image; positions in the whole batch are not those of a part."""
    require(not node.bool_attr("include_batch_in_index"))
    return per_image(node, states, range(len(states)))


@rule("FractionalAvgPoolGrad", inputs=(WHOLE, ROWS, WHOLE, WHOLE))
def _gradient_of_fractional_average(node: Node, states: Sequence[State]) -> Decision | None:
    shape = shape_of(node.outputs[0])
    require(is_first(states[1]) and is_shardable(shape, FIRST))
    wanted = (Numbers(part_sizes(shape, FIRST)), FIRST, REPLICATED, REPLICATED)
    return Decision(inputs=wanted, outputs=(FIRST,), needs_samples=True)


@shape_rule("MaxPoolWithArgmax")
def _shapes_with_positions(table: SymbolTable, node: Node) -> Shapes:
    front = shape_of(node.inputs[0])[:1]
    return [behind(table, tensor, front) for tensor in node.outputs] if front else None


@shape_rule("FractionalMaxPool", "FractionalAvgPool")
def _fractional_shape(table: SymbolTable, node: Node) -> Shapes:
    front = shape_of(node.inputs[0])[:1]
    return [behind(table, node.outputs[0], front), None, None] if front else None


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


@rule("BiasAdd", inputs=(ROWS, WHOLE))
def _bias(node: Node, states: Sequence[State]) -> Decision | None:
    return beside(node, states, [_channels(node)])


@shape_rule("BiasAddGrad")
def _bias_gradient_shape(table: SymbolTable, node: Node) -> Shapes:
    return [(shape_of(node.inputs[0])[_channels(node)],)]


@rule("BiasAddGrad", inputs=ROWS)
def _gradient_of_bias(node: Node, states: Sequence[State]) -> Decision | None:
    state = sharded(states[0])
    require(state.axis != _channels(node))
    return Decision(inputs=(state,), outputs=(SUM,))


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


@index_limit_rule("SparseSoftmaxCrossEntropyWithLogits")
def _classes_limit(node: Node, shapes: Mapping[Tensor, tuple[int, ...]]) -> IndexLimit:
    del shapes
    shape = node.inputs[0].shape
    return node.inputs[1], shape[-1] if shape else None


@shape_rule("FusedBatchNorm", "FusedBatchNormV3", "FusedBatchNormGradV3")
def _normalized_shape(table: SymbolTable, node: Node) -> Shapes:
    shape, static = shape_of(node.inputs[0]), known(node.static_shapes[0])
    require(static[:1] == (None,) and len(static) == len(shape))
    rest = (own if size is None else size for own, size in zip(shape[1:], static[1:], strict=True))
    return [(shape[0], *rest), *[None] * (len(node.outputs) - 1)]


rule("Softmax", "LogSoftmax", inputs=ROWS)(beside_last(1))
rule("LRN", "LRNGrad", inputs=ROWS)(per_sample)
shape_rule("BatchNormWithGlobalNormalization", "BiasAdd", "LRN", "LRNGrad")(like_input(0))
shape_rule("LogSoftmax", "Softmax")(like_input(0))
equal_sizes_rule("SoftmaxCrossEntropyWithLogits")(alike)
equal_sizes_rule("SparseSoftmaxCrossEntropyWithLogits")(leading)
traits("BiasAdd Softmax", IN_PLACE)


@shape_rule("CudnnRNNV3")
def _forward_shape(table: SymbolTable, node: Node) -> Shapes:
    """``input, h, c, ...`` to ``output, h, c, reserved, reserved on the host``."""
    (data, hidden, cell), static = (t.shape for t in node.inputs[:3]), node.static_shapes[0]
    if data is None or static is None or static[-1] is None:
        return [None, hidden, cell, None, None]
    return [(*data[:-1], static[-1]), hidden, cell, None, None]


@shape_rule("CudnnRNNBackpropV3")
def _backward_shape(table: SymbolTable, node: Node) -> Shapes:
    return [tensor.shape for tensor in node.inputs[:4]]


@rule("CudnnRNNV3", inputs=(ROWS, ROWS, ROWS, WHOLE, ROWS))
def _forward(node: Node, states: Sequence[State]) -> Decision | None:
    """``input, h, c, parameters, lengths`` to ``output, h, c, reserved, reserved on the host``."""
    rows, cell, lengths = _rows(node), _cell(node), node.inputs[4]
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
    rows, cell = _rows(node), _cell(node)
    values = (rows, rows, cell)
    return Decision(
        inputs=(*values, REPLICATED, FIRST, *values, *values, UNSET, UNSET),
        outputs=(*values, SUM),
        needs_samples=True,
    )


def _rows(node: Node) -> Sharded:
    return Sharded(1 if node.bool_attr("time_major") else 0)


def _cell(node: Node) -> State:
    """Return the state of what only an LSTM has; of the others it is a scalar without meaning."""
    return _rows(node) if node.text_attr("rnn_mode") == "lstm" else REPLICATED


traits("CudnnRNNV3", Trait.OF_LAYERS)
