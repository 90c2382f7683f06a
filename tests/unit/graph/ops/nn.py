"""Convolutions, pools, normalisations, losses, activations, embeddings and images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import tensorflow as tf

from unit.graph.ops.op_case import (
    B,
    Draw,
    Drawn,
    OpCase,
    Shape,
    States,
    avoiding,
    case,
    distinct,
    f32,
    i32,
    ints,
    loose,
    positive,
)

SHAPES: tuple[Shape, ...] = ((B, 4), (3, B), (2, B, 3), (2, 3, B))


ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": tf.nn.relu,
    "relu6": lambda x: tf.nn.relu6(3 * x),
    "crelu": tf.nn.crelu,
    "leaky_relu": tf.nn.leaky_relu,
    "elu": tf.nn.elu,
    "selu": tf.nn.selu,
    "gelu": tf.nn.gelu,
    "gelu_approximate": lambda x: tf.nn.gelu(x, approximate=True),
    "swish": tf.nn.swish,
    "softplus": tf.nn.softplus,
    "softsign": tf.nn.softsign,
    "hard_sigmoid": lambda x: tf.nn.relu6(x + 3) / 6,
}

# Along one axis.
NORMALISED: dict[str, Callable[[Any, int], Any]] = {
    "softmax": tf.nn.softmax,
    "log_softmax": tf.nn.log_softmax,
    "l2_normalize": tf.nn.l2_normalize,
}

POOLS: dict[str, tuple[Shape, Callable[..., Any]]] = {
    "max_pool_1d": ((B, 6, 2), tf.nn.max_pool1d),
    "max_pool_2d": ((B, 6, 5, 2), tf.nn.max_pool2d),
    "max_pool_3d": ((B, 4, 4, 3, 2), tf.nn.max_pool3d),
    "avg_pool_1d": ((B, 6, 2), tf.nn.avg_pool1d),
    "avg_pool_2d": ((B, 6, 5, 2), tf.nn.avg_pool2d),
    "avg_pool_3d": ((B, 4, 4, 3, 2), tf.nn.avg_pool3d),
}


def each(name: str, fn: Callable[[Any], Any]) -> OpCase:
    def draw(draw: Draw) -> Drawn:
        return Drawn(fn, (f32(*draw(st.sampled_from(SHAPES))),))

    return OpCase(name, draw)


def along_axis(name: str, fn: Callable[[Any, int], Any]) -> OpCase:
    def draw(draw: Draw) -> Drawn:
        shape = draw(st.sampled_from(SHAPES))
        axis = draw(st.integers(-len(shape), len(shape) - 1))
        # One operation over all of an axis, but for the last, which is a few with a sum.
        expect = "sharded" if name == "l2_normalize" else avoiding(axis % len(shape))
        return Drawn(lambda x: fn(x, axis), (f32(*shape, values=positive),), expect)

    return OpCase(name, draw, tolerance=3e-5)


def pool(name: str, fn: Callable[..., Any], shape: Shape) -> OpCase:
    def draw(draw: Draw) -> Drawn:
        window, stride = draw(st.integers(1, 3)), draw(st.integers(1, 3))
        padding = draw(st.sampled_from(["VALID", "SAME"]))
        args = (f32(*shape, values=distinct),)
        return Drawn(lambda x: fn(x, window, stride, padding), args)

    return OpCase(name, draw)


def convolution(rank: int) -> OpCase:
    def draw(draw: Draw) -> Drawn:
        stride, dilation = draw(st.sampled_from([(1, 1), (2, 1), (3, 1), (1, 2)]))
        paddings: list[Any] = ["VALID", "SAME"]
        if rank == 2 and dilation == 1:
            paddings.append([[0, 0], [1, 0], [2, 1], [0, 0]])
        padding = draw(st.sampled_from(paddings))
        op = (tf.nn.conv1d, tf.nn.conv2d, tf.nn.conv3d)[rank - 1]
        strides = [1, *[stride] * rank, 1] if rank == 3 else stride
        dilations = None if rank == 3 else dilation
        # Of many kernels, one may have the size of the batch: channels in and out too.
        sizes: list[tuple[Any, Any, Any]] = [(2, 2, 3), (B, B, 3), (2, 2, B)]
        if rank == 2:
            # In groups, whose gradients a CPU computes one by one, or by depthwise kernels.
            sizes += [(4, 2, 6), (6, 2, 3), (3, 1, 3), (3, 1, 6)]
        images, channels, filters = draw(st.sampled_from(sizes))
        shape: Shape = (B, *(6, 5, 4)[:rank], images)
        kernel: Shape = (*(3, 2, 2)[:rank], channels, filters)

        def expect(states: States) -> str:
            beside = {states[0], states[1]} <= {0, None, "partial"} and states[1] != 0
            return "sharded" if beside else "any"

        def fn(x: Any, w: Any) -> Any:
            return op(x, w, strides, padding, dilations=dilations)

        return Drawn(fn, (f32(*shape), f32(*kernel)), expect)

    return OpCase(f"conv_{rank}d", draw, tolerance=3e-5)


def depthwise(draw: Draw) -> Drawn:
    stride = draw(st.integers(1, 2))
    padding = draw(st.sampled_from(["VALID", "SAME"]))

    def fn(x: Any, w: Any) -> Any:
        return tf.nn.depthwise_conv2d(x, w, [1, stride, stride, 1], padding)

    return Drawn(fn, (f32(B, 5, 6, 2), f32(2, 3, 2, 2)))


def separable(x: Any, w: Any, p: Any) -> Any:
    return tf.nn.separable_conv2d(x, w, p, [1, 1, 1, 1], "SAME")


def transposed(rank: int) -> OpCase:
    """The output's shape is given with the size of the batch in it."""

    def draw(draw: Draw) -> Drawn:
        stride = draw(st.integers(1, 2))
        op = (tf.nn.conv1d_transpose, tf.nn.conv2d_transpose, tf.nn.conv3d_transpose)[rank - 1]
        sizes = (4, 3, 2)[:rank]

        def fn(x: Any, w: Any) -> Any:
            shape = tf.stack([tf.shape(x)[0], *(size * stride for size in sizes), 3])
            return op(x, w, shape, stride, "SAME")

        return Drawn(fn, (f32(B, *sizes, 2), f32(*(3, 2, 2)[:rank], 3, 2)))

    return OpCase(f"conv_{rank}d_transpose", draw, tolerance=3e-5)


def fused_batch_norm(draw: Draw) -> Drawn:
    shape = draw(st.sampled_from([(B, 3, 2, 4), (B, 1, 2, 4), (B, 2, 2, 1)]))
    factor = draw(st.sampled_from([1.0, 0.9]))
    channels = shape[-1]

    def fn(x: Any, scale: Any, offset: Any, mean: Any, variance: Any) -> Any:
        return tf.compat.v1.nn.fused_batch_norm(
            x, scale, offset, mean, variance, 1e-2, exponential_avg_factor=factor
        )

    plain = f32(channels, states=(None,))
    spread = f32(channels, values=positive, states=(None,))
    return Drawn(fn, (f32(*shape), spread, plain, plain, spread))


def fused_batch_norm_inference(draw: Draw) -> Drawn:
    def fn(x: Any, scale: Any, offset: Any, mean: Any, variance: Any) -> Any:
        return tf.compat.v1.nn.fused_batch_norm(
            x, scale, offset, mean, variance, 1e-2, is_training=False
        )[0]

    row = f32(4)
    return Drawn(fn, (f32(B, 3, 2, 4), row, row, row, f32(4, values=positive)))


def batch_norm(x: Any, scale: Any, offset: Any) -> Any:
    mean, variance = tf.nn.moments(x, [0, 1], keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, offset, scale, 1e-2)


def layer_norm(x: Any, scale: Any, offset: Any) -> Any:
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, offset, scale, 1e-2)


def group_norm(x: Any) -> Any:
    groups = tf.reshape(x, [tf.shape(x)[0], 5, 2, 2])
    mean, variance = tf.nn.moments(groups, [1, 3], keepdims=True)
    return tf.reshape((groups - mean) * tf.math.rsqrt(variance + 1e-2), tf.shape(x))


def ctc(labels: Any, logits: Any, label_length: Any, logit_length: Any) -> Any:
    return tf.nn.ctc_loss(labels, logits, label_length, logit_length, blank_index=0)


def sparse_softmax(labels: Any, logits: Any) -> Any:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)


CASES: tuple[OpCase, ...] = (
    *(each(name, fn) for name, fn in ACTIVATIONS.items()),
    *(along_axis(name, fn) for name, fn in NORMALISED.items()),
    *(pool(name, fn, shape) for name, (shape, fn) in POOLS.items()),
    *(convolution(rank) for rank in (1, 2, 3)),
    *(transposed(rank) for rank in (1, 2, 3)),
    OpCase("depthwise_conv_2d", depthwise, tolerance=3e-5),
    case("separable_conv", "B 4 4 2, 2 2 2 1, 1 1 2 3", separable),
    OpCase("fused_batch_norm", fused_batch_norm, tolerance=1e-4),
    OpCase("fused_batch_norm_inference", fused_batch_norm_inference, tolerance=1e-4),
    case("batch_norm", "B 3 4, 4, 4", batch_norm, tolerance=1e-4),
    case("layer_norm", "B 3 4, 4, 4", layer_norm, tolerance=1e-4),
    case("group_norm", "B 5 4", group_norm, tolerance=1e-4),
    case("bias_add", "B 3 4, 4", tf.nn.bias_add),
    loose("bias_add_to_columns", "3 B, B", tf.nn.bias_add),
    case("bias_add_channels_first", "B 3 4, 3", lambda x, b: tf.nn.bias_add(x, b, "NC...")),
    case(
        "softmax_cross_entropy",
        "B 4, B 4",
        lambda x, y: tf.nn.softmax_cross_entropy_with_logits(tf.nn.softmax(y), x),
    ),
    case("softmax_of_time", "3 B 4", tf.nn.softmax),
    case("sparse_cross_entropy", "int<4 B, B 4", sparse_softmax),
    case("sparse_cross_entropy_of_time", "int<4 B 3, B 3 4", sparse_softmax),
    case(
        "sigmoid_cross_entropy",
        "B 4, B 4",
        lambda x, y: tf.nn.sigmoid_cross_entropy_with_logits(tf.sigmoid(y), x),
    ),
    case(
        "weighted_cross_entropy",
        "B 4, B 4",
        lambda x, y: tf.nn.weighted_cross_entropy_with_logits(tf.sigmoid(y), x, 2.0),
    ),
    case("poisson_loss", "B 3, B 3", lambda x, y: tf.nn.log_poisson_loss(y, x)),
    case(
        "stateless_dropout", "B 4", lambda x: tf.nn.experimental.stateless_dropout(x, 0.4, [1, 2])
    ),
    case(
        "dropout_of_rows",
        "B 4",
        lambda x: tf.nn.experimental.stateless_dropout(
            x, 0.4, [1, 2], noise_shape=[tf.shape(x)[0], 1]
        ),
    ),
    case("embedding", "6 3, int<6 B 4", tf.nn.embedding_lookup),
    case(
        "embedding_of_sum",
        "6 3, int<6 B 4",
        lambda w, i: tf.reduce_mean(tf.nn.embedding_lookup(w, i, max_norm=1.0), 1),
    ),
    case(
        "in_top_k", "distinct B 4, int<4 B", lambda x, y: tf.math.in_top_k(y, x, 2), gradient=False
    ),
    loose(
        "ctc_loss",
        [
            i32(B, 2, values=ints(1, 4)),
            f32(5, B, 4),
            i32(B, values=ints(1, 3)),
            i32(B, values=ints(4, 6)),
        ],
        ctc,
        tolerance=1e-4,
    ),
    case("moments_of_all", "B 2 3", lambda x: tf.nn.moments(x, [0, 1, 2]), expect="sharded"),
    case(
        "cosine",
        "B 4, B 4",
        lambda x, y: -tf.reduce_sum(tf.nn.l2_normalize(x, -1) * tf.nn.l2_normalize(y, -1), -1),
    ),
    loose("softmax_of_batch", "B 4", lambda x: tf.nn.softmax(x, 0)),
)
