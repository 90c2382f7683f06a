"""Chains in which a state meets another: sums over the batch that are used again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from unit.graph.ops.op_case import PARTIAL, B, OpCase, avoiding, case, f32, loose, positive

# Of a partial sum of shape [3, 4].
OF_PARTIAL: dict[str, Callable[[Any], Any]] = {
    "itself": tf.identity,
    "plus_itself": lambda p: p + p,
    "times_number": lambda p: 3.0 * p,
    "by_number": lambda p: p / 4.0,
    "number_by": lambda p: 1.0 / (10.0 + p * p),
    "plus_number": lambda p: p + 5.0,
    "minus_number": lambda p: 2.0 - p,
    "negative": tf.negative,
    "square": tf.square,
    "times_itself": lambda p: p * p,
    "absolute": tf.abs,
    "exponential": tf.exp,
    "to_double": lambda p: tf.cast(p, tf.float64),
    "to_half_and_back": lambda p: tf.cast(tf.cast(tf.round(p), tf.float16), tf.float32),
    "to_int": lambda p: tf.cast(tf.round(p * 10) / 10 + 0.01, tf.int32),
    "reshape": lambda p: tf.reshape(p, [2, 6]),
    "transpose": tf.transpose,
    "expand": lambda p: p[None] + 1.0,
    "sum": tf.reduce_sum,
    "sum_of_rows": lambda p: tf.reduce_sum(p, 1),
    "mean": lambda p: tf.reduce_mean(p, 0),
    "max": lambda p: tf.reduce_max(p, 1),
    "concat": lambda p: tf.concat([p, 2 * p], 0),
    "concat_with_constant": lambda p: tf.concat([p, tf.ones([1, 4])], 0),
    "stack": lambda p: tf.stack([p, p * 2], 1),
    "stack_with_constant": lambda p: tf.stack([p, tf.ones([3, 4])]),
    "slice": lambda p: p[1:, ::2],
    "tile": lambda p: tf.tile(p, [2, 1]),
    "broadcast": lambda p: tf.broadcast_to(p, [2, 3, 4]),
    "pad": lambda p: tf.pad(p, [[1, 0], [0, 2]]),
    "pad_with_number": lambda p: tf.pad(p, [[1, 0], [0, 2]], constant_values=2.0),
    "roll": lambda p: tf.roll(p, 1, 0),
    "reverse": lambda p: tf.reverse(p, [0]),
    "gather": lambda p: tf.gather(p, [2, 0]),
    "cumsum": tf.cumsum,
    "split": lambda p: tf.split(p, 2, 1),
    "unstack": tf.unstack,
    "add_n": lambda p: tf.add_n([p, 2 * p, p * 3]),
    "add_n_with_constant": lambda p: tf.add_n([p, tf.ones([3, 4])]),
    "greater": lambda p: tf.cast(p > 0.3, tf.float32) * p,
    "maximum": lambda p: tf.maximum(p, 0.0),
    "select": lambda p: tf.where(p > 0, p, -2.0 * p),
    "select_by_constant": lambda p: tf.where([True, False, True, False], p, 0.0),
    "select_by_constant_else": lambda p: tf.where([True, False, True, False], p, 1.0),
    "zeros_like": lambda p: tf.zeros_like(p) + p,
    "ones_like": lambda p: tf.ones_like(p) * p,
    "softmax": tf.nn.softmax,
    "matmul_constant": lambda p: tf.matmul(p, tf.ones([4, 2])),
    "constant_matmul": lambda p: tf.matmul(tf.ones([2, 3]), p),
    "matmul_itself": lambda p: tf.matmul(p, p, transpose_b=True),
    "einsum": lambda p: tf.einsum("ij,kj->ik", p, tf.ones([2, 4])),
    "bias": lambda p: tf.nn.bias_add(p, tf.ones([4])),
    "shape_of": lambda p: p * tf.cast(tf.shape(p)[0], tf.float32),
    "stop_gradient": lambda p: p * tf.stop_gradient(p),
    "real": lambda p: tf.math.real(tf.complex(p, 2 * p) * (0 + 1j)),
    "l2_loss": tf.nn.l2_loss,
    "half_sum_and_count": lambda p: tf.reduce_sum(p) / tf.cast(tf.size(p), tf.float32),
    "segments": lambda p: tf.math.unsorted_segment_sum(p, [1, 0, 1], 2),
    "scatter": lambda p: tf.tensor_scatter_nd_add(tf.ones([5, 4]), [[1], [0], [1]], p),
    "clip": lambda p: tf.clip_by_value(p, -0.5, 0.5),
    "clip_by_norm": lambda p: tf.clip_by_norm(p, 0.5),
    "sign": lambda p: tf.sign(p) * p,
}
NO_GRADIENT = ("to_int", "to_half_and_back")

# Of samples [B, 4]: a number or row of the whole batch is used again for every sample.
OF_SAMPLES: dict[str, Callable[[Any], Any]] = {
    "minus_mean": lambda x: x - tf.reduce_mean(x, 0),
    "minus_mean_of_all": lambda x: x - tf.reduce_mean(x),
    "standardise": lambda x: (
        (x - tf.reduce_mean(x, 0)) / tf.sqrt(tf.math.reduce_variance(x, 0) + 0.1)
    ),
    "softmax_of_batch": lambda x: tf.nn.softmax(x, axis=0),
    "softmax_by_hand": lambda x: tf.exp(x) / tf.reduce_sum(tf.exp(x), 0, keepdims=True),
    "by_max": lambda x: x / (1.0 + tf.reduce_max(tf.abs(x), 0)),
    "minus_max_of_all": lambda x: x - tf.reduce_max(x),
    "minus_min": lambda x: x - tf.reduce_min(x, 0, keepdims=True),
    "by_sum": lambda x: x / (10.0 + tf.reduce_sum(x)),
    "times_sum_of_rows": lambda x: x * tf.reduce_sum(x, 1, keepdims=True),
    "plus_sum": lambda x: x + tf.reduce_sum(x, 0),
    "sum_plus_sum": lambda x: tf.reduce_sum(x, 0) + tf.reduce_sum(x * x, 0),
    "sum_minus_max": lambda x: tf.reduce_sum(x, 0) - tf.reduce_max(x, 0),
    "sum_times_sum": lambda x: tf.reduce_sum(x, 0) * tf.reduce_sum(x * x, 0),
    "max_plus_max": lambda x: tf.reduce_max(x, 0) + tf.reduce_max(-x, 0),
    "max_of_maxima": lambda x: tf.reduce_max(tf.reduce_max(x, 0)),
    "maximum_of_maxima": lambda x: tf.maximum(tf.reduce_max(x, 0), tf.reduce_max(2 * x, 0)),
    "sum_of_maxima": lambda x: tf.reduce_sum(tf.reduce_max(x, 0)),
    "min_of_maxima": lambda x: tf.reduce_min(tf.reduce_max(x, 0)),
    "negative_of_max": lambda x: -tf.reduce_max(x, 0),
    "max_times_number": lambda x: -2.0 * tf.reduce_max(x, 0),
    "max_joined_with_sum": lambda x: tf.concat([tf.reduce_max(x, 0), tf.reduce_sum(x, 0)], 0),
    "max_stacked_with_min": lambda x: tf.stack([tf.reduce_max(x, 0), tf.reduce_min(x, 0)]),
    "max_reshaped": lambda x: tf.reshape(tf.reduce_max(x, 0), [2, 2]),
    "mean_by_mean": lambda x: tf.reduce_mean(x, 0) / (9.0 + tf.reduce_mean(x * x, 0)),
    "whitened": lambda x: tf.matmul(x, tf.matmul(x, x, transpose_a=True)),
    "covariance": lambda x: tf.matmul(
        x - tf.reduce_mean(x, 0), x - tf.reduce_mean(x, 0), transpose_a=True
    ),
    "back_by_matmul": lambda x: tf.matmul(x, tf.reduce_sum(x, 0)[:, None]),
    "sum_broadcast_to_samples": lambda x: tf.broadcast_to(tf.reduce_sum(x, 0), tf.shape(x)),
    "sum_tiled_to_samples": lambda x: tf.tile(
        tf.reduce_sum(x, 0, keepdims=True), [tf.shape(x)[0], 1]
    ),
    "sum_under_samples": lambda x: tf.concat([x, tf.reduce_sum(x, 0, keepdims=True)], 0),
    "mean_beside_samples": lambda x: tf.concat([x, tf.zeros_like(x) + tf.reduce_mean(x, 0)], 1),
    "stacked_with_sum": lambda x: tf.stack([x, tf.zeros_like(x) + tf.reduce_sum(x, 0)]),
    "count": lambda x: tf.reduce_sum(tf.ones_like(x), 0) + x,
    "loss_and_samples": lambda x: (tf.reduce_mean(x * x), tf.sqrt(1 + x * x), tf.reduce_max(x)),
    "transposed_and_back": lambda x: tf.transpose(tf.transpose(x) - tf.reduce_mean(x, 0)[:, None]),
    "weight_of_batch": lambda x: tf.reduce_sum(x * tf.nn.softmax(tf.reduce_sum(x, 1))[:, None], 0),
    "clipped_by_norm_of_batch": lambda x: x * tf.minimum(1.0, 1.0 / tf.norm(x)),
}


# One operation over all samples: it may be gathered.
OVER_SAMPLES = ("softmax_of_batch", "weight_of_batch", "sum_under_samples")


ONE = f32(3, 4, states=(PARTIAL,))
SUM = f32(4, states=(PARTIAL,))

# Two or more arguments in every mixture of states.
MIXED: tuple[OpCase, ...] = (
    case("partial_plus_partial", [ONE, ONE], lambda p, q: p + q),
    case("partial_minus_partial", [ONE, ONE], lambda p, q: 2 * p - q),
    case("partial_times_partial", [ONE, ONE], lambda p, q: p * q),
    case("partial_matmul_partial", [ONE, f32(4, 2, states=(PARTIAL,))], tf.matmul),
    case("partial_by_replicated", [ONE, f32(4, values=positive)], lambda p, y: p / y),
    case("partial_times_replicated", [ONE, f32(3, 1)], lambda p, y: p * y),
    case("partial_plus_replicated", [ONE, f32(4)], lambda p, y: p + y),
    case("partial_matmul_any", [ONE, f32(4, B)], tf.matmul),
    case("any_matmul_partial", [f32(B, 3), ONE], tf.matmul),
    case("any_plus_partial", [f32(B, 4), SUM], lambda x, p: x + p),
    case("any_times_partial", [f32(B, 4), SUM], lambda x, p: x * p),
    case("any_minus_partial", [f32(B, 4), SUM], lambda x, p: tf.tanh(x - p)),
    case("column_plus_partial", [f32(4, B), f32(4, 1, states=(PARTIAL,))], lambda x, p: x + p),
    case("select_of_any_and_partial", [f32(B, 4), SUM], lambda x, p: tf.where(x > 0, x, p)),
    case("sum_of_all", "B 4, B 4, B 4", lambda x, y, z: tf.add_n([x, y, z]), expect=avoiding()),
    case("concat_of_all", "B 4, B 2", lambda x, y: tf.concat([x, y], 1), expect=avoiding()),
    case("stack_of_all", "B 4, B 4", lambda x, y: tf.stack([x, y]), expect=avoiding()),
    case("products_of_all", "B 4, B 4, B 4", lambda x, y, z: x * y + z, expect=avoiding()),
    case("sums_of_products", "B 4, B 4", lambda x, y: tf.reduce_sum(x * y, 0), expect=avoiding()),
    case("sum_of_cube", "B 3 3", lambda x: tf.reduce_sum(x * 2, [0, 1]) + tf.reduce_sum(x, [0, 2])),
    loose("square_of_batches", "B B, B 1", lambda x, y: tf.reduce_mean(x * y)),
    case(
        "loss_with_weights",
        "B 4, 4 2, B 2",
        lambda x, w, y: tf.reduce_mean((tf.matmul(x, w) - y) ** 2),
        expect=avoiding(),
    ),
)

CASES: tuple[OpCase, ...] = (
    *(
        case(f"partial_{name}", [ONE], fn, gradient=name not in NO_GRADIENT, tolerance=3e-5)
        for name, fn in OF_PARTIAL.items()
    ),
    *(
        case(
            f"batch_{name}",
            "B 4",
            fn,
            tolerance=3e-5,
            expect="any" if name in OVER_SAMPLES else "sharded",
        )
        for name, fn in OF_SAMPLES.items()
    ),
    *MIXED,
)
