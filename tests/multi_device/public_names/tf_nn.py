"""Calls of ``tf.nn``."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from multi_device.public_names.recipe import IMAGE, VOLUME, B, Table, X, call, each
from unit.graph.ops.op_case import distinct, f32, i32, ints, positive

nn = tf.nn
SIGNAL = f32(B, 8, 3)
LABELS = i32(B, values=ints(0, 4))
DISTINCT = f32(B, 4, values=distinct)
RATIOS = [1.0, 1.5, 1.5, 1.0]


def shape_of(x: Any, *rest: int) -> Any:
    return tf.stack([tf.shape(x)[0], *rest])


def sparse(ids: Any) -> Any:
    return tf.sparse.from_dense(ids)


def sampled(loss: Any) -> Any:
    """Return a loss of labels and inputs by classes that are sampled with a seed."""

    def function(weights: Any, biases: Any, labels: Any, x: Any) -> Any:
        return loss(weights, biases, labels[:, None], x, 2, 6, seed=1)

    return function


def batch_norm(x: Any, mean: Any, variance: Any) -> Any:
    return nn.batch_normalization(x, mean, variance, None, None, 1e-2)


def ctc(labels: Any, logits: Any, label_length: Any, logit_length: Any) -> Any:
    return nn.ctc_loss(labels, logits, label_length, logit_length, False, blank_index=0)


TABLE: Table = {
    **each(nn, "crelu elu gelu leaky_relu relu relu6 selu silu l2_loss", X),
    "atrous_conv2d": call(lambda x, w: nn.atrous_conv2d(x, w, 2, "SAME"), IMAGE, f32(3, 3, 3, 2)),
    "atrous_conv2d_transpose": call(
        lambda x, w: nn.atrous_conv2d_transpose(x, w, shape_of(x, 8, 8, 2), 2, "SAME"),
        IMAGE,
        f32(3, 3, 2, 3),
    ),
    "avg_pool2d": call(lambda x: nn.avg_pool2d(x, 2, 2, "SAME"), IMAGE),
    "max_pool2d": call(lambda x: nn.max_pool2d(x, 2, 2, "SAME"), IMAGE),
    "avg_pool": call(lambda x: nn.avg_pool(x, 2, 2, "SAME"), IMAGE),
    "avg_pool1d": call(lambda x: nn.avg_pool1d(x, 2, 2, "SAME"), SIGNAL),
    "avg_pool3d": call(lambda x: nn.avg_pool3d(x, 2, 2, "SAME"), VOLUME),
    "batch_norm_with_global_normalization": call(
        lambda x, m, v, b, g: nn.batch_norm_with_global_normalization(x, m, v, b, g, 1e-2, True),
        IMAGE,
        f32(3),
        f32(3, values=positive),
        f32(3),
        f32(3),
    ),
    "batch_normalization": call(batch_norm, IMAGE, f32(3), f32(3, values=positive)),
    "bias_add": call(nn.bias_add, IMAGE, f32(3)),
    "collapse_repeated": call(
        lambda x, n: nn.collapse_repeated(x, n),
        i32(B, 4, values=ints(0, 3)),
        i32(B, values=ints(1, 5)),
    ),
    "compute_average_loss": call(lambda x: nn.compute_average_loss(x), f32(B)),
    "conv1d": call(lambda x, w: nn.conv1d(x, w, 1, "SAME"), SIGNAL, f32(3, 3, 2)),
    "conv1d_transpose": call(
        lambda x, w: nn.conv1d_transpose(x, w, shape_of(x, 16, 2), 2), SIGNAL, f32(3, 2, 3)
    ),
    "conv2d": call(lambda x, w: nn.conv2d(x, w, 2, "VALID"), IMAGE, f32(3, 3, 3, 2)),
    "conv2d_transpose": call(
        lambda x, w: nn.conv2d_transpose(x, w, shape_of(x, 16, 16, 2), 2), IMAGE, f32(3, 3, 2, 3)
    ),
    "conv3d": call(lambda x, w: nn.conv3d(x, w, [1] * 5, "SAME"), VOLUME, f32(2, 2, 2, 2, 3)),
    "conv3d_transpose": call(
        lambda x, w: nn.conv3d_transpose(x, w, shape_of(x, 8, 8, 8, 3), 2),
        VOLUME,
        f32(2, 2, 2, 3, 2),
    ),
    "conv_transpose": call(
        lambda x, w: nn.conv_transpose(x, w, shape_of(x, 16, 16, 2), 2), IMAGE, f32(3, 3, 2, 3)
    ),
    "convolution": call(
        lambda x, w: nn.convolution(x, w, dilations=2, padding="SAME"), IMAGE, f32(3, 3, 3, 2)
    ),
    "ctc_beam_search_decoder": call(
        lambda x, n: nn.ctc_beam_search_decoder(x, n, 3, 1)[1],
        f32(5, B, 4),
        i32(B, values=ints(4, 6)),
        gradient=False,
    ),
    "ctc_greedy_decoder": call(
        lambda x, n: nn.ctc_greedy_decoder(x, n)[1],
        f32(5, B, 4),
        i32(B, values=ints(4, 6)),
        gradient=False,
    ),
    "ctc_loss": call(
        ctc,
        i32(B, 2, values=ints(1, 4)),
        f32(B, 6, 4),
        i32(B, values=ints(1, 3)),
        i32(B, values=ints(5, 7)),
        tolerance=1e-4,
    ),
    "ctc_unique_labels": call(nn.ctc_unique_labels, i32(B, 4, values=ints(0, 3))),
    "depth_to_space": call(lambda x: nn.depth_to_space(x, 2), f32(B, 3, 3, 8)),
    "depthwise_conv2d": call(
        lambda x, w: nn.depthwise_conv2d(x, w, [1, 1, 1, 1], "SAME"), IMAGE, f32(3, 3, 3, 2)
    ),
    "depthwise_conv2d_backprop_filter": call(
        lambda x, g: nn.depthwise_conv2d_backprop_filter(x, [3, 3, 3, 2], g, [1, 1, 1, 1], "SAME"),
        IMAGE,
        f32(B, 8, 8, 6),
    ),
    "depthwise_conv2d_backprop_input": call(
        lambda w, g: nn.depthwise_conv2d_backprop_input(
            shape_of(g, 8, 8, 3), w, g, [1, 1, 1, 1], "SAME"
        ),
        f32(3, 3, 3, 2),
        f32(B, 8, 8, 6),
    ),
    "dilation2d": call(
        lambda x, w: nn.dilation2d(x, w, [1, 1, 1, 1], "SAME", "NHWC", [1, 1, 1, 1]),
        IMAGE,
        f32(2, 2, 3),
    ),
    "dropout": call(lambda x: nn.dropout(x, 0.3), X, compared=False),
    "embedding_lookup": call(nn.embedding_lookup, f32(6, 3), i32(B, 3, values=ints(0, 6))),
    "embedding_lookup_sparse": call(
        lambda w, i: nn.embedding_lookup_sparse(w, sparse(i), None, combiner="sum"),
        f32(6, 3),
        i32(B, 3, values=ints(1, 6)),
    ),
    "erosion2d": call(
        lambda x, w: nn.erosion2d(x, w, [1, 1, 1, 1], "SAME", "NHWC", [1, 1, 1, 1]),
        IMAGE,
        f32(2, 2, 3),
    ),
    "fractional_avg_pool": call(
        lambda x: nn.fractional_avg_pool(x, RATIOS, seed=3)[0],
        IMAGE,
        gradient=False,
        compared=False,
    ),
    "fractional_max_pool": call(
        lambda x: nn.fractional_max_pool(x, RATIOS, seed=3)[0], IMAGE, compared=False
    ),
    "isotonic_regression": call(nn.isotonic_regression, X, gradient=False),
    "local_response_normalization": call(lambda x: nn.local_response_normalization(x, 1), IMAGE),
    "log_poisson_loss": call(nn.log_poisson_loss, f32(B, 4, values=positive), X),
    "max_pool": call(lambda x: nn.max_pool(x, 2, 2, "SAME"), IMAGE),
    "max_pool1d": call(lambda x: nn.max_pool1d(x, 2, 2, "SAME"), SIGNAL),
    "max_pool3d": call(lambda x: nn.max_pool3d(x, 2, 2, "SAME"), VOLUME),
    "max_pool_with_argmax": call(lambda x: tuple(nn.max_pool_with_argmax(x, 2, 2, "SAME")), IMAGE),
    "moments": call(lambda x: nn.moments(x, [1]), X),
    "nce_loss": call(
        lambda w, b, y, x: nn.nce_loss(w, b, y[:, None], x, 2, 6),
        f32(6, 4),
        f32(6),
        LABELS,
        X,
        compared=False,
    ),
    "normalize_moments": call(
        lambda x: nn.normalize_moments(*nn.sufficient_statistics(x, [0])[:3], None), X
    ),
    "pool": call(lambda x: nn.pool(x, [2, 2], "AVG", padding="SAME"), IMAGE),
    "safe_embedding_lookup_sparse": call(
        lambda w, i: nn.safe_embedding_lookup_sparse(w, sparse(i), combiner="sum"),
        f32(6, 3),
        i32(B, 3, values=ints(0, 6)),
    ),
    "sampled_softmax_loss": call(
        sampled(nn.sampled_softmax_loss), f32(6, 4), f32(6), LABELS, X, compared=False
    ),
    "separable_conv2d": call(
        lambda x, d, p: nn.separable_conv2d(x, d, p, [1, 1, 1, 1], "SAME"),
        IMAGE,
        f32(3, 3, 3, 1),
        f32(1, 1, 3, 2),
    ),
    "sigmoid_cross_entropy_with_logits": call(
        lambda y, x: nn.sigmoid_cross_entropy_with_logits(tf.sigmoid(y), x), X, X
    ),
    "softmax_cross_entropy_with_logits": call(
        lambda y, x: nn.softmax_cross_entropy_with_logits(tf.nn.softmax(y), x), X, X
    ),
    "sparse_softmax_cross_entropy_with_logits": call(
        nn.sparse_softmax_cross_entropy_with_logits, LABELS, X
    ),
    "space_to_batch": call(lambda x: nn.space_to_batch(x, [2, 2], [[0, 0], [0, 0]]), IMAGE),
    "space_to_depth": call(lambda x: nn.space_to_depth(x, 2), IMAGE),
    "sufficient_statistics": call(lambda x: nn.sufficient_statistics(x, [0])[:3], X),
    "weighted_cross_entropy_with_logits": call(
        lambda y, x: nn.weighted_cross_entropy_with_logits(tf.sigmoid(y), x, 2.0), X, X
    ),
    "weighted_moments": call(
        lambda x, w: nn.weighted_moments(x, [0], w), X, f32(B, 1, values=positive)
    ),
    "with_space_to_batch": call(
        lambda x, w: nn.with_space_to_batch(
            x, [2, 2], "SAME", lambda y, *_: nn.conv2d(y, w, 1, "VALID"), filter_shape=[3, 3]
        ),
        IMAGE,
        f32(3, 3, 3, 2),
    ),
}
_SAMPLER = "draws classes for the batch, with TensorFlow's stateful random numbers"
_WRAPPER = "a wrapper of cells of version 1, which Keras 3 has no use for"
NOT_CALLED = {
    "approx_min_k": "has no kernel on CPUs",
    **dict.fromkeys(
        """
        all_candidate_sampler fixed_unigram_candidate_sampler learned_unigram_candidate_sampler
        compute_accidental_hits
        """.split(),
        _SAMPLER,
    ),
    **dict.fromkeys(
        "RNNCellDeviceWrapper RNNCellDropoutWrapper RNNCellResidualWrapper".split(), _WRAPPER
    ),
    "scale_regularization_loss": "computes a number from weights; it takes no samples",
}
