"""Sizes as numbers, reshapes, slices, joins, gathers: functions for `test_inference`."""

from __future__ import annotations

import tensorflow as tf

from unit.graph.inference_case import EVEN, B, T, gradient_of, size


def rest_of(x):
    n = size(x)
    first = x[: n // 2]
    return first, x[n // 2 :], size(first) + n


RESHAPES = {
    "merge": ("B 3 4", lambda x: tf.reshape(x, [-1, 12])),
    "flatten": ("B T 4", lambda x: tf.reshape(x, [-1])),
    "split_axis": ("B 12", lambda x: tf.reshape(x, [-1, 2, 6])),
    "rows_to_columns": ("B 3 4", lambda x: tf.reshape(x, [6, -1])),
    "unflatten": ("B T 4", lambda x: tf.reshape(x, [size(x), size(x, 1), 2, -1])),
    "reshape_by_shape": ("B T", lambda x: tf.reshape(x, tf.reverse(tf.shape(x), [0]))),
    "reshape_by_product": ("B T 4", lambda x: tf.reshape(x, [size(x) * size(x, 1), 4])),
    "reshape_by_size": ("B T 4", lambda x: tf.reshape(x, [tf.size(x) // 4, 4])),
    "reshape_half": ("B 3", lambda x: tf.reshape(x, [size(x) // 2, -1]), EVEN),
    "reshape_by_reduced": (
        "B T 4",
        lambda x: tf.reshape(x, [tf.reduce_prod(tf.shape(x)[:-1]), -1]),
    ),
    "expand_dims": ("B 3", lambda x: (tf.expand_dims(x, -1), tf.expand_dims(x, 1))),
    "expand_dims_before": ("B 3", lambda x: tf.expand_dims(x, -3)),
    "squeeze": ("B 1 3 1", lambda x: (tf.squeeze(x, -1), tf.squeeze(x, [1, 3]))),
    "squeeze_all": ("B 1 3", lambda x: tf.squeeze(x)),
    "transpose": ("B T 4", lambda x: tf.transpose(x, [2, 0, 1])),
    "transpose_all": ("B T 4", lambda x: tf.transpose(x)),
    "tile": ("B T 4", lambda x: tf.tile(x, [2, 1, 3])),
    "tile_by_size": ("B 2", lambda x: tf.tile(x, [size(x), 2])),
    "repeat": ("B 4", lambda x: tf.repeat(x, 3, axis=0)),
    "repeat_by_size": ("B 3, B T", lambda x, y: tf.repeat(x, size(y, 1), axis=1)),
    "repeat_by_numbers": ("B 2, int B", lambda x, n: tf.repeat(x, n, axis=0)),
    "broadcast_to": ("B 1 3", lambda x: tf.broadcast_to(x, [size(x), 5, 3])),
    "broadcast_rows": ("B B, B", lambda x, y: x + y[:, None] * y),
    "broadcast_two": ("B T, B S", lambda x, y: x[:, :, None] * y[:, None]),
    "broadcast_number": ("B 4, T", lambda x, y: x + y, [{B: 3, T: 4}]),
    "broadcast_of_one": ("B 1, 3", lambda x, y: x + y),
    "outer_sum": ("B 3", lambda x: x[:, None] + x[None]),
    "meshgrid": ("B, T", lambda x, y: tf.meshgrid(x, y)),
    "flat_and_back": ("B T 4", lambda x: tf.reshape(tf.reshape(x, [-1, 4]) + 1.0, tf.shape(x))),
    "broadcast_dynamic": ("B 4", lambda x: tf.broadcast_dynamic_shape(tf.shape(x), [4])),
    "pad_numbers": ("B 3", lambda x: tf.pad(x, [[1, 2], [0, 3]])),
    "pad_batch_size": ("B 3", lambda x: tf.pad(x, [[0, size(x)], [0, 1]])),
    "pad_reflect": ("B 3", lambda x: tf.pad(x, [[0, 0], [2, 1]], "REFLECT")),
    "pad_symmetric": ("B 3", lambda x: tf.pad(x, [[1, 0], [2, 1]], "SYMMETRIC")),
    "pad_value": ("B T", lambda x: tf.pad(x, [[0, 1], [1, 1]], constant_values=2.0)),
    "gradient_of_pad": ("B T", gradient_of(lambda x: tf.pad(x, [[1, 2], [0, 3]]) ** 2)),
}

SLICES = {
    "rows": ("B 4", lambda x: (x[1:], x[:-1], x[:1], x[0], x[-1])),
    "columns": ("B 4", lambda x: (x[:, 1:], x[:, :-1], x[:, ::2], x[:, -2:], x[:, 1])),
    "unknown_columns": ("B T", lambda x: (x[:, 1:], x[:, :-1], x[:, ::2], x[:, -1])),
    "behind_the_end": ("B 4", lambda x: (x[:, 3:9], x[:, 5:], x[7:], x[:100])),
    "reverse": ("B 4", lambda x: (x[::-1], x[:, ::-1], x[:, 3:0:-1])),
    "steps": ("B 5", lambda x: (x[::2], x[1::2], x[:, 1:4:2], x[::3])),
    "ellipsis": ("B T 4", lambda x: (x[..., 0], x[..., None], x[0, ..., 1:])),
    "new_axes": ("B T 4", lambda x: (x[None, :, None], x[:, None, ..., None])),
    "halves": ("B 3", rest_of),
    "by_size": ("B 3", lambda x: (x[: size(x)], x[size(x) :], x[: size(x) - 1])),
    "of_joined": ("B 3", lambda x: tf.concat([x, x, x], 0)[size(x) :]),
    "middle": ("B 3", lambda x: tf.concat([x, x, x], 0)[size(x) : 2 * size(x)]),
    "inverted": ("B 3", lambda x: tf.concat([x, x, x], 0)[2 * size(x) : size(x)]),
    "last_by_size": ("B 3", lambda x: x[-size(x) :]),
    "last_half": ("B 3", lambda x: x[-(size(x) // 2) :]),
    "by_other_size": ("B 4, B T", lambda x, y: x[:, : size(y, 1)]),
    "by_larger_size": ("B T, B T", lambda x, y: x[:, : size(x, 1) * 2]),
    "by_number": ("B 4, int", lambda x, n: (x[:n], x[:, n:])),
    "by_negative_number": ("B 4, int", lambda x, n: x[: n - 4]),
    "at_number": ("B 4, int", lambda x, n: (x[n * 0], x[:, n])),
    "slice": ("B 4", lambda x: tf.slice(x, [0, 1], [-1, 2])),
    "slice_to_end": ("B T 4", lambda x: tf.slice(x, [0, 1, 0], [size(x), -1, 2])),
    "slice_at_size": ("B 4", lambda x: tf.slice(x, [size(x) // 2, 0], [-1, -1])),
    "slice_by_data": ("B 4, int", lambda x, n: tf.slice(x, [0, 0], [-1, n * 1 - 1])),
    "gradient_of_slice": ("B T", gradient_of(lambda x: x[1:, ::2] ** 2)),
    "sizes_of_slices": ("B T 4", lambda x: (tf.shape(x)[1:], tf.shape(x)[::-1], tf.shape(x)[-2:])),
    "boolean_mask": ("B 3, int B", lambda x, m: tf.boolean_mask(x, m > 0)),
    "where_places": ("B T", lambda x: tf.where(x > 1.0)),
}

JOINS = {
    "concat": ("B T, B 3", lambda x, y: tf.concat([x, y], 1)),
    "concat_rows": ("B 3", lambda x: tf.concat([x, x[:1], tf.zeros([2, 3])], 0)),
    "concat_last": ("B 2 T, B 2 S", lambda x, y: tf.concat([x, y, x], -1)),
    "gradient_of_concat": ("B T, B 3", gradient_of(lambda x, y: tf.concat([x, y], 1) ** 2)),
    "stack": ("B T", lambda x: (tf.stack([x, x]), tf.stack([x, x, x], -1))),
    "unstack": ("B 3 2", lambda x: (tf.unstack(x, axis=1), tf.unstack(x, axis=-1))),
    "split": ("B 6", lambda x: tf.split(x, 3, axis=1)),
    "split_rows": ("B 3", lambda x: tf.split(x, 2), EVEN),
    "split_tiled": ("B 3", lambda x: tf.split(tf.tile(x, [2, 1]), 2)),
    "split_sizes": ("B 6", lambda x: tf.split(x, [2, -1, 1], axis=1)),
    "split_by_size": ("B 3", lambda x: tf.split(tf.tile(x, [3, 1]), [size(x), -1])),
    "split_unknown": ("B T", lambda x: tf.split(x, [1, -1], axis=1)),
    "gradient_of_split": ("B 6", gradient_of(lambda x: tf.split(x, 3, axis=1)[1])),
    "dynamic_stitch": (
        "B 3",
        lambda x: tf.dynamic_stitch([[0, 2], [1]], [x[:2, 0], x[:1, 1]]),
        EVEN,
    ),
    "partition": ("B 2, int B", lambda x, n: tf.dynamic_partition(x, n, 3)),
}

GATHERS = {
    "gather": ("5 3, int B", lambda x, n: tf.gather(x, n)),
    "gather_columns": ("B 4, int T", lambda x, n: tf.gather(x, n, axis=1)),
    "gather_pairs": ("B 4, int T 2", lambda x, n: tf.gather(x, n, axis=-1)),
    "gather_batch": ("B 4 2, int B T", lambda x, n: tf.gather(x, n, batch_dims=1)),
    "gather_scalar": ("B 4, int", lambda x, n: tf.gather(x, n * 0)),
    "gather_batch_axis": ("B T 4, int B S", lambda x, n: tf.gather(x, n, axis=2, batch_dims=1)),
    "gather_nd": ("5 4 3, int B 2", lambda x, n: tf.gather_nd(x, n)),
    "gather_nd_batch": ("B 4 3, int B T 1", lambda x, n: tf.gather_nd(x, n, batch_dims=1)),
    "gradient_of_gather": ("5 3, int B", gradient_of(lambda x, n: tf.gather(x, n) ** 2)),
    "gradient_of_gather_nd": ("5 3, int B 1", gradient_of(lambda x, n: tf.gather_nd(x, n))),
    "scatter_nd": ("B 3, int B 1", lambda x, n: tf.scatter_nd(n, x, [6, 3])),
    "scatter_rows": ("B 3, int B 1", lambda x, n: tf.scatter_nd(n * 0, x, tf.shape(x))),
    "scatter_update": ("B 3, int B 1", lambda x, n: tf.tensor_scatter_nd_update(x, n * 0, x)),
    "segment_sum": ("B 3, int B", lambda x, n: tf.math.unsorted_segment_sum(x, n, 4)),
    "segment_of_pairs": (
        "B 3 2, int<1 B 3",
        lambda x, n: tf.math.unsorted_segment_max(x, n, size(x)),
    ),
    "sorted_segments": ("B 3", lambda x: tf.math.segment_sum(x, tf.range(size(x)) // 2)),
    "one_hot": (
        "int B T",
        lambda n: (tf.one_hot(n, 4), tf.one_hot(n, 4, axis=0), tf.one_hot(n, 4, axis=1)),
    ),
    "one_hot_of_size": ("int B", lambda n: tf.one_hot(n, size(n))),
    "unique": ("int B", lambda n: tf.unique(n)),
    "top_k": ("B 4", lambda x: (tf.math.top_k(x, 2), tf.math.top_k(x[0], 2))),
    "top_k_of_rows": ("B 4", lambda x: tf.math.top_k(tf.reshape(x, [-1]), size(x) // 2)),
    "top_k_deep": ("B T 4", lambda x: tf.math.top_k(x, 1)),
    "top_k_by_size": ("B T", lambda x: tf.math.top_k(x, size(x, 1))),
    "in_top_k": ("B 4, int B", lambda x, n: tf.math.in_top_k(n, x, 2)),
    "sort": ("B 4", lambda x: (tf.sort(x, axis=0), tf.argsort(x))),
    "arg_max": ("B T 4", lambda x: (tf.argmax(x, 0), tf.argmax(x, -1), tf.argmin(x, 1))),
}


NUMBERS = {
    "sizes": ("B T", lambda x: (tf.size(x), tf.rank(x), tf.shape(x), tf.shape(x, tf.int64))),
    "arithmetic": ("B T", lambda x: (size(x) * 2 - 1, -size(x), size(x) // 3, size(x) % 3)),
    "divided_sizes": ("B T", lambda x: (4 * size(x) // 2, (size(x) + 1) // 2, 7 // size(x))),
    "guarded": (
        "B",
        lambda x: (tf.maximum(size(x), 1), tf.minimum(size(x), 1), tf.maximum(size(x), 3)),
    ),
    "guarded_time": ("B T", lambda x: (tf.maximum(size(x, 1), 1), tf.minimum(size(x, 1), 2))),
    "negative_division": ("B", lambda x: (-size(x) // 2, (-7) // size(x), -size(x) % 4)),
    "truncated": ("B T", lambda x: tf.truncatediv(tf.shape(x) - 5, 2)),
    "truncated_constants": ("B", lambda x: tf.truncatediv(tf.constant([-7, 7]), 2) + size(x)),
    "powers": ("B", lambda x: size(x) ** 2),
    "ranges": ("B", lambda x: (tf.range(size(x)), tf.range(1, size(x)), tf.range(2 * size(x)))),
    "stepped_range": ("B", lambda x: (tf.range(0, size(x), 2), tf.range(size(x), 0, -1))),
    "range_to_data": ("int", lambda n: (tf.range(n), tf.range(n, n + 3))),
    "constants": ("B", lambda x: (tf.range(4), tf.zeros([3], tf.int32), tf.fill([2], size(x)))),
    "ones_like": (
        "B T",
        lambda x: (tf.ones_like(x), tf.zeros_like(tf.shape(x)), tf.ones_like(size(x))),
    ),
    "fill": ("B T", lambda x: (tf.fill([size(x), 3], 2.0), tf.zeros(tf.shape(x)), tf.eye(size(x)))),
    "casts": ("B T", lambda x: (tf.cast(tf.shape(x), tf.int64), tf.cast(tf.shape(x), tf.float32))),
    "narrow_cast": ("B", lambda x: tf.cast(tf.cast(size(x) + 254, tf.uint8), tf.int32)),
    "narrow_constants": (
        "B",
        lambda x: (tf.constant(200, tf.uint8) + tf.constant(100, tf.uint8), x),
    ),
    "wrapped_product": ("B", lambda x: (tf.constant(1664525) * tf.constant(1013904223), x)),
    "wrapped_by_batch": ("B", lambda x: size(x) * 1000000007),
    "narrowed_constant": ("B", lambda x: (tf.cast(tf.constant(2**40 + 3, tf.int64), tf.int32), x)),
    "large_quotient": ("B", lambda x: (tf.truncatediv(tf.constant(2**60 + 1, tf.int64), 1), x)),
    "mean_of_sizes": ("B", lambda x: tf.reduce_sum(x) / tf.cast(size(x), tf.float32)),
    "chosen_size": ("B, int", lambda x, n: tf.zeros([tf.where(n > 0, size(x), size(x))])),
    "chosen_sizes": ("B, int T", lambda x, n: tf.where(n > 0, size(x), size(x))),
    "answers_of_constants": (
        "B, int",
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
    ),
    "minus_one_by_data": ("B 3, int", lambda x, n: tf.reshape(x, [n * 0 - 1, 3])),
    "same_size_twice": (
        "B, B T",
        lambda x, y: tf.zeros([size(x) * size(y, 1) - size(y, 1) * size(x) + 3]),
    ),
    "sizes_of_reductions": (
        "B T",
        lambda x: (tf.reduce_max(tf.shape(x)), tf.reduce_prod(tf.shape(x))),
    ),
    "sizes_of_unknown_rank": (
        "B 3 2 2, int T",
        lambda x, n: tf.reshape(tf.shape(x), 2 * tf.ones_like(n)),
        [{B: 3, T: 2}],
    ),
    "invert_permutation": (
        "B T 4",
        lambda x: tf.transpose(x, tf.math.invert_permutation([2, 0, 1])),
    ),
    "random": ("B T", lambda x: (tf.random.normal(tf.shape(x)), tf.random.uniform([size(x), 3]))),
    "random_stateless": (
        "B T",
        lambda x: (
            tf.random.stateless_normal([size(x), 2], [1, 2]),
            tf.random.stateless_uniform(tf.shape(x), [1, 2], 0, 9, tf.int32),
        ),
    ),
    "random_gamma": (
        "B",
        lambda x: (
            tf.random.gamma([2], x),
            tf.random.stateless_gamma(tf.shape(x), [1, 2], x),
            tf.random.poisson([3], x),
        ),
    ),
    "random_categorical": ("B 4", lambda x: tf.random.categorical(x, 5)),
    "random_truncated": (
        "B T",
        lambda x: (
            tf.random.truncated_normal(tf.shape(x)),
            tf.random.stateless_binomial(tf.shape(x), [1, 2], 3.0, 0.5),
            tf.random.shuffle(x),
        ),
    ),
    "linspace": ("B", lambda x: tf.linspace(0.0, 1.0, size(x))),
    "histogram": (
        "int B",
        lambda n: (tf.math.bincount(n), tf.math.bincount(n, minlength=4, maxlength=4)),
    ),
    "confusion": ("int B, int B", lambda n, m: tf.math.confusion_matrix(n, m)),
    "sequence_mask": ("int B", lambda n: (tf.sequence_mask(n), tf.sequence_mask(n, 5))),
    "one_of_several": ("B", lambda x: tf.zeros([size(x), 1, 3]) + tf.zeros([1, 4, 1])),
}
