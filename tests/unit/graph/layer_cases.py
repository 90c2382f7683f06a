"""Layers and losses, channels first, gradients of reshapes: functions for `test_inference`."""

from __future__ import annotations

import tensorflow as tf

from unit.graph.inference_case import EVEN, B, T, gradient_of, size


def conv(strides, padding, **more):
    return gradient_of(lambda x, k: tf.nn.conv2d(x, k, strides, padding, **more))


LAYERS = {
    "conv_same": ("B 7 6 2, 3 3 2 4", conv(2, "SAME")),
    "conv_valid": ("B 7 6 2, 3 3 2 4", conv([1, 2], "VALID")),
    "conv_explicit": ("B 7 6 2, 3 3 2 4", conv(1, [[0, 0], [1, 2], [0, 1], [0, 0]])),
    "conv_dilated": ("B 7 6 2, 3 3 2 4", conv(1, "SAME", dilations=2)),
    "conv_unknown": ("B T S 2, 3 3 2 4", conv(2, "SAME")),
    "conv_groups": ("B 5 5 4, 3 3 2 4", lambda x, k: tf.nn.conv2d(x, k, 1, "SAME")),
    "conv_dilated_unknown": (
        "B T S 2, 1 1 2 4",
        lambda x, k: tf.nn.convolution(x, k, padding="VALID", dilations=[2, 1]),
    ),
    "conv1d": ("B T 2, 3 2 4", gradient_of(lambda x, k: tf.nn.conv1d(x, k, 2, "SAME"))),
    "conv3d": (
        "B 4 5 4 1, 2 2 2 1 2",
        gradient_of(lambda x, k: tf.nn.conv3d(x, k, [1, 2, 2, 2, 1], "SAME")),
    ),
    "conv_transpose": (
        "B 4 4 2, 3 3 3 2",
        gradient_of(
            lambda x, k: tf.nn.conv2d_transpose(x, k, [tf.shape(x)[0], 8, 8, 3], 2, "SAME")
        ),
    ),
    "depthwise": (
        "B 5 5 2, 3 3 2 2",
        gradient_of(lambda x, k: tf.nn.depthwise_conv2d(x, k, [1, 1, 1, 1], "SAME")),
    ),
    "separable": (
        "B 5 5 2, 3 3 2 1, 1 1 2 3",
        lambda x, k, p: tf.nn.separable_conv2d(x, k, p, [1, 1, 1, 1], "VALID"),
    ),
    "max_pool": ("B 5 5 2", gradient_of(lambda x: tf.nn.max_pool2d(x, 2, 2, "SAME"))),
    "max_pool_valid": ("B 5 5 2", gradient_of(lambda x: tf.nn.max_pool2d(x, 2, 1, "VALID"))),
    "max_pool_unknown": ("B T S 2", gradient_of(lambda x: tf.nn.max_pool2d(x, 2, 2, "SAME"))),
    "max_pool_twice": (
        "B T 6 2",
        gradient_of(gradient_of(lambda x: tf.nn.max_pool2d(x, 2, 2, "SAME") ** 2)),
        EVEN,
    ),
    "max_pool_places": ("B 5 5 2", lambda x: tf.nn.max_pool_with_argmax(x, 2, 2, "SAME")),
    "max_pool3d": ("B 4 5 4 1", gradient_of(lambda x: tf.nn.max_pool3d(x, 2, 2, "SAME"))),
    "avg_pool": ("B 5 5 2", gradient_of(lambda x: tf.nn.avg_pool2d(x, 2, 2, "SAME"))),
    "avg_pool_unknown": ("B T S 2", gradient_of(lambda x: tf.nn.avg_pool2d(x, 2, 2, "SAME"))),
    "avg_pool3d": ("B 4 5 4 1", gradient_of(lambda x: tf.nn.avg_pool3d(x, 2, 2, "SAME"))),
    "fractional_pool": ("B 6 6 2", lambda x: tf.nn.fractional_max_pool(x, 1.5, seed=1)[0]),
    "dilation": (
        "B 5 5 2, 2 2 2",
        lambda x, k: tf.nn.dilation2d(x, k, [1, 1, 1, 1], "SAME", "NHWC", [1, 1, 1, 1]),
    ),
    "batch_norm": (
        "B 3 3 2, 2",
        gradient_of(lambda x, s: tf.compat.v1.nn.fused_batch_norm(x, s, s)[0]),
    ),
    "batch_norm_fixed": (
        "B 3 3 2, 2",
        gradient_of(
            lambda x, s: tf.compat.v1.nn.fused_batch_norm(x, s, s, s, s, is_training=False)[0]
        ),
    ),
    "batch_norm_channels": (
        "B 3 3 T",
        gradient_of(
            lambda x: tf.compat.v1.nn.fused_batch_norm(
                x, tf.ones([tf.shape(x)[3]]), tf.ones([tf.shape(x)[3]])
            )
        ),
    ),
    "moments": ("B 3 2", gradient_of(lambda x: tf.nn.moments(x, [0, 1]))),
    "softmax": ("B T", gradient_of(lambda x: tf.nn.softmax(x) + tf.nn.log_softmax(x, 0))),
    "cross_entropy": (
        "B 4, B 4",
        gradient_of(lambda x, y: tf.nn.softmax_cross_entropy_with_logits(y, x)),
    ),
    "cross_entropy_deep": (
        "B T 4, B T 4",
        gradient_of(lambda x, y: tf.nn.softmax_cross_entropy_with_logits(y, x)),
    ),
    "cross_entropy_broadcast": (
        "1 4, B 4",
        lambda x, y: tf.raw_ops.SoftmaxCrossEntropyWithLogits(features=x, labels=y),
    ),
    "sparse_cross_entropy": (
        "B T 4, int B T",
        gradient_of(lambda x, n: tf.nn.sparse_softmax_cross_entropy_with_logits(n, x)),
    ),
    "sigmoid_cross_entropy": (
        "B 4, B 4",
        gradient_of(lambda x, y: tf.nn.sigmoid_cross_entropy_with_logits(y, x)),
    ),
    "bias": ("B T 4, 4", gradient_of(lambda x, b: tf.nn.bias_add(x, b))),
    "bias_first": ("B 4 T, 4", gradient_of(lambda x, b: tf.nn.bias_add(x, b, "NCHW"))),
    "activations": (
        "B T",
        gradient_of(
            lambda x: (
                tf.nn.relu(x)
                + tf.nn.elu(x)
                + tf.nn.gelu(x)
                + tf.nn.leaky_relu(x)
                + tf.nn.softplus(x)
            )
        ),
    ),
    "dropout": (
        "B 4",
        lambda x: (tf.nn.dropout(x, 0.5), tf.nn.dropout(x, 0.5, noise_shape=[tf.shape(x)[0], 1])),
    ),
    "lookup": ("5 3, int B T", gradient_of(lambda w, n: tf.nn.embedding_lookup(w, n))),
    "ctc": (
        "B 6 4, int B 2",
        lambda x, n: tf.nn.ctc_loss(
            n,
            x,
            tf.fill([tf.shape(x)[0]], 2),
            tf.fill([tf.shape(x)[0]], 6),
            logits_time_major=False,
            blank_index=3,
        ),
    ),
}


CORNERS = {
    "nchw_conv": (
        "B 2 5 5, 3 3 2 4",
        lambda x, k: tf.nn.conv2d(x, k, 1, "SAME", data_format="NCHW"),
    ),
    "nchw_conv_unknown": (
        "B 2 T S, 3 3 2 4",
        lambda x, k: tf.nn.conv2d(x, k, 1, "SAME", data_format="NCHW"),
    ),
    "nchw_pool": ("B 2 5 T", lambda x: tf.nn.max_pool2d(x, 2, 2, "SAME", data_format="NCHW")),
    "nchw_avg_pool": ("B 2 5 T", lambda x: tf.nn.avg_pool2d(x, 2, 2, "SAME", data_format="NCHW")),
    "nchw_batch_norm": (
        "B 2 5 T, 2",
        lambda x, s: tf.compat.v1.nn.fused_batch_norm(x, s, s, data_format="NCHW"),
    ),
    "nchw_batch_norm_channels": (
        "B T 5 2, T",
        lambda x, s: tf.compat.v1.nn.fused_batch_norm(x, s, s, data_format="NCHW"),
    ),
    "nchw_gradient_of_bias": ("B T 3 3, T", gradient_of(lambda x, b: tf.nn.bias_add(x, b, "NCHW"))),
    "conv_of_pairs": ("2 B 5 5 2, 3 3 2 4", lambda x, k: tf.nn.conv2d(x, k, 1, "SAME")),
    "batch_not_first": ("T B 5 2, 1 3 2 4", lambda x, k: tf.nn.conv2d(x, k, 1, "VALID")),
    "top_k_batch_last": ("3 4 B", lambda x: tf.math.top_k(x, 2), EVEN),
    "resize_batch_of_rows": ("2 B 5 2", lambda x: tf.image.resize(x, [4, 4])),
    "reversed_sequences": ("B T 2, int<1 B", lambda x, n: tf.reverse_sequence(x, n, 1, 0)),
    "scatter_max": ("B 3, int B 1", lambda x, n: tf.tensor_scatter_nd_max(x, n * 0, x[: size(n)])),
    "embedding_sparse": ("3 5, int B T", gradient_of(lambda w, n: tf.gather(w, n, axis=1))),
    "unsorted_batch": (
        "B 2, int B",
        gradient_of(lambda x, n: tf.math.unsorted_segment_mean(x, n, 3)),
    ),
    "searchsorted": ("B T", lambda x: tf.searchsorted(tf.sort(x), x)),
    "bincount_rows": ("B T", lambda x: tf.math.bincount(tf.cast(x, tf.int32), axis=-1)),
    "gradient_of_cumulative": ("B T", gradient_of(lambda x: tf.math.cumulative_logsumexp(x, 1))),
    "batch_gather_grad": (
        "B 4 2, int B T",
        gradient_of(lambda x, n: tf.gather(x, n, batch_dims=1, axis=1)),
    ),
    "tile_grad": ("B T 4", gradient_of(lambda x: tf.tile(x, [2, 1, 3]))),
    "tile_grad_size": ("B T", gradient_of(lambda x: tf.tile(x, [1, size(x, 1)]))),
    "repeat_grad": ("B T", gradient_of(lambda x: tf.repeat(x, 3, axis=0))),
    "pad_grad_dyn": ("B T", gradient_of(lambda x: tf.pad(x, [[0, size(x)], [1, 0]]))),
    "strided_grad": ("B 6", gradient_of(lambda x: x[::2, 1:-1])),
    "mirror_grad": ("B 4", gradient_of(lambda x: tf.pad(x, [[0, 0], [2, 1]], "SYMMETRIC"))),
    "gathernd_batch_grad": (
        "B 4 3, int B T 1",
        gradient_of(lambda x, n: tf.gather_nd(x, n, batch_dims=1)),
    ),
    "cumsum_excl": ("B T", lambda x: tf.cumsum(x, 0, exclusive=True, reverse=True)),
    "slice_size_minus": ("B 3", lambda x: tf.slice(x, [0, 0], [size(x) - 1, -1])),
    "negative_begin": ("B 5", lambda x: x[-2:, -3:-1]),
    "range_diff": ("B", lambda x: tf.range(size(x), 2 * size(x))),
    "concat_slices": ("B 3", lambda x: tf.concat([x[: size(x) // 2], x[size(x) // 2 :]], 0)),
    "matmul_of_unknown": (
        "B T 2 3, T 3 2",
        gradient_of(lambda x, y: x @ y),
        [{B: 3, T: 1}, {B: 1, T: 3}, {B: 1, T: 1}],
    ),
    "where3": ("B, B T", lambda x, y: tf.where(x[:, None] > 1.0, y, 1.0)),
    "stack_axis": ("B T, B T", lambda x, y: tf.stack([x, y], 1)),
    "meshgrid_ij": ("B, T", lambda x, y: tf.meshgrid(x, y, indexing="ij")),
    "matrix_set_diag": ("B 3 3, B 3", lambda x, y: tf.linalg.set_diag(x, y)),
    "eye_batch": ("B", lambda x: tf.eye(3, batch_shape=[size(x)])),
    "kronecker": (
        "B 2, T 3",
        lambda x, y: tf.reshape(x[:, None, :, None] * y[None, :, None], [size(x) * size(y), -1]),
    ),
    "reshape_by_quotient": ("B T", lambda x: tf.reshape(x, [size(x) * size(x, 1) // 2, 2]), EVEN),
    "rows_up_to_three": ("B 2", lambda x: x[: tf.minimum(size(x), 3)]),
    "largest_size": ("B T", lambda x: tf.zeros([tf.maximum(size(x), size(x, 1))])),
    "rest_of_four": ("B", lambda x: tf.zeros([(-size(x)) % 4 + 1])),
    "pad_to_four": ("B 2", lambda x: tf.pad(x, [[0, (-size(x)) % 4], [0, 0]])),
    "pad_to_four_and_split": (
        "B 2",
        lambda x: tf.reshape(tf.pad(x, [[0, (-size(x)) % 4], [0, 0]]), [-1, 4, 2]),
    ),
    "reshape_by_static_shape": (
        "B 3",
        lambda x: tf.reshape(x, [d if d is not None else -1 for d in x.shape]),
    ),
    "ctc_decoder": (
        "B 4 3",
        lambda x: tf.nn.ctc_greedy_decoder(tf.transpose(x, [1, 0, 2]), tf.fill([size(x)], 4))[1],
    ),
}
