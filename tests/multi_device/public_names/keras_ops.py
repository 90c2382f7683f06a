"""Calls of ``keras.ops``."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from multi_device.public_names.recipe import (
    BOOLS,
    IMAGE,
    WHOLE,
    B,
    Recipe,
    Table,
    X,
    call,
    complex64,
    each,
    segments,
)
from multi_device.public_names.tf_linalg import definite, well
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

k = keras.ops
POSITIVE, INSIDE = f32(B, 4, values=positive), f32(B, 4, values=inside)
DISTINCT = f32(B, 4, values=distinct)
LABEL, ORDERED = i32(B, values=ints(0, 4)), i32(B, values=sorted_ints(0, 3))
SQUARE, TIME = f32(B, 3, 3), f32(B, 5, 4)
SIGNAL = f32(B, 8, 3)


def rows(name: str, *args: Any, **kwargs: Any) -> Recipe:
    """Return the recipe of a function along the second axis."""
    given = args or (X,)
    return call(lambda *tensors: getattr(k, name)(*tensors, axis=1, **kwargs), *given)


def matrix(name: str, prepare: Any = well, **options: Any) -> Recipe:
    return call(lambda x: getattr(k, name)(prepare(x)), SQUARE, **{"tolerance": 5e-4, **options})


def counted(x: Any, n: int) -> Any:
    return k.while_loop(lambda i, y: i < n, lambda i, y: (i + 1, y * 1.5 + x), (0, x))[1]


def square(x: Any) -> Any:
    return x * x


TABLE: Table = {
    **each(k, "abs absolute angle arcsinh arctan cbrt celu cos cosh deg2rad elu erf exp exp2", X),
    **each(k, "expm1 fabs gelu hard_sigmoid hard_silu hard_swish hard_tanh hard_shrink", X),
    **each(k, "conj conjugate copy imag isfinite isinf isnan isneginf isposinf isreal", X),
    **each(k, "leaky_relu log_sigmoid log_softmax nan_to_num negative ones_like zeros_like", X),
    **each(k, "rad2deg real relu relu6 selu sigmoid silu sin sinc sinh soft_shrink softmax", X),
    **each(k, "softplus softsign sparse_plus sparse_sigmoid sparsemax square squareplus", X),
    **each(k, "stop_gradient swish tan tanh tanh_shrink signbit empty_like glu i0", X),
    **each(k, "log log10 log1p log2 reciprocal rsqrt sqrt", POSITIVE),
    **each(k, "arccos arcsin arctanh erfinv", INSIDE),
    **each(k, "arccosh", f32(B, 4, values=above_one)),
    **each(k, "ceil floor round sign trunc", f32(B, 4, values=off)),
    **each(
        k, "add append arctan2 divide divide_no_nan equal greater greater_equal hypot", X, POSITIVE
    ),
    **each(k, "less less_equal logaddexp logaddexp2 maximum minimum multiply not_equal", X, X),
    **each(k, "subtract true_divide nextafter heaviside fmax fmin isclose", X, POSITIVE),
    **each(k, "floor_divide fmod mod", f32(B, 4, values=off), POSITIVE),
    **each(k, "power", POSITIVE, X),
    **each(k, "bitwise_and bitwise_or bitwise_xor", WHOLE, WHOLE),
    **each(k, "bitwise_left_shift bitwise_right_shift left_shift right_shift", WHOLE, WHOLE),
    **each(k, "bitwise_invert bitwise_not", WHOLE),
    **each(k, "logical_and logical_or logical_xor", BOOLS, BOOLS),
    **each(k, "logical_not all any", BOOLS),
    **each(k, "amax amin max min ptp nanmax nanmin", DISTINCT),
    **each(k, "average mean std sum var nansum nanmean nanstd nanvar count_nonzero norm", X),
    **each(k, "logsumexp prod nanprod", POSITIVE),
    "view": call(k.view, X, gradient=False),
    **each(k, "array convert_to_tensor ravel shape size ndim transpose squeeze", X),
    **each(k, "fliplr flipud tril triu", SQUARE),
    **each(k, "diagonal trace dsplit hsplit", SQUARE),
    **{
        name: rows(name)
        for name in """
        argmax argmin cumsum flip normalize expand_dims diff trapezoid nanargmax nanargmin
        """.split()
    },
    **{name: rows(name, DISTINCT) for name in "argsort sort".split()},
    **{name: rows(name, POSITIVE) for name in "cumprod nancumprod".split()},
    "nancumsum": rows("nancumsum"),
    **each(k, "concatenate", X),
    "adaptive_average_pool": call(lambda x: k.adaptive_average_pool(x, 3), IMAGE),
    "adaptive_max_pool": call(lambda x: k.adaptive_max_pool(x, 3), IMAGE),
    "allclose": call(k.allclose, X, X),
    "argpartition": call(lambda x: k.argpartition(x, 2), DISTINCT),
    "array_split": call(lambda x: k.array_split(x, 2, 1), X),
    "associative_scan": call(lambda x: k.associative_scan(lambda a, b: a + b, x, axis=1), TIME),
    "average_pool": call(lambda x: k.average_pool(x, 2), IMAGE),
    "batch_normalization": call(
        lambda x, m, v: k.batch_normalization(x, m, v, -1), X, f32(4), f32(4, values=positive)
    ),
    "binary_crossentropy": call(lambda y, p: k.binary_crossentropy(y, p, True), POSITIVE, X),
    "bincount": call(lambda x: k.bincount(x, minlength=6), WHOLE),
    "broadcast_to": call(lambda x: k.broadcast_to(x[:, None], (k.shape(x)[0], 3, 4)), X),
    "cast": call(lambda x: k.cast(x, "float16"), X),
    "categorical_crossentropy": call(
        lambda y, p: k.categorical_crossentropy(y, p, True), POSITIVE, X
    ),
    "cdist": call(k.cdist, TIME, TIME, gradient=False),
    "cholesky": matrix("cholesky", definite),
    "cholesky_inverse": matrix("cholesky_inverse", lambda x: tf.linalg.cholesky(definite(x))),
    "clip": call(lambda x: k.clip(x, -0.5, 0.5), X),
    "concatenate": call(lambda x, y: k.concatenate([x, y], 1), X, X),
    "cond": call(lambda x: k.cond(k.shape(x)[0] > 1, lambda: x * 2.0, lambda: x), X),
    "conv": call(lambda x, w: k.conv(x, w), IMAGE, f32(3, 3, 3, 2)),
    "conv_transpose": call(lambda x, w: k.conv_transpose(x, w, 2), IMAGE, f32(3, 3, 2, 3)),
    "correlate": call(k.correlate, f32(B), f32(3)),
    "cross": call(k.cross, f32(B, 3), f32(B, 3)),
    "ctc_decode": call(
        lambda x, n: k.ctc_decode(x, n)[1], f32(B, 6, 4), i32(B, values=ints(5, 7)), gradient=False
    ),
    "ctc_loss": call(
        k.ctc_loss,
        i32(B, 2, values=ints(1, 4)),
        f32(B, 6, 4),
        i32(B, values=ints(1, 3)),
        i32(B, values=ints(5, 7)),
        tolerance=1e-4,
    ),
    "custom_gradient": call(
        k.custom_gradient(
            lambda x: (x * x, lambda *g, upstream=None: 2.0 * (g[0] if g else upstream))
        ),
        X,
    ),
    "depth_to_space": call(lambda x: k.depth_to_space(x, 2), f32(B, 3, 3, 8)),
    "depthwise_conv": call(lambda x, w: k.depthwise_conv(x, w), IMAGE, f32(3, 3, 3, 2)),
    "det": matrix("det"),
    "diag": call(k.diag, f32(B)),
    "diagflat": call(k.diagflat, f32(B)),
    "digitize": call(lambda x: k.digitize(x, [-1.0, 0.0, 1.0]), X),
    "dot": call(k.dot, X, f32(4, 3)),
    "dot_product_attention": call(
        k.dot_product_attention, f32(B, 4, 2, 3), f32(B, 5, 2, 3), f32(B, 5, 2, 3)
    ),
    "dsplit": call(lambda x: k.dsplit(x, 2), f32(B, 3, 4)),
    "hsplit": call(lambda x: k.hsplit(x, 2), X),
    "vsplit": call(lambda x: k.vsplit(k.transpose(x), 2), X),
    "dstack": call(lambda x, y: k.dstack([x, y]), X, X),
    "hstack": call(lambda x, y: k.hstack([x, y]), X, X),
    "vstack": call(lambda x, y: k.vstack([x, y]), X, X),
    "stack": call(lambda x, y: k.stack([x, y], 1), X, X),
    "eig": matrix("eig", gradient=False),
    "eigh": matrix("eigh", definite, gradient=False),
    "einsum": call(lambda x, y: k.einsum("bij,bkj->bik", x, y), TIME, TIME),
    "erfc": call(k.erfc, X),
    "extract_sequences": call(lambda x: k.extract_sequences(x, 3, 2), f32(B, 8)),
    "fft": call(lambda x, y: k.fft((x, y)), X, X),
    "fft2": call(lambda x, y: k.fft2((x, y)), SQUARE, SQUARE),
    "ifft2": call(lambda x, y: k.ifft2((x, y)), SQUARE, SQUARE),
    "rfft": call(k.rfft, f32(B, 8)),
    "irfft": call(lambda x, y: k.irfft((x, y)), f32(B, 5), f32(B, 5)),
    "stft": call(lambda x: k.stft(x, 8, 4, 8), f32(B, 32)),
    "istft": call(lambda x, y: k.istft((x, y), 8, 4, 8), f32(B, 9, 5), f32(B, 9, 5)),
    "fold": call(lambda x: k.fold(x, 4, 2), f32(B, 8, 9)),
    "fori_loop": call(lambda x: k.fori_loop(0, 3, lambda i, y: y * 1.5, x), X),
    "while_loop": call(lambda x: counted(x, 3), X),
    "full_like": call(lambda x: k.full_like(x, 2.0), X),
    "get_item": call(lambda x: k.get_item(x, (slice(None), 1)), X),
    "geomspace": call(lambda x: k.geomspace(x, 2 * x, 3), POSITIVE),
    "linspace": call(lambda x: k.linspace(x, 2 * x, 3, axis=1), X),
    "logspace": call(lambda x: k.logspace(x, 2 * x, 3, axis=1), X, tolerance=1e-4),
    "histogram": call(lambda x: k.histogram(x, 3, (-1.0, 1.0)), f32(B), gradient=False),
    "in_top_k": call(lambda y, x: k.in_top_k(y, x, 2), LABEL, DISTINCT),
    "inner": call(k.inner, X, f32(4)),
    "inv": matrix("inv"),
    "is_tensor": call(lambda x: x * float(k.is_tensor(x)), X),
    "jvp": call(lambda x, t: k.jvp(square, (x,), (t,)), X, X),
    "layer_normalization": call(k.layer_normalization, TIME),
    "ldexp": call(k.ldexp, X, WHOLE),
    "logdet": matrix("logdet", definite),
    "map": call(lambda x: k.map(square, x), X),
    "matmul": call(k.matmul, TIME, f32(4, 3)),
    "matrix_rank": matrix("matrix_rank"),
    "max_pool": call(lambda x: k.max_pool(x, 2), IMAGE),
    "meshgrid": call(lambda x, y: k.meshgrid(x, y), f32(B), f32(3)),
    "moments": call(lambda x: k.moments(x, [1]), X),
    "moveaxis": call(lambda x: k.moveaxis(x, 1, 2), TIME),
    "multi_hot": call(lambda x: k.multi_hot(x, 6), WHOLE),
    "one_hot": call(lambda x: k.one_hot(x, 6), WHOLE),
    "nonzero": call(k.nonzero, WHOLE),
    "outer": call(k.outer, X, f32(3)),
    "pad": call(lambda x: k.pad(x, [[0, 0], [1, 2]]), X),
    "percentile": rows("percentile", DISTINCT, q=30),
    "quantile": rows("quantile", DISTINCT, q=0.3),
    "median": rows("median", DISTINCT),
    "pinv": matrix("pinv", tolerance=2e-3),
    "polar": call(k.polar, POSITIVE, X),
    "psnr": call(lambda x, y: k.psnr(x, y, 1.0), IMAGE, IMAGE),
    "qr": matrix("qr"),
    "rearrange": call(lambda x: k.rearrange(x, "b t c -> b (c t)"), TIME),
    "repeat": call(lambda x: k.repeat(x, 3, 1), X),
    "reshape": call(lambda x: k.reshape(x, (-1, 2, 2)), X),
    "rms_normalization": call(k.rms_normalization, TIME),
    "roll": call(lambda x: k.roll(x, 1, 1), X),
    "rot90": call(lambda x: k.rot90(x, axes=(1, 2)), TIME),
    "saturate_cast": call(lambda x: k.saturate_cast(100 * x, "int8"), X),
    "scan": call(lambda x: k.scan(lambda c, y: (c + y, c * y), x[:, 0], k.transpose(x)), X),
    "scatter": call(lambda i, v: k.scatter(i[:, None], v, (4, 4)), LABEL, X),
    "scatter_update": call(
        lambda x, v: k.scatter_update(
            x, k.stack([k.arange(k.shape(x)[0]), k.arange(k.shape(x)[0]) % 4], 1), v
        ),
        X,
        f32(B),
    ),
    "searchsorted": call(
        lambda x: k.searchsorted(k.array([-1.0, 0.0, 1.0]), k.reshape(x, (-1,))), X
    ),
    **{
        f"segment_{how}": segments(getattr(k, f"segment_{how}"), POSITIVE, ORDERED)
        for how in ("max", "min", "prod", "sum")
    },
    "select": call(lambda c, x, y: k.select([c], [x], 0.0) + y, BOOLS, X, X),
    "separable_conv": call(
        lambda x, d, p: k.separable_conv(x, d, p), IMAGE, f32(3, 3, 3, 1), f32(1, 1, 3, 2)
    ),
    "slice": call(lambda x: k.slice(x, (0, 1), (k.shape(x)[0], 2)), X),
    "slice_update": call(lambda x, v: k.slice_update(x, (0, 1), v), X, f32(B, 2), gradient=False),
    "slogdet": matrix("slogdet"),
    "solve": call(lambda x, y: k.solve(well(x), y), SQUARE, f32(B, 3, 2), tolerance=5e-4),
    "solve_triangular": call(
        lambda x, y: k.solve_triangular(well(x), y), SQUARE, f32(B, 3, 2), tolerance=5e-4
    ),
    "space_to_depth": call(lambda x: k.space_to_depth(x, 2), IMAGE),
    "sparse_categorical_crossentropy": call(
        lambda y, p: k.sparse_categorical_crossentropy(y, p, True), LABEL, X
    ),
    "split": call(lambda x: k.split(x, 2, 1), X),
    "squeeze": call(lambda x: k.squeeze(x, 1), f32(B, 1, 3)),
    "svd": matrix("svd", gradient=False),
    "swapaxes": call(lambda x: k.swapaxes(x, 1, 2), TIME),
    "switch": call(lambda x: k.switch(1, [k.sin, k.cos], x), X),
    "take": call(lambda x, i: k.take(x, i, axis=0), f32(6, 3), WHOLE),
    "take_along_axis": call(
        lambda x, i: k.take_along_axis(x, i, axis=1), X, i32(B, 2, values=ints(0, 4))
    ),
    "tensordot": call(lambda x, y: k.tensordot(x, y, 1), TIME, f32(4, 3)),
    "threshold": call(lambda x: k.threshold(x, 0.2, -1.0), X),
    "tile": call(lambda x: k.tile(x, (1, 2)), X),
    "top_k": call(lambda x: k.top_k(x, 2), DISTINCT),
    "unique": call(k.unique, i32(B, values=ints(0, 3))),
    "unstack": call(lambda x: k.unstack(x, 4, 1), X),
    "vander": call(lambda x: k.vander(x, 3), f32(B)),
    "vdot": call(k.vdot, f32(B), f32(B)),
    "vectorized_map": call(lambda x: k.vectorized_map(square, x), X),
    "view_as_complex": call(k.view_as_complex, f32(B, 3, 2)),
    "view_as_real": call(k.view_as_real, complex64(B, 3)),
    "where": call(k.where, BOOLS, X, X),
}
TABLE["trace"] = call(lambda x: k.trace(x, axis1=1, axis2=2), SQUARE)
TABLE["diagonal"] = call(lambda x: k.diagonal(x, axis1=1, axis2=2), SQUARE)
TABLE["transpose"] = call(lambda x: k.transpose(x, (0, 2, 1)), TIME)
_NUMBERS = "makes a tensor of numbers alone"
NOT_CALLED = {
    **dict.fromkeys(
        """
        arange bartlett blackman empty eye full hamming hanning kaiser ones tri zeros
        """.split(),
        _NUMBERS,
    ),
    "convert_to_numpy": "needs a concrete value, which a traced step does not have",
    "dtype": "a name",
    "identity": "creates a matrix from numbers; it takes no samples",
    "vectorize": "Keras does not support it on TensorFlow",
    "lstsq": "takes one matrix, not a batch",
    **dict.fromkeys(
        """
        gcd lcm nanmedian nanpercentile nanquantile corrcoef unfold isin kron lu_factor
        unravel_index
        """.split(),
        "fails on batches of an unknown size",
    ),
}
