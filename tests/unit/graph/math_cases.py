"""Products, reductions, signals: functions for `test_inference`."""

from __future__ import annotations

import tensorflow as tf

from unit.graph.inference_case import EVEN, B, S, T, case, f32, gradient_of, i32

MATHS = [
    case("matmul", gradient_of(lambda x, y: x @ y), f32(B, 3), f32(3, 4)),
    case(
        "matmul_transposed",
        lambda x: (tf.matmul(x, x, transpose_b=True), tf.matmul(x, x, transpose_a=True)),
        f32(B, T),
    ),
    case(
        "batch_matmul",
        gradient_of(lambda x, y: tf.matmul(x, y, transpose_b=True)),
        f32(B, T, 4),
        f32(B, S, 4),
    ),
    case("batch_matmul_broadcast", gradient_of(lambda x, y: x @ y), f32(B, 2, T, 4), f32(2, 4, 3)),
    case(
        "einsum", gradient_of(lambda x, y: tf.einsum("btd,de->bte", x, y)), f32(B, T, 4), f32(4, 2)
    ),
    case(
        "einsum_heads",
        lambda x, y: tf.einsum("bthd,bshd->bhts", x, y),
        f32(B, T, 2, 3),
        f32(B, S, 2, 3),
    ),
    case("einsum_ellipsis", lambda x, y: tf.einsum("...d,de->...e", x, y), f32(B, T, 4), f32(4, 2)),
    case("einsum_trace", lambda x: (tf.einsum("bii->b", x), tf.einsum("bij->", x)), f32(B, 3, 3)),
    case(
        "tensordot",
        gradient_of(lambda x, y: tf.tensordot(x, y, [[2], [0]])),
        f32(B, T, 4),
        f32(4, 2, 3),
    ),
    case(
        "reductions",
        lambda x: (
            tf.reduce_sum(x, 0),
            tf.reduce_mean(x, [0, -1]),
            tf.reduce_max(x),
            tf.reduce_prod(x, -1, keepdims=True),
            tf.math.reduce_std(x, 1),
        ),
        f32(B, T, 4),
    ),
    case(
        "logical",
        lambda x: (tf.reduce_all(x > 0, 0), tf.reduce_any(x > 0, [1]), tf.math.count_nonzero(x, 1)),
        f32(B, T),
    ),
    case(
        "gradient_of_reductions",
        gradient_of(lambda x: tf.reduce_mean(x, 1) * tf.reduce_max(x, -1)),
        f32(B, T),
    ),
    case("gradient_of_prod", gradient_of(lambda x: tf.reduce_prod(x, 1)), f32(B, 3)),
    case(
        "log_sum_exp",
        lambda x: (tf.reduce_logsumexp(x, -1), tf.math.reduce_euclidean_norm(x, 0)),
        f32(B, T),
    ),
    case("cumulative", gradient_of(lambda x: tf.cumsum(x, 1) + tf.math.cumprod(x, 0)), f32(B, T)),
    case("gradient_of_broadcast", gradient_of(lambda x, y: x * y), f32(B, T), f32(T)),
    case("gradient_of_broadcast_rows", gradient_of(lambda x, y: x * y), f32(B, 3), f32(B, 1)),
    case(
        "gradient_of_broadcast_unknown",
        gradient_of(lambda x, y: x * y),
        f32(B, 3),
        f32(T, 3),
        runs=[{B: 3, T: 1}, {B: 1, T: 4}, {B: 1, T: 1}],
    ),
    case(
        "gradient_of_where", gradient_of(lambda x, y: tf.where(x > 1.0, x, y)), f32(B, 3), f32(1, 3)
    ),
    case(
        "norms", gradient_of(lambda x: tf.linalg.l2_normalize(x, 1) + tf.linalg.norm(x)), f32(B, 3)
    ),
    case(
        "clip",
        gradient_of(lambda x: tf.clip_by_norm(tf.clip_by_value(x, 0.6, 1.2), 1.0)),
        f32(B, 3),
    ),
    case(
        "complex",
        lambda x: (tf.complex(x, x), tf.math.real(tf.complex(x, x)), tf.abs(tf.complex(x, x))),
        f32(B, 4),
    ),
    case(
        "bitcast",
        lambda x: (
            tf.bitcast(x, tf.int32),
            tf.bitcast(x, tf.uint8),
            tf.bitcast(tf.bitcast(x, tf.uint8), tf.float32),
        ),
        f32(B, 3),
    ),
    case("bitcast_wider", lambda n: tf.bitcast(n, tf.int64), i32(B, 3, 2)),
    case(
        "roll",
        lambda x: (
            tf.roll(x, 1, 0),
            tf.reverse(x, [0]),
            tf.reverse_sequence(x, tf.ones([tf.shape(x)[0]], tf.int32), 1),
        ),
        f32(B, 3),
    ),
    case(
        "fft",
        lambda x: (
            tf.signal.rfft(x),
            tf.signal.irfft(tf.signal.rfft(x)),
            tf.signal.fft(tf.cast(x, tf.complex64)),
        ),
        f32(B, 8),
    ),
    case(
        "fft_unknown",
        lambda x: (tf.signal.rfft(x), tf.signal.rfft(x, [4]), tf.signal.irfft(tf.signal.rfft(x))),
        f32(B, T),
        runs=EVEN,
    ),
    case(
        "fft2d",
        lambda x: (tf.signal.rfft2d(x), tf.signal.fft2d(tf.cast(x, tf.complex64))),
        f32(B, 4, 6),
    ),
    case("frames", lambda x: tf.signal.frame(x, 4, 2), f32(B, 10)),
    case("stft", lambda x: tf.signal.stft(x, 4, 2), f32(B, 10)),
    case(
        "strings",
        lambda n: (tf.strings.as_string(n), tf.strings.length(tf.strings.as_string(n))),
        i32(B, 3),
    ),
    case("boolean_axis", lambda x: tf.reduce_sum(x, tf.range(1, tf.rank(x))), f32(B, T, 4)),
]
