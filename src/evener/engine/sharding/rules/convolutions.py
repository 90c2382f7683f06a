"""Convolutions and their gradients.

Keras compiles a convolution of several groups by XLA on a CPU, because TensorFlow's own kernels for
its gradients know one group alone. What the parts compute is not compiled, so on a CPU gradients
are computed group by group.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from evener.graph.dims import Size
from evener.graph.nodes import Node, Tensor
from evener.ops.builder import Builder
from evener.ops.decision import ROWS, WHOLE, Decision, Lower, rule
from evener.ops.states import (
    REPLICATED,
    SUM,
    Numbers,
    Sharded,
    State,
    is_shardable,
    part_sizes,
)


def _images(state: State) -> Sharded | None:
    """Return the state of images along the first axis, in as many blocks as they are."""
    return state if isinstance(state, Sharded) and state.axis == 0 else None


@rule("Conv2D", "Conv3D", "DepthwiseConv2dNative", "Dilation2D", inputs=(ROWS, WHOLE))
def _convolution(node: Node, states: Sequence[State]) -> Decision | None:
    rows = _images(states[0])
    if rows is None or not is_shardable(node.inputs[0].shape, rows):
        return None
    return Decision(inputs=(rows, REPLICATED), outputs=(rows,), needs_samples=True)


@rule(
    "Conv2DBackpropInput",
    "Conv3DBackpropInputV2",
    "DepthwiseConv2dNativeBackpropInput",
    inputs=(WHOLE, WHOLE, ROWS),
)
def _gradient_of_images(node: Node, states: Sequence[State]) -> Decision | None:
    shape, rows = node.outputs[0].shape, _images(states[2])
    if shape is None or rows is None or not is_shardable(shape, rows):
        return None
    sizes = part_sizes(shape, rows)
    return Decision(
        inputs=(Numbers(sizes), REPLICATED, rows),
        outputs=(rows,),
        needs_samples=True,
        lower=_images_by_groups(sizes, _groups(node, node.outputs[0], node.inputs[1])),
        lower_rows=rows.rows,
    )


@rule(
    "Conv2DBackpropFilter",
    "Conv3DBackpropFilterV2",
    "DepthwiseConv2dNativeBackpropFilter",
    inputs=(ROWS, WHOLE, ROWS),
)
def _gradient_of_filter(node: Node, states: Sequence[State]) -> Decision | None:
    rows = _images(states[0]) or _images(states[2])
    if rows is None or not all(is_shardable(node.inputs[k].shape, rows) for k in (0, 2)):
        return None
    return Decision(
        inputs=(rows, REPLICATED, rows),
        outputs=(SUM,),
        needs_samples=True,
        lower=_filter_by_groups(node, _groups(node, node.inputs[0], node.outputs[0])),
        lower_rows=rows.rows,
    )


def _groups(node: Node, images: Tensor, kernel: Tensor) -> int:
    """Return the number of groups of a gradient of Conv2D; 1 if its kernel knows it by itself."""
    is_last = node.text_attr("data_format") in ("", "NHWC")
    if not node.op.startswith("Conv2D") or not is_last or not images.shape or not kernel.shape:
        return 1
    of_images, of_kernel = images.shape[-1], kernel.shape[-2]
    if not isinstance(of_images, int) or not isinstance(of_kernel, int) or not of_kernel:
        return 1
    return of_images // of_kernel


def _images_by_groups(sizes: tuple[Size, ...], groups: int) -> Lower | None:
    channels = sizes[-1]
    if groups == 1 or not isinstance(channels, int):
        return None

    def lower(builder: Builder, node: Node, inputs: Sequence[str]) -> Sequence[str]:
        if not builder.may_be_on_cpu:
            return builder.copy(node.op, node.name, inputs, node.attrs)
        dtype = node.outputs[0].dtype
        of_group = builder.vector((*sizes[:-1], channels // groups), tf.int32)
        kernels, errors = (_split(builder, one, groups, dtype) for one in inputs[1:])
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

    def lower(builder: Builder, node: Node, inputs: Sequence[str]) -> Sequence[str]:
        if not builder.may_be_on_cpu:
            return builder.copy(node.op, node.name, inputs, node.attrs)
        dtype = node.outputs[0].dtype
        sizes = builder.vector(of_group, tf.int32)
        images, errors = (_split(builder, inputs[k], groups, dtype) for k in (0, 2))
        gradients = [
            builder.copy(node.op, node.name, [image, sizes, error], node.attrs)[0]
            for image, error in zip(images, errors, strict=True)
        ]
        return [_join(builder, gradients, dtype)]

    return lower


def _split(builder: Builder, value: str, groups: int, dtype: tf.DType) -> list[str]:
    """Add the parts of a tensor of rank 4 along its channels."""
    axis = builder.constant(3, tf.int32)
    return builder.op("Split", [axis, value], {"T": dtype, "num_split": groups})


def _join(builder: Builder, values: Sequence[str], dtype: tf.DType) -> str:
    axis = builder.constant(3, tf.int32)
    attrs = {"T": dtype, "N": len(values), "Tidx": tf.int32}
    return builder.op("ConcatV2", [*values, axis], attrs)[0]
