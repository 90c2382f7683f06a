"""Calls of ``tf.math``."""

from __future__ import annotations

import tensorflow as tf

from multi_device.public_names.recipe import BOOLS, WHOLE, B, Table, X, call, each, segments
from unit.graph.ops.op_case import (
    above_one,
    distinct,
    f32,
    i32,
    inside,
    ints,
    off,
    positive,
    sorted_ints,
)

m = tf.math
POSITIVE, INSIDE = f32(B, 4, values=positive), f32(B, 4, values=inside)
IDS = i32(B, values=ints(0, 3))
ORDERED = i32(B, values=sorted_ints(0, 3))

TABLE: Table = {
    **each(m, "abs angle asinh erfc atan conj cos cosh erf exp expm1 imag", X),
    **each(m, "bessel_i0 bessel_i0e bessel_i1 bessel_i1e", X),
    **each(m, "is_finite is_inf is_nan log_sigmoid negative real sigmoid sin sinh", X),
    **each(m, "softplus softsign square tan tanh log_softmax softmax", X),
    **each(m, "digamma lgamma log log1p reciprocal reciprocal_no_nan rsqrt sqrt", POSITIVE),
    **each(m, "acos asin atanh erfinv", INSIDE),
    **each(m, "erfcinv ndtri", f32(B, 4, values=lambda r, s, b: r.uniform(0.2, 0.8, s))),
    **each(m, "acosh", f32(B, 4, values=above_one)),
    **each(m, "ceil floor rint round sign", f32(B, 4, values=off)),
    **each(
        m, "add atan2 divide divide_no_nan multiply multiply_no_nan subtract truediv", X, POSITIVE
    ),
    **each(m, "floordiv floormod mod", f32(B, 4, values=off), POSITIVE),
    **each(m, "equal greater greater_equal less less_equal maximum minimum not_equal", X, X),
    **each(m, "nextafter squared_difference", X, X),
    **each(m, "pow igamma igammac xdivy xlog1py xlogy", POSITIVE, POSITIVE),
    **each(m, "logical_and logical_or logical_xor", BOOLS, BOOLS),
    **each(m, "logical_not", BOOLS),
    **each(m, "reduce_all reduce_any", BOOLS),
    **each(m, "reduce_max reduce_min", f32(B, 4, values=distinct)),
    **each(
        m, "reduce_euclidean_norm reduce_logsumexp reduce_mean reduce_prod reduce_std", POSITIVE
    ),
    **each(m, "reduce_sum reduce_variance count_nonzero zero_fraction", X),
    **each(m, "segment_max segment_mean segment_min segment_prod segment_sum", X, ORDERED),
    "abs": call(m.abs, X),
    "accumulate_n": call(lambda x, y: m.accumulate_n([x, y]), X, X),
    "add_n": call(lambda x, y: m.add_n([x, y]), X, X),
    "approx_max_k": call(
        lambda x: m.approx_max_k(x, 2), f32(B, 4, values=distinct), gradient=False
    ),
    "argmax": call(lambda x: m.argmax(x, 1), X),
    "argmin": call(lambda x: m.argmin(x, 1), X),
    "betainc": call(
        m.betainc, POSITIVE, POSITIVE, f32(B, 4, values=lambda r, s, b: r.uniform(0.2, 0.8, s))
    ),
    "bincount": call(lambda x: m.bincount(x, minlength=6, maxlength=6, axis=-1), WHOLE),
    "confusion_matrix": call(lambda x, y: m.confusion_matrix(x, y, 3), IDS, IDS),
    "cumprod": call(lambda x: m.cumprod(x, 1), POSITIVE),
    "cumsum": call(lambda x: m.cumsum(x, 1), X),
    "cumulative_logsumexp": call(lambda x: m.cumulative_logsumexp(x, 1), X),
    "in_top_k": call(
        lambda t, x: m.in_top_k(t, x, 2), i32(B, values=ints(0, 4)), f32(B, 4, values=distinct)
    ),
    "invert_permutation": call(
        m.invert_permutation, i32(B, values=lambda r, s, b: r.permutation(b))
    ),
    "is_non_decreasing": call(m.is_non_decreasing, X),
    "is_strictly_increasing": call(m.is_strictly_increasing, X),
    "l2_normalize": call(lambda x: m.l2_normalize(x, 1), X),
    "lbeta": call(m.lbeta, POSITIVE),
    "polygamma": call(lambda x: m.polygamma(tf.ones_like(x), x), POSITIVE),
    "polyval": call(lambda x: m.polyval([1.0, -2.0, 0.5], x), X),
    "scalar_mul": call(lambda x: m.scalar_mul(2.5, x), X),
    "top_k": call(lambda x: m.top_k(x, 2), f32(B, 4, values=distinct)),
    **{
        f"unsorted_segment_{how}": segments(getattr(m, f"unsorted_segment_{how}"), POSITIVE, IDS)
        for how in ("max", "mean", "min", "prod", "sqrt_n", "sum")
    },
    "zeta": call(m.zeta, f32(B, 4, values=above_one), POSITIVE, gradient=False),
}
NOT_CALLED = {
    "approx_min_k": "has no kernel on CPUs",
    "sobol_sample": "creates points from numbers; it takes no samples",
}
