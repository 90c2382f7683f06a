"""Sums of segments, scattered updates, counts and searches."""

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
    States,
    Values,
    avoiding,
    below,
    case,
    distinct,
    f32,
    i32,
    ints,
    loose,
    normal,
    positive,
    sorted_ints,
)

UNSORTED: dict[str, tuple[Callable[..., Any], Values]] = {
    "sum": (tf.math.unsorted_segment_sum, normal),
    "mean": (tf.math.unsorted_segment_mean, normal),
    "sqrt_n": (tf.math.unsorted_segment_sqrt_n, normal),
    "max": (tf.math.unsorted_segment_max, normal),
    "min": (tf.math.unsorted_segment_min, distinct),
    "prod": (tf.math.unsorted_segment_prod, positive),
}
SORTED: dict[str, tuple[Callable[..., Any], Values]] = {
    "sum": (tf.math.segment_sum, normal),
    "mean": (tf.math.segment_mean, normal),
    "max": (tf.math.segment_max, distinct),
    "min": (tf.math.segment_min, distinct),
    "prod": (tf.math.segment_prod, positive),
}

# Of a tensor, indices and updates.
UPDATES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "add": tf.tensor_scatter_nd_add,
    "sub": tf.tensor_scatter_nd_sub,
    "max": tf.tensor_scatter_nd_max,
    "min": tf.tensor_scatter_nd_min,
}


def rows_and_segments(states: States) -> str:
    """Expect that sums of both sharded along the samples, or of a sharded column, stay apart."""
    rows, segments = states
    return "sharded" if segments in (0, None) and rows != "partial" else "any"


def unsorted_segments(name: str) -> OpCase:
    fn, values = UNSORTED[name]
    additive = name == "sum"

    def draw(draw: Draw) -> Drawn:
        shape, segments = draw(
            st.sampled_from([((B, 3), (B,)), ((B,), (B,)), ((B, 2, 3), (B, 2)), ((2, B), (2, B))])
        )
        low = draw(st.sampled_from([0, -1]))
        args = (f32(*shape, values=values), i32(*segments, values=ints(low, 4)))
        expect = rows_and_segments if additive else "any"
        return Drawn(lambda x, i: fn(x, i, 5), args, expect)

    return OpCase(f"unsorted_segment_{name}", draw)


def sorted_segments(name: str) -> OpCase:
    fn, values = SORTED[name]

    def draw(draw: Draw) -> Drawn:
        shape = draw(st.sampled_from([(B, 3), (B,), (B, 2, 3)]))
        args = (f32(*shape, values=values), i32(B, values=sorted_ints(0, 4)))
        return Drawn(fn, args, "any")

    return OpCase(f"segment_{name}", draw)


def segments_of_samples(draw: Draw) -> Drawn:
    """As many segments as samples: messages between the nodes of a graph."""

    def fn(x: Any, sources: Any, targets: Any) -> Any:
        return tf.math.unsorted_segment_sum(tf.gather(x, sources), targets, tf.shape(x)[0])

    edges = below(B, 6)
    return Drawn(fn, (f32(B, 3), edges, edges), "any")


def scatter_nd(draw: Draw) -> Drawn:
    """Rows of the batch to places of a fixed table, several to one place."""
    indices, updates = draw(
        st.sampled_from(
            [((B, 1), (B, 3)), ((B, 2), (B,)), ((B, 2, 1), (B, 2, 3)), ((4, 1), (4, B))]
        )
    )
    shape = (5, 6) if indices[-1] == 2 and updates == (B,) else (5, 3)

    def fn(i: Any, x: Any) -> Any:
        wide = tf.shape(x)[1] if updates == (4, B) else shape[1]
        return tf.scatter_nd(i, x, [shape[0], wide])

    args = (i32(*indices, values=ints(0, 3)), f32(*updates))
    return Drawn(fn, args, "any")


def scatter_update(name: str) -> OpCase:
    fn = UPDATES[name]

    def draw(draw: Draw) -> Drawn:
        # Updates of a table by samples, of samples by a table, of columns.
        table, indices, updates = draw(
            st.sampled_from(
                [((5, 3), (B, 1), (B, 3)), ((B, 3), (2, 1), (2, 3)), ((5, B), (4, 1), (4, B))]
            )
        )
        high = 1 if table[0] == B else 5
        args = (f32(*table), i32(*indices, values=ints(0, high)), f32(*updates))
        return Drawn(fn, args, "any")

    return OpCase(f"tensor_scatter_{name}", draw)


def unlike_rows(rng: Any, shape: tuple[int, ...], batch: int) -> Any:
    """Indices of rows without a repetition."""
    return rng.permutation(max(8, batch))[: shape[0]].reshape(shape)


def bincount(x: Any) -> Any:
    return tf.math.bincount(x, minlength=5, maxlength=5)


def searchsorted(draw: Draw) -> Drawn:
    side = draw(st.sampled_from(["left", "right"]))
    bins, values = draw(
        st.sampled_from([((B, 4), (B, 3)), ((4,), (B,)), ((B,), (5,)), ((2, B, 4), (2, B, 2))])
    )
    args = (f32(*bins, values=distinct), f32(*values))

    def expect(states: States) -> str:
        if len(bins) == 1:
            return "sharded" if states == (None, 0) else "any"
        return avoiding()(states)

    def fn(x: Any, y: Any) -> Any:
        return tf.searchsorted(tf.sort(x), y, side)

    return Drawn(fn, args, expect)


INT_CASES = (
    loose("bincount", "int<5 B", bincount),
    loose("bincount_of_table", "int<7 B 3", bincount),
    loose(
        "bincount_each",
        "int<5 B 3",
        lambda x: tf.math.bincount(x, minlength=5, maxlength=5, axis=-1),
    ),
    loose("confusion_matrix", "int<4 B, int<4 B", lambda x, y: tf.math.confusion_matrix(x, y, 4)),
    loose(
        "histogram", "B 3", lambda x: tf.histogram_fixed_width(x, [-2.0, 2.0], 5), gradient=False
    ),
    loose(
        "histogram_bins",
        "B 3",
        lambda x: tf.histogram_fixed_width_bins(x, [-2.0, 2.0], 5),
        gradient=False,
    ),
    case(
        "bucketize",
        "B 3",
        lambda x: tf.raw_ops.Bucketize(input=x, boundaries=[-1.0, 0.0, 1.0]),
        gradient=False,
    ),
    case(
        "segment_sum_of_ints",
        "int<9 B 2, int<4 B",
        lambda x, i: tf.math.unsorted_segment_sum(x, i, 4),
        expect=rows_and_segments,
    ),
    case("count_of_true", "bools B 3", lambda x: tf.reduce_sum(tf.cast(x, tf.int32))),
    case(
        "accuracy",
        "distinct B 4, int<4 B",
        lambda x, y: tf.reduce_mean(tf.cast(tf.argmax(x, 1, tf.int32) == y, tf.float32)),
        gradient=False,
    ),
)

CASES: tuple[OpCase, ...] = (
    *(unsorted_segments(name) for name in UNSORTED),
    *(sorted_segments(name) for name in SORTED),
    OpCase("segments_of_samples", segments_of_samples),
    OpCase("scatter_nd", scatter_nd),
    *(scatter_update(name) for name in UPDATES),
    OpCase("searchsorted", searchsorted, gradient=False),
    *INT_CASES,
    loose(
        "tensor_scatter_update",
        [f32(12, 3), i32(B, 1, values=unlike_rows), f32(B, 3)],
        tf.tensor_scatter_nd_update,
    ),
    loose(
        "tensor_scatter_update_of_first",
        "B 3, 1 3",
        lambda x, y: tf.tensor_scatter_nd_update(x, [[0]], y),
    ),
    loose(
        "scatter_to_samples",
        "B 3",
        lambda x: tf.scatter_nd(tf.range(tf.shape(x)[0])[:, None], x, tf.shape(x)),
    ),
    case(
        "embedding_gradient",
        "6 2, int<6 B 3",
        lambda w, i: tf.reduce_sum(tf.gather(w, i) ** 2, [1, 2]),
    ),
    loose(
        "sparse_segment_mean",
        "5 B",
        lambda x: tf.sparse.segment_mean(x, tf.constant([0, 1, 4, 2]), tf.constant([0, 0, 1, 1])),
    ),
    case(
        "segment_sum_by_rule",
        "ties B 3",
        lambda x: tf.math.unsorted_segment_sum(x, tf.cast(x[:, 0] > 0.5, tf.int32), 2),
        expect="sharded",
    ),
    case(
        "mean_of_each_class",
        "B 3, int<3 B",
        lambda x, i: tf.math.divide_no_nan(
            tf.math.unsorted_segment_sum(x, i, 3),
            tf.math.unsorted_segment_sum(tf.ones_like(x), i, 3),
        ),
        expect=rows_and_segments,
    ),
    loose(
        "centre_by_class",
        "B 3, int<3 B",
        lambda x, i: x - tf.gather(tf.math.unsorted_segment_mean(x, i, 3), i),
    ),
    case(
        "sum_of_products_by_class",
        "B 2, int<3 B",
        lambda x, i: tf.matmul(tf.one_hot(i, 3), x, transpose_a=True),
        expect=lambda states: avoiding(1)(states) if set(states) <= {0, None} else "any",
    ),
)
