"""Channels first, unusual batch axes, gradients of reshapes: functions for `test_inference`."""

from __future__ import annotations

import tensorflow as tf

from unit.graph.inference_case import EVEN, B, S, T, case, f32, gradient_of, i32, size

CORNERS = [
    case(
        "nchw_conv",
        lambda x, k: tf.nn.conv2d(x, k, 1, "SAME", data_format="NCHW"),
        f32(B, 2, 5, 5),
        f32(3, 3, 2, 4),
    ),
    case(
        "nchw_conv_unknown",
        lambda x, k: tf.nn.conv2d(x, k, 1, "SAME", data_format="NCHW"),
        f32(B, 2, T, S),
        f32(3, 3, 2, 4),
    ),
    case(
        "nchw_pool",
        lambda x: tf.nn.max_pool2d(x, 2, 2, "SAME", data_format="NCHW"),
        f32(B, 2, 5, T),
    ),
    case(
        "nchw_avg_pool",
        lambda x: tf.nn.avg_pool2d(x, 2, 2, "SAME", data_format="NCHW"),
        f32(B, 2, 5, T),
    ),
    case(
        "nchw_batch_norm",
        lambda x, s: tf.compat.v1.nn.fused_batch_norm(x, s, s, data_format="NCHW"),
        f32(B, 2, 5, T),
        f32(2),
    ),
    case(
        "nchw_batch_norm_channels",
        lambda x, s: tf.compat.v1.nn.fused_batch_norm(x, s, s, data_format="NCHW"),
        f32(B, T, 5, 2),
        f32(T),
    ),
    case(
        "nchw_gradient_of_bias",
        gradient_of(lambda x, b: tf.nn.bias_add(x, b, "NCHW")),
        f32(B, T, 3, 3),
        f32(T),
    ),
    case(
        "conv_of_pairs",
        lambda x, k: tf.nn.conv2d(x, k, 1, "SAME"),
        f32(2, B, 5, 5, 2),
        f32(3, 3, 2, 4),
    ),
    case(
        "batch_not_first",
        lambda x, k: tf.nn.conv2d(x, k, 1, "VALID"),
        f32(T, B, 5, 2),
        f32(1, 3, 2, 4),
    ),
    case("top_k_batch_last", lambda x: tf.math.top_k(x, 2), f32(3, 4, B), runs=EVEN),
    case("resize_batch_of_rows", lambda x: tf.image.resize(x, [4, 4]), f32(2, B, 5, 2)),
    case(
        "reversed_sequences",
        lambda x, n: tf.reverse_sequence(x, n, 1, 0),
        f32(B, T, 2),
        i32(B, high=1),
    ),
    case(
        "scatter_max",
        lambda x, n: tf.tensor_scatter_nd_max(x, n * 0, x[: size(n)]),
        f32(B, 3),
        i32(B, 1),
    ),
    case(
        "embedding_sparse", gradient_of(lambda w, n: tf.gather(w, n, axis=1)), f32(3, 5), i32(B, T)
    ),
    case(
        "unsorted_batch",
        gradient_of(lambda x, n: tf.math.unsorted_segment_mean(x, n, 3)),
        f32(B, 2),
        i32(B),
    ),
    case("searchsorted", lambda x: tf.searchsorted(tf.sort(x), x), f32(B, T)),
    case("bincount_rows", lambda x: tf.math.bincount(tf.cast(x, tf.int32), axis=-1), f32(B, T)),
    case(
        "gradient_of_cumulative",
        gradient_of(lambda x: tf.math.cumulative_logsumexp(x, 1)),
        f32(B, T),
    ),
    case(
        "batch_gather_grad",
        gradient_of(lambda x, n: tf.gather(x, n, batch_dims=1, axis=1)),
        f32(B, 4, 2),
        i32(B, T),
    ),
    case("tile_grad", gradient_of(lambda x: tf.tile(x, [2, 1, 3])), f32(B, T, 4)),
    case("tile_grad_size", gradient_of(lambda x: tf.tile(x, [1, size(x, 1)])), f32(B, T)),
    case("repeat_grad", gradient_of(lambda x: tf.repeat(x, 3, axis=0)), f32(B, T)),
    case("pad_grad_dyn", gradient_of(lambda x: tf.pad(x, [[0, size(x)], [1, 0]])), f32(B, T)),
    case("strided_grad", gradient_of(lambda x: x[::2, 1:-1]), f32(B, 6)),
    case("mirror_grad", gradient_of(lambda x: tf.pad(x, [[0, 0], [2, 1]], "SYMMETRIC")), f32(B, 4)),
    case(
        "gathernd_batch_grad",
        gradient_of(lambda x, n: tf.gather_nd(x, n, batch_dims=1)),
        f32(B, 4, 3),
        i32(B, T, 1),
    ),
    case("cumsum_excl", lambda x: tf.cumsum(x, 0, exclusive=True, reverse=True), f32(B, T)),
    case("slice_size_minus", lambda x: tf.slice(x, [0, 0], [size(x) - 1, -1]), f32(B, 3)),
    case("negative_begin", lambda x: x[-2:, -3:-1], f32(B, 5)),
    case("range_diff", lambda x: tf.range(size(x), 2 * size(x)), f32(B)),
    case(
        "concat_slices", lambda x: tf.concat([x[: size(x) // 2], x[size(x) // 2 :]], 0), f32(B, 3)
    ),
    case(
        "matmul_of_unknown",
        gradient_of(lambda x, y: x @ y),
        f32(B, T, 2, 3),
        f32(T, 3, 2),
        runs=[{B: 3, T: 1}, {B: 1, T: 3}, {B: 1, T: 1}],
    ),
    case("where3", lambda x, y: tf.where(x[:, None] > 1.0, y, 1.0), f32(B), f32(B, T)),
    case("stack_axis", lambda x, y: tf.stack([x, y], 1), f32(B, T), f32(B, T)),
    case("meshgrid_ij", lambda x, y: tf.meshgrid(x, y, indexing="ij"), f32(B), f32(T)),
    case("matrix_set_diag", lambda x, y: tf.linalg.set_diag(x, y), f32(B, 3, 3), f32(B, 3)),
    case("eye_batch", lambda x: tf.eye(3, batch_shape=[size(x)]), f32(B)),
    case(
        "kronecker",
        lambda x, y: tf.reshape(x[:, None, :, None] * y[None, :, None], [size(x) * size(y), -1]),
        f32(B, 2),
        f32(T, 3),
    ),
    case(
        "reshape_by_quotient",
        lambda x: tf.reshape(x, [size(x) * size(x, 1) // 2, 2]),
        f32(B, T),
        runs=EVEN,
    ),
    case("rows_up_to_three", lambda x: x[: tf.minimum(size(x), 3)], f32(B, 2)),
    case("largest_size", lambda x: tf.zeros([tf.maximum(size(x), size(x, 1))]), f32(B, T)),
    case("rest_of_four", lambda x: tf.zeros([(-size(x)) % 4 + 1]), f32(B)),
    case("pad_to_four", lambda x: tf.pad(x, [[0, (-size(x)) % 4], [0, 0]]), f32(B, 2)),
    case(
        "pad_to_four_and_split",
        lambda x: tf.reshape(tf.pad(x, [[0, (-size(x)) % 4], [0, 0]]), [-1, 4, 2]),
        f32(B, 2),
    ),
    case(
        "reshape_by_static_shape",
        lambda x: tf.reshape(x, [d if d is not None else -1 for d in x.shape]),
        f32(B, 3),
    ),
    case(
        "ctc_decoder",
        lambda x: tf.nn.ctc_greedy_decoder(tf.transpose(x, [1, 0, 2]), tf.fill([size(x)], 4))[1],
        f32(B, 4, 3),
    ),
]
