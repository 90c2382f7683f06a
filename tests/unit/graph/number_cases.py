"""Numbers that a program computes from sizes, and random numbers: for `test_inference`."""

from __future__ import annotations

import tensorflow as tf

from unit.graph.inference_case import B, T, case, f32, i32, size

NUMBERS = [
    case(
        "sizes", lambda x: (tf.size(x), tf.rank(x), tf.shape(x), tf.shape(x, tf.int64)), f32(B, T)
    ),
    case("arithmetic", lambda x: (size(x) * 2 - 1, -size(x), size(x) // 3, size(x) % 3), f32(B, T)),
    case(
        "divided_sizes", lambda x: (4 * size(x) // 2, (size(x) + 1) // 2, 7 // size(x)), f32(B, T)
    ),
    case(
        "guarded",
        lambda x: (tf.maximum(size(x), 1), tf.minimum(size(x), 1), tf.maximum(size(x), 3)),
        f32(B),
    ),
    case(
        "guarded_time", lambda x: (tf.maximum(size(x, 1), 1), tf.minimum(size(x, 1), 2)), f32(B, T)
    ),
    case("negative_division", lambda x: (-size(x) // 2, (-7) // size(x), -size(x) % 4), f32(B)),
    case("truncated", lambda x: tf.truncatediv(tf.shape(x) - 5, 2), f32(B, T)),
    case(
        "truncated_constants", lambda x: tf.truncatediv(tf.constant([-7, 7]), 2) + size(x), f32(B)
    ),
    case("powers", lambda x: size(x) ** 2, f32(B)),
    case(
        "ranges", lambda x: (tf.range(size(x)), tf.range(1, size(x)), tf.range(2 * size(x))), f32(B)
    ),
    case("stepped_range", lambda x: (tf.range(0, size(x), 2), tf.range(size(x), 0, -1)), f32(B)),
    case("range_to_data", lambda n: (tf.range(n), tf.range(n, n + 3)), i32()),
    case(
        "constants", lambda x: (tf.range(4), tf.zeros([3], tf.int32), tf.fill([2], size(x))), f32(B)
    ),
    case(
        "ones_like",
        lambda x: (tf.ones_like(x), tf.zeros_like(tf.shape(x)), tf.ones_like(size(x))),
        f32(B, T),
    ),
    case(
        "fill",
        lambda x: (tf.fill([size(x), 3], 2.0), tf.zeros(tf.shape(x)), tf.eye(size(x))),
        f32(B, T),
    ),
    case(
        "casts",
        lambda x: (tf.cast(tf.shape(x), tf.int64), tf.cast(tf.shape(x), tf.float32)),
        f32(B, T),
    ),
    case("narrow_cast", lambda x: tf.cast(tf.cast(size(x) + 254, tf.uint8), tf.int32), f32(B)),
    case(
        "narrow_constants",
        lambda x: (tf.constant(200, tf.uint8) + tf.constant(100, tf.uint8), x),
        f32(B),
    ),
    case("wrapped_product", lambda x: (tf.constant(1664525) * tf.constant(1013904223), x), f32(B)),
    case("wrapped_by_batch", lambda x: size(x) * 1000000007, f32(B)),
    case(
        "narrowed_constant",
        lambda x: (tf.cast(tf.constant(2**40 + 3, tf.int64), tf.int32), x),
        f32(B),
    ),
    case(
        "large_quotient", lambda x: (tf.truncatediv(tf.constant(2**60 + 1, tf.int64), 1), x), f32(B)
    ),
    case("mean_of_sizes", lambda x: tf.reduce_sum(x) / tf.cast(size(x), tf.float32), f32(B)),
    case("chosen_size", lambda x, n: tf.zeros([tf.where(n > 0, size(x), size(x))]), f32(B), i32()),
    case("chosen_sizes", lambda x, n: tf.where(n > 0, size(x), size(x)), f32(B), i32(T)),
    case(
        "answers_of_constants",
        lambda x, n: (
            tf.cast(tf.constant([2, -1, 0]) >= 0, tf.int32) + 5,
            tf.cast(tf.constant([1, 2]) < tf.constant([2, 2]), tf.int64),
            tf.where(tf.constant([2, -1]) >= 0, tf.constant([3, 4]), tf.constant([5, 6])),
            tf.where(tf.constant([2, -1]) >= 0, tf.constant([3]), tf.constant([5, 6])),
            tf.where(tf.constant([2, -1]) >= 0, tf.stack([n, n]), tf.constant([5, 6])),
            tf.zeros([3, 1])[: tf.cast(size(x) > n, tf.int32)],
            tf.cast(tf.stack([size(x), 2]) > 1, tf.int32),
            tf.where(tf.stack([size(x), 2]) > 1, tf.constant([3, 4]), tf.constant([5, 6])),
        ),
        f32(B),
        i32(),
    ),
    case("minus_one_by_data", lambda x, n: tf.reshape(x, [n * 0 - 1, 3]), f32(B, 3), i32()),
    case(
        "same_size_twice",
        lambda x, y: tf.zeros([size(x) * size(y, 1) - size(y, 1) * size(x) + 3]),
        f32(B),
        f32(B, T),
    ),
    case(
        "sizes_of_reductions",
        lambda x: (tf.reduce_max(tf.shape(x)), tf.reduce_prod(tf.shape(x))),
        f32(B, T),
    ),
    case(
        "sizes_of_unknown_rank",
        lambda x, n: tf.reshape(tf.shape(x), 2 * tf.ones_like(n)),
        f32(B, 3, 2, 2),
        i32(T),
        runs=[{B: 3, T: 2}],
    ),
    case(
        "invert_permutation",
        lambda x: tf.transpose(x, tf.math.invert_permutation([2, 0, 1])),
        f32(B, T, 4),
    ),
    case(
        "random",
        lambda x: (tf.random.normal(tf.shape(x)), tf.random.uniform([size(x), 3])),
        f32(B, T),
    ),
    case(
        "random_stateless",
        lambda x: (
            tf.random.stateless_normal([size(x), 2], [1, 2]),
            tf.random.stateless_uniform(tf.shape(x), [1, 2], 0, 9, tf.int32),
        ),
        f32(B, T),
    ),
    case(
        "random_gamma",
        lambda x: (
            tf.random.gamma([2], x),
            tf.random.stateless_gamma(tf.shape(x), [1, 2], x),
            tf.random.poisson([3], x),
        ),
        f32(B),
    ),
    case("random_categorical", lambda x: tf.random.categorical(x, 5), f32(B, 4)),
    case(
        "random_truncated",
        lambda x: (
            tf.random.truncated_normal(tf.shape(x)),
            tf.random.stateless_binomial(tf.shape(x), [1, 2], 3.0, 0.5),
            tf.random.shuffle(x),
        ),
        f32(B, T),
    ),
    case("linspace", lambda x: tf.linspace(0.0, 1.0, size(x)), f32(B)),
    case(
        "histogram",
        lambda n: (tf.math.bincount(n), tf.math.bincount(n, minlength=4, maxlength=4)),
        i32(B),
    ),
    case("confusion", lambda n, m: tf.math.confusion_matrix(n, m), i32(B), i32(B)),
    case("sequence_mask", lambda n: (tf.sequence_mask(n), tf.sequence_mask(n, 5)), i32(B)),
    case("one_of_several", lambda x: tf.zeros([size(x), 1, 3]) + tf.zeros([1, 4, 1]), f32(B)),
]
