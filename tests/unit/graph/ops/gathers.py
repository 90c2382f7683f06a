"""Rows by their numbers, masks and orders: what may need the samples of other devices."""

from __future__ import annotations

import hypothesis.strategies as st
import tensorflow as tf

from unit.graph.ops.op_case import (
    B,
    Draw,
    Drawn,
    OpCase,
    Shape,
    States,
    case,
    f32,
    gathered_if_sharded,
    i32,
    ints,
    loose,
    one_label,
    sorted_ints,
)

# Parameters, indices, the rest of the arguments of tf.gather, labels of parameters and indices:
# an index may be sharded along a label of its own, or with the parameters along a batch label.
GATHERS: tuple[tuple[Shape, Shape, dict[str, int], str], ...] = (
    ((5, 4), (B,), {}, "vd,i->"),
    ((5, 4), (B, 3), {}, "vd,ij->"),
    ((5, 4), (3, B), {}, "vd,ij->"),
    ((5, B), (3,), {}, "vd,i->"),
    ((B, 5), (3,), {"axis": 1}, "bv,i->"),
    ((3, 5), (B,), {"axis": 1}, "bv,i->"),
    ((B, 5), (B, 3), {"axis": 1, "batch_dims": 1}, "bv,bi->"),
    ((B, 5, 2), (B,), {"axis": 1, "batch_dims": 1}, "bvd,b->"),
    ((2, B, 5), (2, B, 3), {"axis": 2, "batch_dims": 2}, "abv,abi->"),
    ((B, 3, 5), (B, 2), {"axis": 2, "batch_dims": 1}, "bxv,bi->"),
    ((3, 5, B), (3, 2), {"axis": 1, "batch_dims": 1}, "xvd,xi->"),
)


def gather(draw: Draw) -> Drawn:
    params, indices, options, labels = draw(st.sampled_from(GATHERS))
    args = (f32(*params), i32(*indices, values=ints(0, 5)))
    return Drawn(lambda x, i: tf.gather(x, i, **options), args, one_label(labels))


def gather_nd(draw: Draw) -> Drawn:
    params, indices, options, labels = draw(
        st.sampled_from(
            [
                ((3, 4), (B, 2), {}, "xy,bi->"),
                ((3, 4, B), (5, 2), {}, "xyd,ni->"),
                ((3, 4), (B, 2, 1), {}, "xy,bni->"),
                ((B, 3, 4), (B, 2), {"batch_dims": 1}, "bxy,bi->"),
                ((B, 3, 4), (B, 5, 1), {"batch_dims": 1}, "bxy,bni->"),
            ]
        )
    )
    args = (f32(*params), i32(*indices, values=ints(0, 3)))
    expect = one_label(labels)

    def expect_gradient(states: States) -> str:
        # The gradient has no rule for samples behind the positions.
        return gathered_if_sharded(states) if params[-1] == B else expect(states)

    return Drawn(lambda x, i: tf.gather_nd(x, i, **options), args, expect, expect_gradient)


CASES: tuple[OpCase, ...] = (
    OpCase("gather_nd", gather_nd),
    OpCase("gather", gather),
    loose("gather_of_samples", "B 3, int<B 5", tf.gather),
    loose("gather_in_new_order", "B 3, int<B B", tf.gather),
    loose("gather_nd_of_samples", "B 3, int<B 4 1", tf.gather_nd),
    loose(
        "take_along", "B 5, int<5 B 2", lambda x, i: tf.experimental.numpy.take_along_axis(x, i, 1)
    ),
    case("sort_of_rows", "distinct B 4", lambda x: x - tf.sort(x, 1)),
    loose("nth_element", "distinct B 4", lambda x: tf.raw_ops.NthElement(input=x, n=1)),
    loose("median_of_samples", "distinct B 4", lambda x: tf.sort(x, 0)[tf.shape(x)[0] // 2]),
    loose("boolean_mask", "B 3, bools B", lambda x, m: tf.boolean_mask(x, m)),
    loose("sum_of_masked", "B 3", lambda x: tf.reduce_sum(tf.boolean_mask(x, x > 0))),
    loose("dynamic_partition", "B 2, int<3 B", lambda x, p: tf.dynamic_partition(x, p, 3)),
    loose("unique", "int<4 B", lambda x: tuple(tf.unique(x))),
    loose(
        "unique_with_counts",
        [i32(B, values=sorted_ints(0, 4))],
        lambda x: tuple(tf.unique_with_counts(x)),
    ),
    loose("set_difference", "int<4 B", lambda x: tuple(tf.raw_ops.ListDiff(x=x, y=[1, 2]))),
    loose("where_counts", "ties B 3", lambda x: tf.shape(tf.where(x > 0.5))[0], gradient=False),
    loose(
        "invert_permutation",
        "distinct B",
        lambda x: tf.math.invert_permutation(tf.argsort(x)),
        gradient=False,
    ),
    loose("space_to_batch", "B 4 4 1", lambda x: tf.space_to_batch(x, [2, 2], [[0, 0], [0, 0]])),
    loose(
        "space_to_batch_and_back",
        "B 4 3",
        lambda x: tf.batch_to_space(tf.space_to_batch(x, [2], [[0, 0]]) * 2, [2], [[0, 0]]),
    ),
    loose(
        "shuffle_by_key", "distinct B 3", lambda x: tf.gather(x, tf.argsort(tf.reduce_sum(x, 1)))
    ),
    loose("foreground", "B 3", lambda x: tf.reduce_sum(tf.gather(x, tf.where(x[:, 0] > 0)[:, 0]))),
    case("reverse_of_ints", "int<9 B 3", lambda x: tf.reverse(x, [1])),
    case("cumsum_of_ints", "int<9 B 3", lambda x: tf.cumsum(x, 1)),
)
