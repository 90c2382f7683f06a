"""Layers and losses: functions for `test_inference`."""

from __future__ import annotations

import tensorflow as tf

from unit.graph.inference_case import EVEN, B, S, T, case, f32, gradient_of, i32


def conv(strides, padding, **more):
    return gradient_of(lambda x, k: tf.nn.conv2d(x, k, strides, padding, **more))


LAYERS = [
    case("conv_same", conv(2, "SAME"), f32(B, 7, 6, 2), f32(3, 3, 2, 4)),
    case("conv_valid", conv([1, 2], "VALID"), f32(B, 7, 6, 2), f32(3, 3, 2, 4)),
    case(
        "conv_explicit", conv(1, [[0, 0], [1, 2], [0, 1], [0, 0]]), f32(B, 7, 6, 2), f32(3, 3, 2, 4)
    ),
    case("conv_dilated", conv(1, "SAME", dilations=2), f32(B, 7, 6, 2), f32(3, 3, 2, 4)),
    case("conv_unknown", conv(2, "SAME"), f32(B, T, S, 2), f32(3, 3, 2, 4)),
    case(
        "conv_groups", lambda x, k: tf.nn.conv2d(x, k, 1, "SAME"), f32(B, 5, 5, 4), f32(3, 3, 2, 4)
    ),
    case(
        "conv_dilated_unknown",
        lambda x, k: tf.nn.convolution(x, k, padding="VALID", dilations=[2, 1]),
        f32(B, T, S, 2),
        f32(1, 1, 2, 4),
    ),
    case(
        "conv1d",
        gradient_of(lambda x, k: tf.nn.conv1d(x, k, 2, "SAME")),
        f32(B, T, 2),
        f32(3, 2, 4),
    ),
    case(
        "conv3d",
        gradient_of(lambda x, k: tf.nn.conv3d(x, k, [1, 2, 2, 2, 1], "SAME")),
        f32(B, 4, 5, 4, 1),
        f32(2, 2, 2, 1, 2),
    ),
    case(
        "conv_transpose",
        gradient_of(
            lambda x, k: tf.nn.conv2d_transpose(x, k, [tf.shape(x)[0], 8, 8, 3], 2, "SAME")
        ),
        f32(B, 4, 4, 2),
        f32(3, 3, 3, 2),
    ),
    case(
        "depthwise",
        gradient_of(lambda x, k: tf.nn.depthwise_conv2d(x, k, [1, 1, 1, 1], "SAME")),
        f32(B, 5, 5, 2),
        f32(3, 3, 2, 2),
    ),
    case(
        "separable",
        lambda x, k, p: tf.nn.separable_conv2d(x, k, p, [1, 1, 1, 1], "VALID"),
        f32(B, 5, 5, 2),
        f32(3, 3, 2, 1),
        f32(1, 1, 2, 3),
    ),
    case("max_pool", gradient_of(lambda x: tf.nn.max_pool2d(x, 2, 2, "SAME")), f32(B, 5, 5, 2)),
    case(
        "max_pool_valid", gradient_of(lambda x: tf.nn.max_pool2d(x, 2, 1, "VALID")), f32(B, 5, 5, 2)
    ),
    case(
        "max_pool_unknown",
        gradient_of(lambda x: tf.nn.max_pool2d(x, 2, 2, "SAME")),
        f32(B, T, S, 2),
    ),
    case(
        "max_pool_twice",
        gradient_of(gradient_of(lambda x: tf.nn.max_pool2d(x, 2, 2, "SAME") ** 2)),
        f32(B, T, 6, 2),
        runs=EVEN,
    ),
    case("max_pool_places", lambda x: tf.nn.max_pool_with_argmax(x, 2, 2, "SAME"), f32(B, 5, 5, 2)),
    case(
        "max_pool3d", gradient_of(lambda x: tf.nn.max_pool3d(x, 2, 2, "SAME")), f32(B, 4, 5, 4, 1)
    ),
    case("avg_pool", gradient_of(lambda x: tf.nn.avg_pool2d(x, 2, 2, "SAME")), f32(B, 5, 5, 2)),
    case(
        "avg_pool_unknown",
        gradient_of(lambda x: tf.nn.avg_pool2d(x, 2, 2, "SAME")),
        f32(B, T, S, 2),
    ),
    case(
        "avg_pool3d", gradient_of(lambda x: tf.nn.avg_pool3d(x, 2, 2, "SAME")), f32(B, 4, 5, 4, 1)
    ),
    case(
        "fractional_pool", lambda x: tf.nn.fractional_max_pool(x, 1.5, seed=1)[0], f32(B, 6, 6, 2)
    ),
    case(
        "dilation",
        lambda x, k: tf.nn.dilation2d(x, k, [1, 1, 1, 1], "SAME", "NHWC", [1, 1, 1, 1]),
        f32(B, 5, 5, 2),
        f32(2, 2, 2),
    ),
    case(
        "batch_norm",
        gradient_of(lambda x, s: tf.compat.v1.nn.fused_batch_norm(x, s, s)[0]),
        f32(B, 3, 3, 2),
        f32(2),
    ),
    case(
        "batch_norm_fixed",
        gradient_of(
            lambda x, s: tf.compat.v1.nn.fused_batch_norm(x, s, s, s, s, is_training=False)[0]
        ),
        f32(B, 3, 3, 2),
        f32(2),
    ),
    case(
        "batch_norm_channels",
        gradient_of(
            lambda x: tf.compat.v1.nn.fused_batch_norm(
                x, tf.ones([tf.shape(x)[3]]), tf.ones([tf.shape(x)[3]])
            )
        ),
        f32(B, 3, 3, T),
    ),
    case("moments", gradient_of(lambda x: tf.nn.moments(x, [0, 1])), f32(B, 3, 2)),
    case("softmax", gradient_of(lambda x: tf.nn.softmax(x) + tf.nn.log_softmax(x, 0)), f32(B, T)),
    case(
        "cross_entropy",
        gradient_of(lambda x, y: tf.nn.softmax_cross_entropy_with_logits(y, x)),
        f32(B, 4),
        f32(B, 4),
    ),
    case(
        "cross_entropy_deep",
        gradient_of(lambda x, y: tf.nn.softmax_cross_entropy_with_logits(y, x)),
        f32(B, T, 4),
        f32(B, T, 4),
    ),
    case(
        "cross_entropy_broadcast",
        lambda x, y: tf.raw_ops.SoftmaxCrossEntropyWithLogits(features=x, labels=y),
        f32(1, 4),
        f32(B, 4),
    ),
    case(
        "sparse_cross_entropy",
        gradient_of(lambda x, n: tf.nn.sparse_softmax_cross_entropy_with_logits(n, x)),
        f32(B, T, 4),
        i32(B, T),
    ),
    case(
        "sigmoid_cross_entropy",
        gradient_of(lambda x, y: tf.nn.sigmoid_cross_entropy_with_logits(y, x)),
        f32(B, 4),
        f32(B, 4),
    ),
    case("bias", gradient_of(lambda x, b: tf.nn.bias_add(x, b)), f32(B, T, 4), f32(4)),
    case(
        "bias_first", gradient_of(lambda x, b: tf.nn.bias_add(x, b, "NCHW")), f32(B, 4, T), f32(4)
    ),
    case(
        "activations",
        gradient_of(
            lambda x: (
                tf.nn.relu(x)
                + tf.nn.elu(x)
                + tf.nn.gelu(x)
                + tf.nn.leaky_relu(x)
                + tf.nn.softplus(x)
            )
        ),
        f32(B, T),
    ),
    case(
        "dropout",
        lambda x: (tf.nn.dropout(x, 0.5), tf.nn.dropout(x, 0.5, noise_shape=[tf.shape(x)[0], 1])),
        f32(B, 4),
    ),
    case("lookup", gradient_of(lambda w, n: tf.nn.embedding_lookup(w, n)), f32(5, 3), i32(B, T)),
    case(
        "ctc",
        lambda x, n: tf.nn.ctc_loss(
            n,
            x,
            tf.fill([tf.shape(x)[0]], 2),
            tf.fill([tf.shape(x)[0]], 6),
            logits_time_major=False,
            blank_index=3,
        ),
        f32(B, 6, 4),
        i32(B, 2),
    ),
]
