"""Reductions over every choice of axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import tensorflow as tf

from unit.graph.ops.op_case import (
    Arg,
    B,
    Draw,
    Drawn,
    Expect,
    OpCase,
    Shape,
    Values,
    avoiding,
    bools,
    case,
    distinct,
    f32,
    ints,
    loose,
    normal,
    positive,
    ties,
)

SHAPES: tuple[Shape, ...] = ((B,), (B, 4), (3, B), (B, B), (2, B, 3), (2, 3, B), (B, 2, 3))
# With an axis that is not the batch's in every one.
WIDE: tuple[Shape, ...] = ((B, 4), (3, B), (2, B, 3), (2, 3, B), (B, 2, 3))

# Over the batch too these need no more than a number or a row of every device.
REDUCED: dict[str, tuple[Callable[..., Any], Values]] = {
    "sum": (tf.reduce_sum, normal),
    "mean": (tf.reduce_mean, normal),
    "max": (tf.reduce_max, normal),
    "min": (tf.reduce_min, normal),
    "max_of_ties": (tf.reduce_max, ties),
    "min_of_ties": (tf.reduce_min, ties),
    "logsumexp": (tf.reduce_logsumexp, normal),
    "variance": (tf.math.reduce_variance, normal),
    "deviation": (
        lambda x, axis, keepdims: tf.sqrt(0.1 + tf.math.reduce_variance(x, axis, keepdims)),
        normal,
    ),
    "moments": (lambda x, axis, keepdims: tf.nn.moments(x, axis, keepdims=keepdims), normal),
    "norm": (lambda x, axis, keepdims: tf.sqrt(tf.reduce_sum(x * x, axis, keepdims)), positive),
}


def mean_of_half(x: Any, axis: Any, keepdims: bool) -> Any:
    return tf.reduce_mean(tf.cast(x, tf.float16), axis, keepdims)


# These may be gathered if they run over the batch.
OTHERS: dict[str, tuple[Callable[..., Any], Values]] = {
    "prod": (tf.reduce_prod, positive),
    "euclidean_norm": (tf.math.reduce_euclidean_norm, positive),
    "count_nonzero": (tf.math.count_nonzero, ties),
    "all": (lambda x, axis, keepdims: tf.reduce_all(x > 0.5, axis, keepdims), ties),
    "any": (lambda x, axis, keepdims: tf.reduce_any(x > 1.5, axis, keepdims), ties),
}

INTS: dict[str, Callable[..., Any]] = {
    "sum_of_ints": tf.reduce_sum,
    "mean_of_ints": tf.reduce_mean,
    "prod_of_ints": tf.reduce_prod,
    "max_of_ints": tf.reduce_max,
    "min_of_ints": tf.reduce_min,
}

NO_GRADIENT = ("count_nonzero", "all", "any")

# Along one axis.
ARGS: dict[str, Callable[..., Any]] = {
    "argmax": tf.argmax,
    "argmin": tf.argmin,
    "argmax_of_int32": lambda x, axis: tf.argmax(x, axis, output_type=tf.int32),
}

NORMS: dict[str, Callable[[Any], Any]] = {
    "norm_1": lambda x: tf.norm(x, ord=1, axis=-1),
    "norm_2": lambda x: tf.norm(x, axis=-1),
    "norm_inf": lambda x: tf.norm(x, ord=float("inf"), axis=1),
    "norm_3": lambda x: tf.norm(x, ord=3, axis=1, keepdims=True),
    "norm_of_matrices": lambda x: tf.norm(x, ord="euclidean", axis=[1, 2]),
}
ALL_NORMS: dict[str, Callable[[Any], Any]] = {
    "l2_loss": tf.nn.l2_loss,
    "norm_of_all": tf.norm,
    "global_norm": lambda x: tf.linalg.global_norm([x, 2 * x]),
    "std_of_all": tf.math.reduce_std,
}


def draw_axes(draw: Draw, shape: Shape) -> int | list[int] | None:
    """Draw what `axis` takes: all, one, several, none of the axes, from the front or back."""
    axes = draw(st.sampled_from(subsets(len(shape))))
    if axes is None:
        return None
    if draw(st.booleans()):
        axes = [axis - len(shape) for axis in axes]
    return axes[0] if len(axes) == 1 and draw(st.booleans()) else axes


def subsets(rank: int) -> list[list[int] | None]:
    chosen = [[axis for axis in range(rank) if mask >> axis & 1] for mask in range(2**rank)]
    return [None, *(axes for axes in chosen if axes), []]


def numbers(axis: int | list[int] | None, rank: int) -> tuple[int, ...]:
    """Return axes as numbers from the front."""
    if axis is None:
        return tuple(range(rank))
    return tuple(number % rank for number in ([axis] if isinstance(axis, int) else axis))


def reduction(
    name: str,
    fn: Callable[..., Any],
    values: Values,
    *,
    dtype: str = "float32",
    batch: Expect = "any",
    expect_gradient: Expect | None = None,
    **options: Any,
) -> OpCase:
    """A case of a reduction; `batch` is what is expected of one over the batch."""

    def draw(draw: Draw) -> Drawn:
        shape = draw(st.sampled_from(SHAPES))
        axis, keepdims = draw_axes(draw, shape), draw(st.booleans())
        if axis == [] and name in ("moments", "deviation", "variance"):
            axis = None
        expect = avoiding(*numbers(axis, len(shape))) if batch == "any" else batch
        args = (Arg(shape, values, dtype),)
        return Drawn(lambda x: fn(x, axis=axis, keepdims=keepdims), args, expect, expect_gradient)

    return OpCase(name, draw, **options)


def one_axis(name: str, fn: Callable[..., Any], values: Values) -> OpCase:
    def draw(draw: Draw) -> Drawn:
        shape = draw(st.sampled_from(SHAPES))
        axis = draw(st.integers(-len(shape), len(shape) - 1))
        expect = avoiding(axis % len(shape))
        return Drawn(lambda x: fn(x, axis), (f32(*shape, values=values),), expect)

    return OpCase(name, draw, gradient=False)


def standard_deviation(draw: Draw) -> Drawn:
    """Over an axis of several elements: the gradient at a deviation of 0 has no value."""
    shape = draw(st.sampled_from(WIDE))
    axis = next(axis for axis, size in enumerate(shape) if size != B)
    axes = draw(st.sampled_from([[axis], sorted({axis, len(shape) - 1}), None]))
    return Drawn(lambda x: tf.math.reduce_std(x, axes), (f32(*shape),))


def axis_given_as_tensor(draw: Draw) -> Drawn:
    axis = draw(st.sampled_from([0, 1, -1]))
    return Drawn(lambda x: tf.reduce_sum(x, tf.constant([axis])), (f32(3, B, 2),))


CASES: tuple[OpCase, ...] = (
    *(
        reduction(name, fn, values, batch="sharded", tolerance=3e-5)
        for name, (fn, values) in REDUCED.items()
    ),
    reduction("mean_of_half", mean_of_half, ties, batch="sharded", tolerance=2e-3),
    *(
        reduction(name, fn, values, gradient=name not in NO_GRADIENT, expect_gradient="any")
        for name, (fn, values) in OTHERS.items()
    ),
    *(reduction(name, fn, ints(1, 4), dtype="int32", gradient=False) for name, fn in INTS.items()),
    reduction("all_of_bools", tf.reduce_all, bools, dtype="bool", gradient=False),
    reduction("any_of_bools", tf.reduce_any, bools, dtype="bool", gradient=False),
    *(one_axis(name, fn, distinct) for name, fn in ARGS.items()),
    one_axis("argmax_of_ties", tf.argmax, ties),
    OpCase("std", standard_deviation),
    OpCase("axis_as_tensor", axis_given_as_tensor),
    *(case(name, "B 3 4", fn) for name, fn in NORMS.items()),
    *(case(f"{name}_of_rows", "B 4", fn) for name, fn in ALL_NORMS.items()),
    *(case(f"{name}_of_columns", "3 B", fn) for name, fn in ALL_NORMS.items()),
    loose("zero_fraction", "B 4", lambda x: x * tf.nn.zero_fraction(x)),
    case(
        "weighted_moments",
        "B 4, positive B 1",
        lambda x, w: tf.nn.weighted_moments(x, [0], w),
        tolerance=3e-5,
    ),
    case(
        "sufficient_statistics",
        "B 3 4",
        lambda x: [part for part in tf.nn.sufficient_statistics(x, [0, 1]) if part is not None],
    ),
    case("reduce_to_number", "B 4", lambda x: tf.reduce_sum(x) / tf.cast(tf.size(x), tf.float32)),
    case("mean_of_means", "B 4", lambda x: tf.reduce_mean(tf.reduce_mean(x, 1))),
    case("masked_mean", "B 4, positive B 1", lambda x, m: tf.reduce_sum(x * m) / tf.reduce_sum(m)),
    case("max_and_where_it_is", "distinct B 4", lambda x: (tf.reduce_max(x, 1), tf.argmax(x, 1))),
)
