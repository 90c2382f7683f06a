"""Operations that change the shape: reshapes, permutations, repeats, joins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import tensorflow as tf

from unit.graph.ops.op_case import (
    EVEN_SHARES,
    B,
    Draw,
    Drawn,
    Expect,
    OpCase,
    Shape,
    aligned,
    avoiding,
    case,
    f32,
    i32,
    ints,
    loose,
)

SHAPES: tuple[Shape, ...] = ((B, 4), (3, B), (B, B), (2, B, 3), (2, 3, B), (B, 2, 3))


def size(x: Any, axis: int) -> Any:
    """Return the size of an axis, as a Python number where it is known."""
    return tf.shape(x)[axis] if x.shape[axis] is None else x.shape[axis]


# What is sharded along the axis of the template can stay so.
RESHAPES: dict[str, tuple[Shape, Callable[[Any], Any]]] = {
    "merge_behind": ((B, 3, 4), lambda x: tf.reshape(x, [-1, 12])),
    "merge_behind_number": ((B, 3, 4), lambda x: tf.reshape(x, [size(x, 0), -1])),
    "merge_batch_in_front": ((B, 3, 4), lambda x: tf.reshape(x, [-1, 4])),
    "merge_to_vector": ((B, 3, 4), lambda x: tf.reshape(x, [-1])),
    "merge_before": ((2, 3, B), lambda x: tf.reshape(x, [6, -1])),
    "merge_around": ((2, 3, B, 2, 2), lambda x: tf.reshape(x, [6, -1, 4])),
    "split_behind": ((B, 12), lambda x: tf.reshape(x, [-1, 3, 2, 2])),
    "split_before": ((6, B), lambda x: tf.reshape(x, [2, 3, -1])),
    "split_around": ((6, B, 4), lambda x: tf.reshape(x, [3, 2, -1, 2, 2])),
    "split_back": ((B, 3, 4), lambda x: tf.reshape(tf.reshape(x, [-1, 4]) * 2, [-1, 3, 4])),
    "split_back_vector": ((B, 3), lambda x: tf.reshape(tf.exp(tf.reshape(x, [-1])), [-1, 3])),
    "ones": ((B, 4), lambda x: tf.reshape(x, [1, -1, 1, 4, 1])),
    "without_ones": ((1, B, 1, 4), lambda x: tf.reshape(x, [-1, 4])),
    "one_in_front": ((1, B, 4), lambda x: tf.reshape(x, [-1, 4])),
    "column": ((B,), lambda x: tf.reshape(x, [-1, 1])),
    "row": ((B,), lambda x: tf.reshape(x, [1, -1])),
    "same": ((B, 4), lambda x: tf.reshape(x, tf.shape(x))),
    "joined_sizes": ((B, 12), lambda x: tf.reshape(x, tf.concat([tf.shape(x)[:1], [3, 4]], 0))),
    "stacked_sizes": ((B, 12), lambda x: tf.reshape(x, tf.stack([tf.shape(x)[0], 4, 3]))),
    "product_of_sizes": (
        (B, 3, 4),
        lambda x: tf.reshape(x, [tf.shape(x)[0] * tf.shape(x)[1], tf.shape(x)[2]]),
    ),
    "double": ((B, 2, 4), lambda x: tf.reshape(x, [2 * size(x, 0), 4])),
    "double_and_back": (
        (B, 2, 4),
        lambda x: tf.reshape(tf.reshape(x, [2 * size(x, 0), 4]) ** 2, [size(x, 0), 8]),
    ),
    "split_batch_of_products": ((B, 6), lambda x: tf.reshape(tf.reshape(x, [-1, 2]), [-1, 3, 2])),
    "heads": (
        (B, 5, 6),
        lambda x: tf.transpose(tf.reshape(x, [tf.shape(x)[0], -1, 2, 3]), [0, 2, 1, 3]),
    ),
    "heads_in_batch": (
        (B, 2, 5, 3),
        lambda x: tf.reshape(tf.matmul(tf.reshape(x, [-1, 5, 3]), tf.ones([3, 2])), [-1, 2, 5, 2]),
    ),
    "expand_first": ((B, 4), lambda x: tf.expand_dims(x, 0)),
    "expand_second": ((B, 4), lambda x: x[:, tf.newaxis]),
    "expand_last": ((B, 4), lambda x: tf.expand_dims(x, -1)),
    "squeeze_first": ((1, B, 4), lambda x: tf.squeeze(x, [0])),
    "squeeze_last": ((B, 4, 1), lambda x: tf.squeeze(x, -1)),
    "squeeze_several": ((1, B, 1), lambda x: tf.squeeze(x, [0, 2])),
}

# A block of samples becomes several blocks, or what is known of the batch is lost.
SCATTERED: dict[str, tuple[Shape, Callable[[Any], Any]]] = {
    "merge_behind_time": ((3, B, 4), lambda x: tf.reshape(x, [-1, 4])),
    "merge_time_to_vector": ((3, B), lambda x: tf.reshape(x, [-1])),
    "time_back": ((3, B, 4), lambda x: tf.reshape(tf.reshape(x, [-1, 4]) * 2, [3, -1, 4])),
    "time_on_features": (
        (3, B, 4),
        lambda x: tf.reshape(tf.matmul(tf.reshape(x, [-1, 4]), tf.ones([4, 2])), [3, -1, 2]),
    ),
    "rows_become_columns": ((B, 4), lambda x: tf.reshape(x, [4, -1])),
    "squares": ((B, B), lambda x: tf.reshape(x, [-1])),
    "squeeze_unknown": ((1, B, 4), lambda x: tf.squeeze(x)),
    "shifted": ((B, 2, 3), lambda x: tf.reshape(x, [3, -1, 2])),
}
HALVES: dict[str, tuple[Shape, Callable[[Any], Any]]] = {
    "two_halves": ((B, 4), lambda x: tf.reshape(x, [2, -1, 4])),
    "pairs": ((B, 4), lambda x: tf.reshape(x, [-1, 2, 4])),
    "pairs_in_a_row": ((B, 4), lambda x: tf.reshape(x, [-1, 8])),
    "halves_of_columns": ((3, B), lambda x: tf.reshape(x, [3, 2, -1])),
    "split_in_two": ((B, 4), lambda x: tf.split(x, 2)),
    "contrast": ((B, 4), lambda x: tf.matmul(*tf.split(x, 2), transpose_b=True)),
    "parallel_stack": ((B, 4), lambda x: tf.add(*tf.unstack(tf.reshape(x, [2, -1, 4])))),
}


def of_one(tables: dict[str, tuple[Shape, Any]], expect: Expect, **options: Any) -> list[OpCase]:
    return [
        case(name, [f32(*shape)], fn, expect=expect, **options)
        for name, (shape, fn) in tables.items()
    ]


def transpose(draw: Draw) -> Drawn:
    shape = draw(st.sampled_from(SHAPES))
    order = draw(st.permutations(range(len(shape))))
    return Drawn(lambda x: tf.transpose(x, order), (f32(*shape),))


def expand(draw: Draw) -> Drawn:
    shape = draw(st.sampled_from(SHAPES))
    axis = draw(st.integers(-len(shape) - 1, len(shape)))
    return Drawn(lambda x: tf.expand_dims(x, axis), (f32(*shape),))


def tile(draw: Draw) -> Drawn:
    shape = draw(st.sampled_from(SHAPES))
    counts = [draw(st.integers(1, 3)) for _ in shape]
    repeated = [axis for axis, count in enumerate(counts) if count > 1]
    return Drawn(lambda x: tf.tile(x, counts), (f32(*shape),), avoiding(*repeated))


def repeat(draw: Draw) -> Drawn:
    shape = draw(st.sampled_from(SHAPES))
    axis = draw(st.integers(0, len(shape) - 1))
    count = draw(st.integers(1, 3))
    return Drawn(lambda x: tf.repeat(x, count, axis), (f32(*shape),), "any")


def concat(draw: Draw) -> Drawn:
    """Along every axis; with copies of an argument and constants between."""
    shape = draw(st.sampled_from(SHAPES))
    axis = draw(st.integers(0, len(shape) - 1))
    given = draw(st.sampled_from([axis, axis - len(shape)]))
    expect = avoiding(axis)

    def fn(x: Any, y: Any) -> Any:
        return tf.concat([x, 2 * y, x + 1, tf.ones_like(y)], given)

    return Drawn(fn, (f32(*shape), f32(*shape)), expect)


def concat_of_sizes(draw: Draw) -> Drawn:
    """Of arguments of unlike sizes along the axis, one of which may be replicated."""
    left, right, axis = draw(
        st.sampled_from(
            [((B, 4), (B, 2), 1), ((2, B), (1, B), 0), ((B, 4), (3, 4), 0), ((2, B), (2, 3), 1)]
        )
    )
    expect: Expect = avoiding(axis) if left.count(B) == right.count(B) else "any"
    return Drawn(lambda x, y: tf.concat([x, y], axis), (f32(*left), f32(*right)), expect)


def stack(draw: Draw) -> Drawn:
    shape = draw(st.sampled_from(SHAPES))
    axis = draw(st.integers(-len(shape) - 1, len(shape)))
    args = (f32(*shape), f32(*shape))
    return Drawn(lambda x, y: tf.stack([x, y, x * y], axis), args, aligned(shape, shape))


def unstack(draw: Draw) -> Drawn:
    shape, axis = draw(st.sampled_from([((B, 3), 1), ((2, B), 0), ((2, B, 3), -1)]))
    return Drawn(lambda x: tf.unstack(x, axis=axis), (f32(*shape),))


def split(draw: Draw) -> Drawn:
    shape, axis = draw(st.sampled_from([((B, 6), 1), ((6, B), 0), ((2, B, 6), -1), ((B, B, 6), 2)]))
    parts = draw(st.sampled_from([2, 3, [1, 2, 3], [4, -1], [0, 6]]))
    return Drawn(lambda x: tf.split(x, parts, axis), (f32(*shape),))


def broadcast_to(draw: Draw) -> Drawn:
    left, right = draw(
        st.sampled_from(
            [((B, 1), (B, 4)), ((B,), (3, B)), ((4,), (B, 4)), ((), (B, 2)), ((1, B), (B, B))]
        )
    )
    args = (f32(*left), f32(*right))
    return Drawn(lambda x, y: tf.broadcast_to(x, tf.shape(y)), args, aligned(left, right))


CASES: tuple[OpCase, ...] = (
    *of_one({f"reshape_{name}": row for name, row in RESHAPES.items()}, "sharded"),
    *of_one({f"scattered_{name}": row for name, row in SCATTERED.items()}, "any"),
    *of_one({f"halves_{name}": row for name, row in HALVES.items()}, "any", shares=EVEN_SHARES),
    OpCase("transpose", transpose),
    OpCase("expand_dims", expand),
    OpCase("tile", tile),
    OpCase("repeat", repeat),
    OpCase("concat", concat),
    OpCase("concat_of_sizes", concat_of_sizes),
    OpCase("stack", stack),
    OpCase("unstack", unstack),
    OpCase("split", split),
    OpCase("broadcast_to", broadcast_to),
    case("reshape_like", "B 12, B 3 4", lambda x, y: tf.reshape(x, tf.shape(y))),
    case("reshape_of_ints", "int<9 B 2 3", lambda x: tf.reshape(x, [-1, 6])),
    case(
        "bitcast_to_bytes",
        [f32(B, 3, states=(0,))],
        lambda x: tf.bitcast(x, tf.uint8),
        gradient=False,
    ),
    case("one_hot", [i32(B, values=ints(-1, 5))], lambda x: tf.one_hot(x, 4)),
    case("one_hot_in_front", "int<4 B 2", lambda x: tf.one_hot(x, 4, axis=0)),
    case("one_hot_between", "int<4 3 B", lambda x: tf.one_hot(x, 4, 2.0, -1.0, axis=1)),
    loose("one_hot_of_batch", "int<B B", lambda x: tf.one_hot(x, tf.shape(x)[0])),
    case(
        "outer_by_shapes",
        "B, B",
        lambda x, y: x[:, None] * y[None, :],
        expect=lambda states: "any" if states == (0, 0) else "sharded",
    ),
    loose("pairwise_distances", "B 3", lambda x: tf.reduce_sum((x[:, None] - x[None]) ** 2, -1)),
    case(
        "stack_of_sizes",
        "B 3",
        lambda x: tf.stack([tf.shape(x)[0], tf.shape(x)[1] * 2]),
        gradient=False,
    ),
    case(
        "vectorized_transpose",
        "B 4",
        lambda x: tf.transpose(tf.transpose(x) * tf.range(4.0)[:, None]),
    ),
    case(
        "order_of_transposed",
        "distinct 4 B",
        lambda x: tf.argsort(tf.transpose(x), axis=0),
        gradient=False,
    ),
    case("identity_of_transposed", "B 3 B", lambda x: tf.transpose(x, [2, 0, 1]) * 2),
)
