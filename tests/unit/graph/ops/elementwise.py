"""Operations on each element by itself, with every way of broadcasting."""

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
    OpCase,
    Shape,
    Values,
    above_one,
    aligned,
    bools,
    case,
    f32,
    inside,
    ints,
    loose,
    normal,
    off,
    positive,
    ties,
)

SHAPES: tuple[Shape, ...] = ((B,), (B, 4), (3, B), (B, B), (2, B, 3), (2, 3, B), (B, 1, 2))

PAIRS: tuple[tuple[Shape, Shape], ...] = (
    ((B,), (B,)),
    ((B, 4), (B, 4)),
    ((3, B), (3, B)),
    ((B, 4), (4,)),
    ((4,), (B, 4)),
    ((B, 4), (B, 1)),
    ((B, 1), (B, 4)),
    ((B, 4), (1, 4)),
    ((B, 4), (1, 1)),
    ((B, 4), ()),
    ((), (3, B)),
    ((3, B), (B,)),
    ((B,), (3, B)),
    ((3, 1), (B,)),
    ((B, 1), (4,)),
    ((B, 1), (B,)),
    ((1, B), (B, 1)),
    ((B, B), (B,)),
    ((2, B, 3), (B, 1)),
    ((2, B, 3), (3,)),
    ((2, B, 3), (2, 1, 1)),
    ((B, 2, 3), (2, 3)),
    ((B, 2, 3), (B, 1, 1)),
    ((2, 3, B), (3, 1)),
    ((1, B, 1), (2, 1, 3)),
)

TRIPLES: tuple[tuple[Shape, Shape, Shape], ...] = (
    ((B,), (B,), (B,)),
    ((B, 4), (B, 4), (B, 4)),
    ((B, 1), (B, 4), (4,)),
    ((B, 1), (4,), ()),
    ((4,), (B, 4), (B, 4)),
    ((), (B, 4), (B, 4)),
    ((3, B), (B,), (3, 1)),
    ((2, B, 3), (B, 1), (3,)),
    ((B, B), (B,), (B, B)),
)

UNARY: dict[str, tuple[Callable[[Any], Any], Values]] = {
    "abs": (tf.abs, normal),
    "neg": (tf.negative, normal),
    "exp": (tf.exp, normal),
    "expm1": (tf.math.expm1, normal),
    "log": (tf.math.log, positive),
    "log1p": (tf.math.log1p, positive),
    "log_sigmoid": (tf.math.log_sigmoid, normal),
    "sqrt": (tf.sqrt, positive),
    "rsqrt": (tf.math.rsqrt, positive),
    "square": (tf.square, normal),
    "reciprocal": (tf.math.reciprocal, positive),
    "reciprocal_no_nan": (tf.math.reciprocal_no_nan, ties),
    "sin": (tf.sin, normal),
    "cos": (tf.cos, normal),
    "tan": (tf.tan, inside),
    "asin": (tf.asin, inside),
    "acos": (tf.acos, inside),
    "atan": (tf.atan, normal),
    "sinh": (tf.sinh, normal),
    "cosh": (tf.cosh, normal),
    "tanh": (tf.tanh, normal),
    "asinh": (tf.asinh, normal),
    "acosh": (tf.acosh, above_one),
    "atanh": (tf.atanh, inside),
    "sigmoid": (tf.sigmoid, normal),
    "softplus": (tf.math.softplus, normal),
    "softsign": (tf.math.softsign, normal),
    "erf": (tf.math.erf, normal),
    "erfc": (tf.math.erfc, normal),
    "erfinv": (tf.math.erfinv, inside),
    "ndtri": (tf.math.ndtri, lambda rng, shape, batch: rng.uniform(0.1, 0.9, shape)),
    "lgamma": (tf.math.lgamma, positive),
    "digamma": (tf.math.digamma, above_one),
    "bessel_i0e": (tf.math.bessel_i0e, normal),
    "bessel_j1": (tf.math.special.bessel_j1, normal),
    "sign": (tf.sign, normal),
    "identity": (tf.identity, normal),
    "stop_gradient": (lambda x: x * tf.stop_gradient(x), normal),
    "check_numerics": (lambda x: tf.debugging.check_numerics(x, "not finite"), normal),
    "clip_by_numbers": (lambda x: tf.clip_by_value(x, -0.5, 0.7), normal),
    "plus_number": (lambda x: 3.0 - x, normal),
    "times_constant": (lambda x: x * tf.constant(2.5), normal),
    "complex": (lambda x: tf.abs(tf.complex(x, x * x)), normal),
    "conjugate": (lambda x: tf.math.real(tf.math.conj(tf.complex(x, 2 * x)) * (1 + 2j)), normal),
    "imag": (lambda x: tf.math.imag(tf.exp(tf.complex(x, x))), normal),
    "fake_quant": (lambda x: tf.quantization.fake_quant_with_min_max_args(x, -1, 1), normal),
    "polyval": (lambda x: tf.math.polyval([x, 2.0, x], x), normal),
    "invert_twice": (lambda x: tf.where(x > 0, tf.exp(-x), -x), normal),
}

# Without a gradient.
STEPS: dict[str, tuple[Callable[[Any], Any], Values]] = {
    "floor": (tf.floor, off),
    "ceil": (tf.math.ceil, off),
    "round": (tf.round, off),
    "rint": (tf.math.rint, off),
    "is_nan": (lambda x: tf.math.is_nan(tf.math.log(x)), normal),
    "is_inf": (lambda x: tf.math.is_inf(1 / x), ties),
    "is_finite": (lambda x: tf.math.is_finite(1 / x), ties),
    "greater_than_number": (lambda x: x > 0.5, off),
    "to_int": (lambda x: tf.cast(x, tf.int32), off),
    "to_bool": (lambda x: tf.cast(x, tf.bool), ties),
    "saturate": (lambda x: tf.saturate_cast(x * 100, tf.uint8), ties),
    "bitcast": (lambda x: tf.bitcast(x, tf.int32), ties),
    "ones_like": (tf.ones_like, normal),
    "zeros_like_of_ints": (lambda x: tf.zeros_like(x, tf.int32), normal),
    "quantize": (lambda x: tf.quantization.quantize(x, -3.0, 3.0, tf.qint8)[0], ties),
}

BINARY: dict[str, tuple[Callable[[Any, Any], Any], Values]] = {
    "add": (tf.add, normal),
    "add_v2": (lambda x, y: tf.raw_ops.AddV2(x=x, y=y), normal),
    "sub": (tf.subtract, normal),
    "mul": (tf.multiply, normal),
    "div": (tf.divide, positive),
    "raw_div": (lambda x, y: tf.raw_ops.Div(x=x, y=y), positive),
    "div_no_nan": (tf.math.divide_no_nan, ties),
    "mul_no_nan": (tf.math.multiply_no_nan, ties),
    "floor_mod": (tf.math.floormod, off),
    "pow": (tf.pow, positive),
    "maximum": (tf.maximum, normal),
    "minimum": (tf.minimum, normal),
    "maximum_of_ties": (tf.maximum, ties),
    "squared_difference": (tf.math.squared_difference, normal),
    "atan2": (tf.atan2, positive),
    "xlogy": (tf.math.xlogy, positive),
    "xlog1py": (tf.math.xlog1py, positive),
    "xdivy": (tf.math.xdivy, positive),
    "igamma": (lambda x, y: tf.math.igamma(tf.stop_gradient(x), y), positive),
    "complex": (lambda x, y: tf.abs(tf.complex(x + 0 * y, y + 0 * x)), positive),
    "zeta": (lambda x, y: tf.math.zeta(tf.stop_gradient(x) + 1, y), positive),
    "ones_and_zeros_like": (lambda x, y: x * tf.ones_like(y) + tf.zeros_like(x) * y, normal),
}

COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "less": tf.less,
    "less_equal": tf.less_equal,
    "greater": tf.greater,
    "greater_equal": tf.greater_equal,
    "equal": tf.equal,
    "not_equal": tf.not_equal,
    "nextafter": tf.math.nextafter,
}

DIVISIONS: dict[str, Callable[[Any, Any], Any]] = {
    "floor_div": lambda x, y: x // y,
    "truncate_mod": lambda x, y: tf.raw_ops.TruncateMod(x=x, y=y),
}

LOGICAL: dict[str, Callable[[Any, Any], Any]] = {
    "logical_and": tf.logical_and,
    "logical_or": tf.logical_or,
    "logical_xor": tf.math.logical_xor,
    "logical_not": lambda x, y: tf.logical_not(x) & y,
    "equal_bools": tf.equal,
}

WHOLE: dict[str, Callable[[Any, Any], Any]] = {
    "add_ints": tf.add,
    "mul_ints": tf.multiply,
    "floor_div_ints": lambda x, y: (x - 7) // y,
    "truncate_div_ints": lambda x, y: tf.raw_ops.TruncateDiv(x=x - 7, y=y),
    "mod_ints": lambda x, y: (x - 7) % y,
    "true_div_ints": lambda x, y: x / y,
    "pow_ints": tf.pow,
    "maximum_ints": tf.maximum,
    "bitwise_and": tf.bitwise.bitwise_and,
    "bitwise_or": tf.bitwise.bitwise_or,
    "bitwise_xor": tf.bitwise.bitwise_xor,
    "left_shift": tf.bitwise.left_shift,
    "right_shift": tf.bitwise.right_shift,
    "invert": lambda x, y: tf.bitwise.invert(x) + y,
}

TERNARY: dict[str, Callable[[Any, Any, Any], Any]] = {
    "where": lambda x, y, z: tf.where(x > 0.8, y, z),
    "clip_by_value": lambda x, y, z: tf.clip_by_value(x + 0 * (y + z), y - 1.0, z),
    "mul_add": lambda x, y, z: x * y + z,
    "betainc": lambda x, y, z: tf.math.betainc(
        *tf.nest.map_structure(tf.stop_gradient, [x + 0 * (y + z), y + 0 * (x + z)]),
        z * 0.5 + 0 * (x + y),
    ),
}

# With the size of a rounding: a sum of parts may round the other way.
CASTS = {"float16": 2e-3, "bfloat16": 2e-2, "float64": 1e-5, "float32": 1e-5}


def unary(
    name: str,
    fn: Callable[[Any], Any],
    values: Values,
    dtype: str = "float32",
    tolerance: float = 1e-5,
) -> OpCase:
    def draw(draw: Draw) -> Drawn:
        return Drawn(fn, (Arg(draw(st.sampled_from(SHAPES)), values, dtype),))

    gradient = name not in STEPS and dtype == "float32"
    return OpCase(f"unary_{name}", draw, gradient=gradient, tolerance=tolerance)


def binary(name: str, fn: Callable[[Any, Any], Any], values: Values, dtype: str) -> OpCase:
    def draw(draw: Draw) -> Drawn:
        left, right = draw(st.sampled_from(PAIRS))
        args = (Arg(left, values, dtype), Arg(right, values, dtype))
        return Drawn(fn, args, aligned(left, right))

    return OpCase(f"binary_{name}", draw, gradient=name in BINARY)


def ternary(name: str, fn: Callable[[Any, Any, Any], Any]) -> OpCase:
    def draw(draw: Draw) -> Drawn:
        shapes = draw(st.sampled_from(TRIPLES))
        return Drawn(fn, tuple(f32(*shape, values=positive) for shape in shapes), aligned(*shapes))

    return OpCase(f"ternary_{name}", draw, tolerance=2e-5)


def add_n(draw: Draw) -> Drawn:
    shape = draw(st.sampled_from(SHAPES))
    return Drawn(lambda *xs: tf.add_n(xs), (f32(*shape),) * 3, aligned(shape, shape, shape))


SHARDED_ROWS = aligned((B,), (B, 4), (B, 4))

CASES: tuple[OpCase, ...] = (
    *(unary(name, fn, values) for name, (fn, values) in {**UNARY, **STEPS}.items()),
    *(
        unary(f"cast_{to}", lambda x, to=to: tf.cast(x, to), normal, tolerance=tolerance)
        for to, tolerance in CASTS.items()
    ),
    unary("cast_of_ints", lambda x: tf.cast(x, tf.float32) / 3, ints(0, 9), "int32"),
    unary("cast_of_bools", lambda x: tf.cast(x, tf.int64), bools, "bool"),
    unary("abs_of_ints", lambda x: tf.abs(x - 4), ints(0, 9), "int32"),
    *(binary(name, fn, values, "float32") for name, (fn, values) in BINARY.items()),
    *(binary(name, fn, ties, "float32") for name, fn in COMPARISONS.items()),
    *(binary(name, fn, off, "float32") for name, fn in DIVISIONS.items()),
    *(binary(name, fn, bools, "bool") for name, fn in LOGICAL.items()),
    *(binary(name, fn, ints(1, 5), "int32") for name, fn in WHOLE.items()),
    *(ternary(name, fn) for name, fn in TERNARY.items()),
    OpCase("add_n", add_n),
    case(
        "select_of_rows",
        "B, B 4, B 4",
        lambda c, x, y: tf.raw_ops.Select(condition=c > 0, x=x, y=y),
        expect=lambda states: SHARDED_ROWS(states) if set(states) <= {0, None} else "any",
    ),
    loose("where_true", "B 4", lambda x: tf.where(x > 0), gradient=False),
    case("clip_by_norm", "B 4", lambda x: tf.clip_by_norm(x, 0.7)),
    case("clip_each_by_norm", "B 4", lambda x: tf.clip_by_norm(x, 0.7, axes=[1])),
    case(
        "clip_by_global_norm",
        "B 4, 3 B",
        lambda x, y: tf.clip_by_global_norm([x, y], 1.5),
        expect="sharded",
    ),
    case("identity_n", "B 4, 4", lambda x, y: tf.identity_n([x * 2, y + 1])),
)
