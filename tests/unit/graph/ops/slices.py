"""Parts of tensors, and their order: slices, gathers, pads, rolls, sorts, running sums."""

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
    OpCase,
    Shape,
    avoiding,
    case,
    distinct,
    f32,
    i32,
    ints,
    loose,
    one_label,
    positive,
)

SHAPES: tuple[Shape, ...] = ((B, 4), (3, B), (B, B), (2, B, 3), (2, 3, B), (B, 2, 3))

# No index on the axis of the batch.
BESIDE: dict[str, tuple[Shape, Callable[[Any], Any]]] = {
    "part": ((B, 5), lambda x: x[:, 1:3]),
    "one": ((B, 5), lambda x: x[:, 2]),
    "last": ((B, 5), lambda x: x[..., -1]),
    "last_two": ((B, 5), lambda x: x[..., -2:]),
    "every_other": ((B, 5), lambda x: x[:, ::2]),
    "reversed": ((B, 5), lambda x: x[:, ::-1]),
    "backwards": ((B, 5), lambda x: x[:, 4:1:-2]),
    "new_axis": ((B, 5), lambda x: x[:, tf.newaxis, 1:]),
    "new_axis_first": ((B, 5), lambda x: x[tf.newaxis, :, 1:, tf.newaxis]),
    "first_step": ((3, B, 4), lambda x: x[0]),
    "last_step": ((3, B, 4), lambda x: x[-1]),
    "steps": ((3, B, 4), lambda x: x[1:, :, ::2]),
    "difference": ((B, 5), lambda x: x[:, 1:] - x[:, :-1]),
    "between": ((2, B, 3), lambda x: x[1, ..., 1]),
    "empty": ((B, 5), lambda x: x[:, 3:3]),
    "tensor_index": ((B, 5), lambda x: x[:, tf.constant(1) :]),
    "whole": ((B, 5), lambda x: x[:]),
    "slice_op": ((B, 5), lambda x: tf.slice(x, [0, 1], [-1, 3])),
    "slice_whole_sizes": ((B, 5), lambda x: tf.slice(x, [0, 2], [tf.shape(x)[0], 2])),
    "slice_in_time": ((3, B, 4), lambda x: tf.slice(x, [1, 0, 1], [2, -1, 2])),
}

# The axis of the batch itself is cut.
THROUGH: dict[str, tuple[Shape, Callable[[Any], Any]]] = {
    "first_half": ((B, 4), lambda x: x[: tf.shape(x)[0] // 2]),
    "second_half": ((B, 4), lambda x: x[tf.shape(x)[0] // 2 :]),
    "without_first": ((B, 4), lambda x: x[1:]),
    "without_last": ((B, 4), lambda x: x[:-1]),
    "neighbours": ((B, 4), lambda x: x[1:] - x[:-1]),
    "every_other": ((B, 4), lambda x: x[::2]),
    "from_second_every_other": ((B, 4), lambda x: x[1::2]),
    "reversed": ((B, 4), lambda x: x[::-1]),
    "every_other_backwards": ((B, 4), lambda x: x[::-2]),
    "first": ((B, 4), lambda x: x[0]),
    "last": ((B, 4), lambda x: x[-1]),
    "first_kept": ((B, 4), lambda x: x[:1] * x),
    "columns": ((3, B), lambda x: x[:, 1:]),
    "middle": ((2, B, 3), lambda x: x[:, 1:4, 1]),
    "slice_op": ((B, 4), lambda x: tf.slice(x, [0, 0], [tf.shape(x)[0] - 1, 2])),
    "random_index": ((B, 4), lambda x: x[tf.shape(x)[0] // 3]),
}


def along_axis(
    name: str,
    make: Callable[[Draw], Callable[[Any, int], Any]],
    values: Any = distinct,
    **options: Any,
) -> OpCase:
    """A case of a function along an axis; nothing is gathered if it is not the batch's."""

    def draw(draw: Draw) -> Drawn:
        shape = draw(st.sampled_from(SHAPES))
        axis = draw(st.integers(0, len(shape) - 1))
        fn = make(draw)
        return Drawn(lambda x: fn(x, axis), (f32(*shape, values=values),), avoiding(axis))

    return OpCase(name, draw, **options)


def cumulative(fn: Callable[..., Any]) -> Callable[[Draw], Callable[[Any, int], Any]]:
    def make(draw: Draw) -> Callable[[Any, int], Any]:
        exclusive, reverse = draw(st.booleans()), draw(st.booleans())
        return lambda x, axis: fn(x, axis, exclusive=exclusive, reverse=reverse)

    return make


def roll(draw: Draw) -> Callable[[Any, int], Any]:
    shift = draw(st.integers(-3, 3))
    return lambda x, axis: tf.roll(x, shift, axis)


def sort(draw: Draw) -> Callable[[Any, int], Any]:
    direction = draw(st.sampled_from(["ASCENDING", "DESCENDING"]))
    return lambda x, axis: (tf.sort(x, axis, direction), tf.argsort(x, axis, direction))


def pad(draw: Draw) -> Callable[[Any, int], Any]:
    before, after = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    value = draw(st.sampled_from([0.0, 1.5]))

    def fn(x: Any, axis: int) -> Any:
        paddings = [[0, 0]] * len(x.shape)
        paddings[axis] = [before, after]
        return tf.pad(x, paddings, constant_values=value)

    return fn


def gather_constant(draw: Draw) -> Callable[[Any, int], Any]:
    indices = draw(st.sampled_from([0, [0], [0, 0, 0], [[0], [0]]]))
    return lambda x, axis: tf.gather(x, indices, axis=axis)


def mirror_pad(draw: Draw) -> Drawn:
    shape, paddings = draw(
        st.sampled_from(
            [
                ((B, 4), [[0, 0], [1, 2]]),
                ((3, B), [[2, 1], [0, 0]]),
                ((2, B, 3), [[1, 0], [0, 0], [2, 1]]),
            ]
        )
    )
    mode = draw(st.sampled_from(["REFLECT", "SYMMETRIC"]))
    return Drawn(lambda x: tf.pad(x, paddings, mode), (f32(*shape),))


def mirror_pad_of_batch(draw: Draw) -> Drawn:
    before, after = draw(st.integers(0, 1)), draw(st.integers(0, 1))
    return Drawn(lambda x: tf.pad(x, [[before, after], [0, 0]], "SYMMETRIC"), (f32(B, 4),), "any")


def top_k(draw: Draw) -> Drawn:
    shape = draw(st.sampled_from([(B, 4), (2, B, 4), (B, B, 5)]))
    k = draw(st.integers(1, 4))
    return Drawn(lambda x: tuple(tf.math.top_k(x, k)), (f32(*shape, values=distinct),))


def space_and_depth(draw: Draw) -> Drawn:
    fn, shape = draw(
        st.sampled_from(
            [(tf.nn.space_to_depth, (B, 4, 2, 3)), (tf.nn.depth_to_space, (B, 2, 3, 8))]
        )
    )
    return Drawn(lambda x: fn(x, 2), (f32(*shape),))


def reverse_sequence(draw: Draw) -> Drawn:
    shape, axis, batch = draw(st.sampled_from([((B, 4), 1, 0), ((4, B, 2), 0, 1)]))
    labels = "bt,b->" if batch == 0 else "tbd,b->"
    args = (f32(*shape), i32(B, values=ints(1, 5)))
    return Drawn(lambda x, n: tf.reverse_sequence(x, n, axis, batch), args, one_label(labels))


CASES: tuple[OpCase, ...] = (
    *(case(f"slice_{name}", [f32(*shape)], fn) for name, (shape, fn) in BESIDE.items()),
    *(
        loose(f"cut_{name}", [f32(*shape)], fn, shares=EVEN_SHARES)
        for name, (shape, fn) in THROUGH.items()
    ),
    along_axis("cumsum", cumulative(tf.cumsum)),
    along_axis("cumprod", cumulative(tf.math.cumprod), positive),
    along_axis("cumulative_logsumexp", cumulative(tf.math.cumulative_logsumexp), positive),
    along_axis("roll", roll),
    along_axis("pad", pad),
    along_axis("reverse", lambda draw: lambda x, axis: tf.reverse(x, [axis])),
    along_axis("sort", sort),
    along_axis("gather_constant", gather_constant),
    OpCase("top_k", top_k),
    OpCase("mirror_pad", mirror_pad),
    OpCase("mirror_pad_of_batch", mirror_pad_of_batch),
    OpCase("space_and_depth", space_and_depth),
    OpCase("reverse_sequence", reverse_sequence),
    case("roll_of_two_axes", "B 3 4", lambda x: tf.roll(x, [1, -2], [1, 2])),
    loose("pad_of_all", "B 3", lambda x: tf.pad(x, [[1, 2], [0, 1]])),
    case("pad_of_columns", "B 3", lambda x: tf.pad(x, [[0, 0], [2, 1]])),
)
