"""Shape arithmetic, reshapes, slices, joins, gathers: functions for `test_inference`."""

from __future__ import annotations

import tensorflow as tf

from unit.graph.inference_case import EVEN, B, S, T, case, f32, gradient_of, i32, size


def rest_of(x):
    n = size(x)
    first = x[: n // 2]
    return first, x[n // 2 :], size(first) + n


RESHAPES = [
    case("merge", lambda x: tf.reshape(x, [-1, 12]), f32(B, 3, 4)),
    case("flatten", lambda x: tf.reshape(x, [-1]), f32(B, T, 4)),
    case("split_axis", lambda x: tf.reshape(x, [-1, 2, 6]), f32(B, 12)),
    case("rows_to_columns", lambda x: tf.reshape(x, [6, -1]), f32(B, 3, 4)),
    case("unflatten", lambda x: tf.reshape(x, [size(x), size(x, 1), 2, -1]), f32(B, T, 4)),
    case("reshape_by_shape", lambda x: tf.reshape(x, tf.reverse(tf.shape(x), [0])), f32(B, T)),
    case("reshape_by_product", lambda x: tf.reshape(x, [size(x) * size(x, 1), 4]), f32(B, T, 4)),
    case("reshape_by_size", lambda x: tf.reshape(x, [tf.size(x) // 4, 4]), f32(B, T, 4)),
    case("reshape_half", lambda x: tf.reshape(x, [size(x) // 2, -1]), f32(B, 3), runs=EVEN),
    case(
        "reshape_by_reduced",
        lambda x: tf.reshape(x, [tf.reduce_prod(tf.shape(x)[:-1]), -1]),
        f32(B, T, 4),
    ),
    case("expand_dims", lambda x: (tf.expand_dims(x, -1), tf.expand_dims(x, 1)), f32(B, 3)),
    case("expand_dims_before", lambda x: tf.expand_dims(x, -3), f32(B, 3)),
    case("squeeze", lambda x: (tf.squeeze(x, -1), tf.squeeze(x, [1, 3])), f32(B, 1, 3, 1)),
    case("squeeze_all", lambda x: tf.squeeze(x), f32(B, 1, 3)),
    case("transpose", lambda x: tf.transpose(x, [2, 0, 1]), f32(B, T, 4)),
    case("transpose_all", lambda x: tf.transpose(x), f32(B, T, 4)),
    case("tile", lambda x: tf.tile(x, [2, 1, 3]), f32(B, T, 4)),
    case("tile_by_size", lambda x: tf.tile(x, [size(x), 2]), f32(B, 2)),
    case("repeat", lambda x: tf.repeat(x, 3, axis=0), f32(B, 4)),
    case("repeat_by_size", lambda x, y: tf.repeat(x, size(y, 1), axis=1), f32(B, 3), f32(B, T)),
    case("repeat_by_numbers", lambda x, n: tf.repeat(x, n, axis=0), f32(B, 2), i32(B)),
    case("broadcast_to", lambda x: tf.broadcast_to(x, [size(x), 5, 3]), f32(B, 1, 3)),
    case("broadcast_rows", lambda x, y: x + y[:, None] * y, f32(B, B), f32(B)),
    case("broadcast_two", lambda x, y: x[:, :, None] * y[:, None], f32(B, T), f32(B, S)),
    case("broadcast_number", lambda x, y: x + y, f32(B, 4), f32(T), runs=[{B: 3, T: 4}]),
    case("broadcast_of_one", lambda x, y: x + y, f32(B, 1), f32(3)),
    case("outer_sum", lambda x: x[:, None] + x[None], f32(B, 3)),
    case("meshgrid", lambda x, y: tf.meshgrid(x, y), f32(B), f32(T)),
    case(
        "flat_and_back",
        lambda x: tf.reshape(tf.reshape(x, [-1, 4]) + 1.0, tf.shape(x)),
        f32(B, T, 4),
    ),
    case("broadcast_dynamic", lambda x: tf.broadcast_dynamic_shape(tf.shape(x), [4]), f32(B, 4)),
    case("pad_numbers", lambda x: tf.pad(x, [[1, 2], [0, 3]]), f32(B, 3)),
    case("pad_batch_size", lambda x: tf.pad(x, [[0, size(x)], [0, 1]]), f32(B, 3)),
    case("pad_reflect", lambda x: tf.pad(x, [[0, 0], [2, 1]], "REFLECT"), f32(B, 3)),
    case("pad_symmetric", lambda x: tf.pad(x, [[1, 0], [2, 1]], "SYMMETRIC"), f32(B, 3)),
    case("pad_value", lambda x: tf.pad(x, [[0, 1], [1, 1]], constant_values=2.0), f32(B, T)),
    case("gradient_of_pad", gradient_of(lambda x: tf.pad(x, [[1, 2], [0, 3]]) ** 2), f32(B, T)),
]

SLICES = [
    case("rows", lambda x: (x[1:], x[:-1], x[:1], x[0], x[-1]), f32(B, 4)),
    case("columns", lambda x: (x[:, 1:], x[:, :-1], x[:, ::2], x[:, -2:], x[:, 1]), f32(B, 4)),
    case("unknown_columns", lambda x: (x[:, 1:], x[:, :-1], x[:, ::2], x[:, -1]), f32(B, T)),
    case("behind_the_end", lambda x: (x[:, 3:9], x[:, 5:], x[7:], x[:100]), f32(B, 4)),
    case("reverse", lambda x: (x[::-1], x[:, ::-1], x[:, 3:0:-1]), f32(B, 4)),
    case("steps", lambda x: (x[::2], x[1::2], x[:, 1:4:2], x[::3]), f32(B, 5)),
    case("ellipsis", lambda x: (x[..., 0], x[..., None], x[0, ..., 1:]), f32(B, T, 4)),
    case("new_axes", lambda x: (x[None, :, None], x[:, None, ..., None]), f32(B, T, 4)),
    case("halves", rest_of, f32(B, 3)),
    case("by_size", lambda x: (x[: size(x)], x[size(x) :], x[: size(x) - 1]), f32(B, 3)),
    case("of_joined", lambda x: tf.concat([x, x, x], 0)[size(x) :], f32(B, 3)),
    case("middle", lambda x: tf.concat([x, x, x], 0)[size(x) : 2 * size(x)], f32(B, 3)),
    case("inverted", lambda x: tf.concat([x, x, x], 0)[2 * size(x) : size(x)], f32(B, 3)),
    case("last_by_size", lambda x: x[-size(x) :], f32(B, 3)),
    case("last_half", lambda x: x[-(size(x) // 2) :], f32(B, 3)),
    case("by_other_size", lambda x, y: x[:, : size(y, 1)], f32(B, 4), f32(B, T)),
    case("by_larger_size", lambda x, y: x[:, : size(x, 1) * 2], f32(B, T), f32(B, T)),
    case("by_number", lambda x, n: (x[:n], x[:, n:]), f32(B, 4), i32()),
    case("by_negative_number", lambda x, n: x[: n - 4], f32(B, 4), i32()),
    case("at_number", lambda x, n: (x[n * 0], x[:, n]), f32(B, 4), i32()),
    case("slice", lambda x: tf.slice(x, [0, 1], [-1, 2]), f32(B, 4)),
    case("slice_to_end", lambda x: tf.slice(x, [0, 1, 0], [size(x), -1, 2]), f32(B, T, 4)),
    case("slice_at_size", lambda x: tf.slice(x, [size(x) // 2, 0], [-1, -1]), f32(B, 4)),
    case("slice_by_data", lambda x, n: tf.slice(x, [0, 0], [-1, n * 1 - 1]), f32(B, 4), i32()),
    case("gradient_of_slice", gradient_of(lambda x: x[1:, ::2] ** 2), f32(B, T)),
    case(
        "sizes_of_slices",
        lambda x: (tf.shape(x)[1:], tf.shape(x)[::-1], tf.shape(x)[-2:]),
        f32(B, T, 4),
    ),
    case("boolean_mask", lambda x, m: tf.boolean_mask(x, m > 0), f32(B, 3), i32(B)),
    case("where_places", lambda x: tf.where(x > 1.0), f32(B, T)),
]

JOINS = [
    case("concat", lambda x, y: tf.concat([x, y], 1), f32(B, T), f32(B, 3)),
    case("concat_rows", lambda x: tf.concat([x, x[:1], tf.zeros([2, 3])], 0), f32(B, 3)),
    case("concat_last", lambda x, y: tf.concat([x, y, x], -1), f32(B, 2, T), f32(B, 2, S)),
    case(
        "gradient_of_concat",
        gradient_of(lambda x, y: tf.concat([x, y], 1) ** 2),
        f32(B, T),
        f32(B, 3),
    ),
    case("stack", lambda x: (tf.stack([x, x]), tf.stack([x, x, x], -1)), f32(B, T)),
    case("unstack", lambda x: (tf.unstack(x, axis=1), tf.unstack(x, axis=-1)), f32(B, 3, 2)),
    case("split", lambda x: tf.split(x, 3, axis=1), f32(B, 6)),
    case("split_rows", lambda x: tf.split(x, 2), f32(B, 3), runs=EVEN),
    case("split_tiled", lambda x: tf.split(tf.tile(x, [2, 1]), 2), f32(B, 3)),
    case("split_sizes", lambda x: tf.split(x, [2, -1, 1], axis=1), f32(B, 6)),
    case("split_by_size", lambda x: tf.split(tf.tile(x, [3, 1]), [size(x), -1]), f32(B, 3)),
    case("split_unknown", lambda x: tf.split(x, [1, -1], axis=1), f32(B, T)),
    case("gradient_of_split", gradient_of(lambda x: tf.split(x, 3, axis=1)[1]), f32(B, 6)),
    case(
        "dynamic_stitch",
        lambda x: tf.dynamic_stitch([[0, 2], [1]], [x[:2, 0], x[:1, 1]]),
        f32(B, 3),
        runs=EVEN,
    ),
    case("partition", lambda x, n: tf.dynamic_partition(x, n, 3), f32(B, 2), i32(B)),
]

GATHERS = [
    case("gather", lambda x, n: tf.gather(x, n), f32(5, 3), i32(B)),
    case("gather_columns", lambda x, n: tf.gather(x, n, axis=1), f32(B, 4), i32(T)),
    case("gather_pairs", lambda x, n: tf.gather(x, n, axis=-1), f32(B, 4), i32(T, 2)),
    case("gather_batch", lambda x, n: tf.gather(x, n, batch_dims=1), f32(B, 4, 2), i32(B, T)),
    case("gather_scalar", lambda x, n: tf.gather(x, n * 0), f32(B, 4), i32()),
    case(
        "gather_batch_axis",
        lambda x, n: tf.gather(x, n, axis=2, batch_dims=1),
        f32(B, T, 4),
        i32(B, S),
    ),
    case("gather_nd", lambda x, n: tf.gather_nd(x, n), f32(5, 4, 3), i32(B, 2)),
    case(
        "gather_nd_batch", lambda x, n: tf.gather_nd(x, n, batch_dims=1), f32(B, 4, 3), i32(B, T, 1)
    ),
    case("gradient_of_gather", gradient_of(lambda x, n: tf.gather(x, n) ** 2), f32(5, 3), i32(B)),
    case(
        "gradient_of_gather_nd", gradient_of(lambda x, n: tf.gather_nd(x, n)), f32(5, 3), i32(B, 1)
    ),
    case("scatter_nd", lambda x, n: tf.scatter_nd(n, x, [6, 3]), f32(B, 3), i32(B, 1)),
    case("scatter_rows", lambda x, n: tf.scatter_nd(n * 0, x, tf.shape(x)), f32(B, 3), i32(B, 1)),
    case(
        "scatter_update",
        lambda x, n: tf.tensor_scatter_nd_update(x, n * 0, x),
        f32(B, 3),
        i32(B, 1),
    ),
    case("segment_sum", lambda x, n: tf.math.unsorted_segment_sum(x, n, 4), f32(B, 3), i32(B)),
    case(
        "segment_of_pairs",
        lambda x, n: tf.math.unsorted_segment_max(x, n, size(x)),
        f32(B, 3, 2),
        i32(B, 3, high=1),
    ),
    case("sorted_segments", lambda x: tf.math.segment_sum(x, tf.range(size(x)) // 2), f32(B, 3)),
    case(
        "one_hot",
        lambda n: (tf.one_hot(n, 4), tf.one_hot(n, 4, axis=0), tf.one_hot(n, 4, axis=1)),
        i32(B, T),
    ),
    case("one_hot_of_size", lambda n: tf.one_hot(n, size(n)), i32(B)),
    case("unique", lambda n: tf.unique(n), i32(B)),
    case("top_k", lambda x: (tf.math.top_k(x, 2), tf.math.top_k(x[0], 2)), f32(B, 4)),
    case("top_k_of_rows", lambda x: tf.math.top_k(tf.reshape(x, [-1]), size(x) // 2), f32(B, 4)),
    case("top_k_deep", lambda x: tf.math.top_k(x, 1), f32(B, T, 4)),
    case("top_k_by_size", lambda x: tf.math.top_k(x, size(x, 1)), f32(B, T)),
    case("in_top_k", lambda x, n: tf.math.in_top_k(n, x, 2), f32(B, 4), i32(B)),
    case("sort", lambda x: (tf.sort(x, axis=0), tf.argsort(x)), f32(B, 4)),
    case("arg_max", lambda x: (tf.argmax(x, 0), tf.argmax(x, -1), tf.argmin(x, 1)), f32(B, T, 4)),
]
