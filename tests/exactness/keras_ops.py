"""Functions of `keras.ops`, in groups, applied to what a layer makes of the samples."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops

WIDTH = 6
"""Features of a sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Tensors that the functions are applied to; those of floats depend on the weights.

    Attributes:
        h: Features between -1 and 1, of shape ``[n, 6]``.
        p: Features that are positive, of the same shape.
        q: Other positive features, of the same shape.
        z: Longer rows, of shape ``[n, 48]``.
        image: Images, of shape ``[n, 4, 4, 3]``.
        square: Matrices, of shape ``[n, 3, 3]``.
        definite: Positive definite matrices, of the same shape.
        table: Weights, of shape ``[6, 6]``.
        kernel: Weights of a convolution, of shape ``[2, 2, 3, 3]``.
        k: Integers from 0 to 5, of shape ``[n, 6]``.
        m: Truth values, of the same shape.
    """

    h: Any
    p: Any
    q: Any
    z: Any
    image: Any
    square: Any
    definite: Any
    table: Any
    kernel: Any
    k: Any
    m: Any


Function = Callable[[Given], Any]
GROUPS: dict[str, dict[str, Function]] = {}


def given(x: Any, k: Any, m: Any, weights: Any, kernel: Any) -> Given:
    """Return the tensors, made of samples and weights."""
    z = ops.tanh(ops.matmul(x, weights))
    h = z[:, :WIDTH]
    square = ops.reshape(z[:, :9], (-1, 3, 3))
    definite = ops.matmul(square, ops.transpose(square, (0, 2, 1))) + 2.0 * ops.eye(3)
    return Given(
        h=h,
        p=ops.abs(h) + 0.5,
        q=ops.cos(z[:, WIDTH : 2 * WIDTH]) + 1.2,
        z=z,
        image=ops.reshape(z, (-1, 4, 4, 3)),
        square=square,
        definite=definite,
        table=ops.convert_to_tensor(weights)[:, :WIDTH],
        kernel=ops.convert_to_tensor(kernel),
        k=k,
        m=m,
    )


def _of_names(names: str, of: Callable[[Callable[..., Any], Given], Any]) -> dict[str, Function]:
    return {name: functools.partial(of, getattr(ops, name)) for name in names.split()}


GROUPS["elementwise"] = _of_names(
    """
    abs arcsin arcsinh arctan arctanh cbrt ceil celu conjugate cos cosh deg2rad elu erf erfc erfinv
    exp exp2 expm1 floor gelu glu hard_shrink hard_sigmoid hard_silu hard_tanh isfinite isnan
    leaky_relu log1p log_sigmoid logical_not nan_to_num negative rad2deg real relu relu6 round selu
    sigmoid sign signbit silu sin sinc sinh soft_shrink softplus softsign sparse_plus
    sparse_sigmoid square squareplus stop_gradient tan tanh tanh_shrink trunc zeros_like
    """,
    lambda f, d: f(d.h),
) | _of_names("log log10 log2 reciprocal rsqrt sqrt", lambda f, d: f(d.p))

GROUPS["pairs"] = _of_names(
    """
    add arctan2 divide divide_no_nan equal floor_divide fmax fmin fmod greater greater_equal hypot
    less logaddexp logaddexp2 maximum minimum mod multiply not_equal power subtract
    """,
    lambda f, d: (f(d.p, d.q), f(d.p, d.q[:1]), f(d.q[:, :1], d.p)),
) | _of_names(
    "bitwise_and bitwise_or bitwise_xor left_shift right_shift", lambda f, d: f(d.k, d.k % 3 + 1)
)


def _along(axis: int | None) -> dict[str, Function]:
    found = _of_names(
        """
        amax amin argmax argmin argsort average count_nonzero cumprod cumsum flip log_softmax
        logsumexp max mean median min norm prod ptp softmax sort std sum var
        """,
        lambda f, d: f(d.h, axis=axis),
    )
    found["roll"] = lambda d: ops.roll(d.h, 2, axis=axis)
    found["repeat"] = lambda d: ops.repeat(d.h, 2, axis=axis)
    found["quantile"] = lambda d: ops.quantile(d.h, [0.25, 0.6], axis=axis)
    found["weighted_average"] = lambda d: ops.average(d.h, axis=axis, weights=d.p)
    found["any"] = lambda d: ops.any(d.m, axis=axis)
    found["all"] = lambda d: ops.all(d.m, axis=axis)
    found["nansum"] = lambda d: ops.nansum(ops.where(d.m, d.h, float("nan")), axis=axis)
    found["nanmean"] = lambda d: ops.nanmean(ops.where(d.m, d.h, float("nan")), axis=axis)
    if axis is not None:
        found["diff"] = lambda d: ops.diff(d.h, axis=axis)
        found["normalize"] = lambda d: ops.normalize(d.h, axis=axis)
        found["trapezoid"] = lambda d: ops.trapezoid(d.h, axis=axis)
        found["sparsemax"] = lambda d: ops.sparsemax(d.h, axis=axis)
    return found


GROUPS["over_samples"] = _along(0)
GROUPS["over_features"] = _along(1)
GROUPS["over_all"] = _along(None)

GROUPS["joined_and_moved"] = {
    "append": lambda d: (ops.append(d.h, d.q, axis=0), ops.append(d.h, d.q)),
    "array_split": lambda d: ops.array_split(d.h, 4, axis=1),
    "concatenate": lambda d: [ops.concatenate([d.h, d.q], axis=axis) for axis in (0, 1)],
    "stack": lambda d: [ops.stack([d.h, d.q], axis=axis) for axis in (0, 1, 2)],
    "unstack": lambda d: ops.unstack(d.h, axis=1),
    "stacks": lambda d: [f([d.h, d.q]) for f in (ops.hstack, ops.vstack, ops.dstack)],
    "moveaxis": lambda d: (ops.moveaxis(d.image, 0, -1), ops.moveaxis(d.image, 1, -1)),
    "swapaxes": lambda d: ops.swapaxes(d.image, 0, 2),
    "rot90": lambda d: (ops.rot90(d.image, axes=(1, 2)), ops.rot90(d.h)),
    "flips": lambda d: (ops.fliplr(d.h), ops.flipud(d.h)),
    "reshape": lambda d: (ops.reshape(d.h, (-1, 2)), ops.reshape(d.image, (-1, 16, 3))),
    "rearrange": lambda d: ops.rearrange(d.image, "b h w c -> (b h) w c"),
    "tile": lambda d: (ops.tile(d.h, (2, 1)), ops.tile(d.h, (1, 2)), ops.tile(d.h, (2, 1, 1))),
    "broadcast_to": lambda d: ops.broadcast_to(d.h[:, None], (ops.shape(d.h)[0], 3, WIDTH)),
    "meshgrid": lambda d: ops.meshgrid(d.h[:, 0], d.q[:, 0], indexing="ij"),
    "pad": lambda d: (
        ops.pad(d.h, ((1, 2), (0, 0))),
        ops.pad(d.h, ((0, 0), (1, 2)), mode="reflect"),
        ops.pad(d.h, ((1, 1), (0, 0)), mode="symmetric"),
    ),
    "linspace": lambda d: (ops.linspace(d.h, d.q, 4), ops.linspace(d.h, d.q, 4, axis=1)),
    "triangles": lambda d: (ops.tril(d.square), ops.triu(d.square, k=1), ops.tril(d.h)),
    "diagonal": lambda d: (ops.diagonal(d.square, axis1=1, axis2=2), ops.diag(d.h[:, 0])),
}

GROUPS["taken_and_written"] = {
    "take": lambda d: (
        ops.take(d.h, d.k[:, 0] % 3, axis=0),
        ops.take(d.h, d.k[0], axis=1),
        ops.take(d.h, [-1, 0], axis=0),
        ops.take(d.table, d.k, axis=0),
    ),
    "take_along_axis": lambda d: (
        ops.take_along_axis(d.h, ops.argsort(d.h, axis=0), axis=0),
        ops.take_along_axis(d.h, d.k[:, :2], axis=1),
    ),
    "scatter": lambda d: ops.scatter(d.k[:, :1], d.h, (WIDTH, WIDTH)),
    "scatter_update": lambda d: (
        ops.scatter_update(d.h, ops.stack([ops.arange(3), ops.arange(3)], 1), ops.ones((3,))),
        ops.scatter_update(
            d.h, ops.stack([ops.arange(ops.shape(d.h)[0]), d.k[:, 0]], 1), d.p[:, 0]
        ),
    ),
    "slice": lambda d: (
        ops.slice(d.h, (0, 1), (ops.shape(d.h)[0], 3)),
        ops.slice(d.h, (1, 1), (2, 3)),
    ),
    "rows": lambda d: (d.h[::2], d.h[::-1], d.h[-1], d.h[1:-1], d.image[..., None, ::2]),
    "segment_sum": lambda d: (
        ops.segment_sum(d.h, d.k[:, 0], num_segments=WIDTH),
        ops.segment_max(d.h, d.k[:, 0], num_segments=WIDTH),
    ),
    "bincount": lambda d: (ops.bincount(d.k, minlength=6), ops.bincount(d.k[:, 0], minlength=6)),
    "digitize": lambda d: ops.digitize(d.h, np.array([-0.5, 0.0, 0.5], "float32")),
    "searchsorted": lambda d: ops.searchsorted(ops.sort(d.h[0]), d.h[1:, 0]),
    "top_k": lambda d: (ops.top_k(d.h, 3), ops.in_top_k(d.k[:, 0], d.h, 2)),
    "one_hot": lambda d: (ops.one_hot(d.k, WIDTH), ops.multi_hot(d.k, WIDTH)),
    "chosen": lambda d: (
        ops.where(d.m, d.h, d.q),
        ops.select([d.m, ops.logical_not(d.m)], [d.h, d.q], 0.5),
        ops.where(d.m)[0],
        ops.nonzero(d.m)[1],
        ops.clip(d.h, -0.2, 0.3),
    ),
}

_EINSUMS = ("ij,ij->i", "ij,kj->ik", "ij,ij->", "ij,ik->jk", "ij->ji", "ij->j")
GROUPS["linear_algebra"] = {
    "einsum": lambda d: [
        ops.einsum(text, *([d.h, d.q] if "," in text else [d.h])) for text in _EINSUMS
    ],
    "dot": lambda d: (
        ops.dot(d.h, d.table),
        ops.dot(d.h[:, 0], d.q[:, 0]),
        ops.dot(ops.transpose(d.h), d.q),
    ),
    "inner": lambda d: (ops.inner(d.h, d.q), ops.vdot(d.h, d.q)),
    "outer": lambda d: ops.outer(d.h[:, 0], d.q[:, 0]),
    "cross": lambda d: ops.cross(d.h[:, :3], d.q[:, :3]),
    "tensordot": lambda d: (
        ops.tensordot(d.h, d.q, axes=[[0], [0]]),
        ops.tensordot(d.image, d.table[:3], axes=[[3], [0]]),
    ),
    "of_matrices": lambda d: [
        f(d.definite) for f in (ops.cholesky, ops.inv, ops.det, ops.slogdet, ops.qr, ops.trace)
    ],
    "eigenvalues": lambda d: (ops.eigh(d.definite)[0], ops.svd(d.definite, compute_uv=False)),
    "solve": lambda d: (
        ops.solve(d.definite, d.square),
        ops.solve_triangular(d.definite, d.square, lower=True),
        ops.lstsq(d.definite[0], d.square[0]),
    ),
    "norm": lambda d: (
        ops.norm(d.square, axis=(1, 2)),
        ops.norm(d.h, ord=math.inf, axis=0),
        ops.norm(d.h, ord=2),
    ),
    "moments": lambda d: (
        ops.moments(d.h, axes=[0]),
        ops.moments(d.image, axes=[0, 1, 2], keepdims=True),
    ),
}

GROUPS["signals_and_networks"] = {
    "fft": lambda d: (ops.fft((d.h, d.q)), ops.fft2((d.square, d.square)), ops.rfft(d.z)),
    "stft": lambda d: (ops.stft(d.z, 16, 8, 16), ops.irfft(ops.rfft(d.z))),
    "extract_sequences": lambda d: ops.extract_sequences(d.z, 8, 4),
    "pool": lambda d: (ops.average_pool(d.image, 2), ops.max_pool(d.image, 2, padding="same")),
    "conv": lambda d: (
        ops.conv(d.image, d.kernel, padding="same"),
        ops.conv_transpose(d.image, d.kernel, strides=2),
        ops.depthwise_conv(d.image, d.kernel[:, :, :, :1]),
        ops.separable_conv(d.image, d.kernel[:, :, :, :1], d.kernel[:1, :1]),
    ),
    "normalization": lambda d: (
        ops.batch_normalization(d.h, ops.mean(d.h, 0), ops.var(d.h, 0), -1),
        ops.rms_normalization(d.h),
    ),
    "crossentropy": lambda d: (
        ops.binary_crossentropy(ops.cast(d.m, "float32"), ops.sigmoid(d.h)),
        ops.categorical_crossentropy(ops.softmax(d.q), ops.softmax(d.h)),
        ops.sparse_categorical_crossentropy(d.k[:, 0], d.h, from_logits=True),
    ),
    "attention": lambda d: ops.dot_product_attention(d.image, d.image, d.image, is_causal=True),
    "ctc_loss": lambda d: ops.ctc_loss(
        d.k[:, :2] % 2 + 1,
        ops.reshape(d.z, (-1, 8, WIDTH)),
        ops.full_like(d.k[:, 0], 2),
        ops.full_like(d.k[:, 0], 8),
    ),
    "psnr": lambda d: ops.psnr(d.h, d.q, 2.0),
}

_image = keras.ops.image
GROUPS["images"] = {
    "resize": lambda d: (
        _image.resize(d.image, (6, 6)),
        _image.resize(d.image, (6, 3), crop_to_aspect_ratio=True),
    ),
    "colours": lambda d: (
        _image.rgb_to_grayscale(d.image),
        _image.rgb_to_hsv((d.image + 1.0) / 2.0),
    ),
    "borders": lambda d: (
        _image.pad_images(d.image, 1, 1, target_height=6, target_width=6),
        _image.crop_images(d.image, 1, 1, target_height=2, target_width=2),
    ),
    "extract_patches": lambda d: _image.extract_patches(d.image, 2),
    "gaussian_blur": lambda d: _image.gaussian_blur(d.image, (3, 3), (1.0, 1.0)),
    "affine_transform": lambda d: _image.affine_transform(
        d.image,
        ops.pad(d.h[:, :6] * 0.1, ((0, 0), (0, 2))) + np.array([1, 0, 0, 0, 1, 0, 0, 0], "float32"),
    ),
}


def _decay(carried: Any, row: Any) -> tuple[Any, Any]:
    return 0.9 * carried + row, carried + row


GROUPS["loops"] = {
    "associative_scan": lambda d: ops.associative_scan(ops.multiply, d.h, axis=1),
    "scan": lambda d: ops.scan(_decay, ops.zeros((WIDTH,)), d.h),
    "map": lambda d: ops.map(lambda row: row * ops.sum(row), d.h),
    "vectorized_map": lambda d: ops.vectorized_map(lambda row: row * ops.max(row), d.h),
    "fori_loop": lambda d: ops.fori_loop(0, 3, lambda _, c: c * 0.5 + d.h, d.h),
    "while_loop": lambda d: ops.while_loop(
        lambda _, c: ops.sum(ops.abs(c)) > 1.0, lambda i, c: (i + 1, c * 0.5), (0, d.h)
    ),
    "cond": lambda d: ops.cond(ops.mean(d.h) > 0, lambda: d.h * 2.0, lambda: d.h * 3.0),
}
