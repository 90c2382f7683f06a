"""Spectra, decompositions, equations, counts and searches of every row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from unit.graph.ops.op_case import (
    B,
    OpCase,
    avoiding,
    below,
    case,
    distinct,
    f32,
    inside,
    loose,
    positive,
)

# Of a wave [B, 3, 8]; the last axis is that of time.
SPECTRA: dict[str, Callable[[Any], Any]] = {
    "fft": lambda x: tf.abs(tf.signal.fft(tf.cast(x, tf.complex64))),
    "ifft": lambda x: tf.abs(tf.signal.ifft(tf.cast(x, tf.complex64))),
    "rfft": lambda x: tf.math.real(tf.signal.rfft(x)),
    "rfft_of_length": lambda x: tf.math.real(tf.signal.rfft(x, [5])),
    "irfft": lambda x: tf.signal.irfft(tf.cast(x, tf.complex64)),
    "fft2d": lambda x: tf.math.real(tf.signal.fft2d(tf.cast(x, tf.complex64))),
    "rfft2d": lambda x: tf.math.real(tf.signal.rfft2d(x)),
    "irfft2d": lambda x: tf.signal.irfft2d(tf.cast(x, tf.complex64)),
    "dct": tf.signal.dct,
    "stft": lambda x: tf.math.real(tf.signal.stft(x, 4, 2)),
    "frame": lambda x: tf.signal.frame(x, 4, 2),
    "overlap_and_add": lambda x: tf.signal.overlap_and_add(x, 3),
}
# Of matrices [B, 3, 3].
MATRICES: dict[str, Callable[[Any], Any]] = {
    "singular_values": lambda x: tf.linalg.svd(x, compute_uv=False),
    "eigenvalues": lambda x: tf.linalg.eigvalsh(x + tf.linalg.matrix_transpose(x)),
    "decomposed": lambda x: tf.linalg.eigh(x + tf.linalg.matrix_transpose(x))[0],
    "triangular_and_orthogonal": tf.linalg.qr,
    "upper_diagonals": lambda x: tf.linalg.diag_part(x, k=(0, 1)),
    "diagonal_set": lambda x: tf.linalg.set_diag(x, x[:, 0]),
}
LABELS = below(5, B, 4)


def scattered(x: Any, y: Any) -> Any:
    """Columns 2 and 0 of the table get more."""
    table = tf.transpose(x)
    return tf.tensor_scatter_nd_add(table, [[2], [0]], tf.transpose(y)[:2])


CASES: tuple[OpCase, ...] = (
    *(
        case(name, fn, f32(B, 3, 8), tolerance=1e-4, gradient=name != "rfft_of_length")
        for name, fn in SPECTRA.items()
    ),
    *(
        case(name, fn, f32(B, 3, 3, values=distinct), tolerance=2e-3)
        for name, fn in MATRICES.items()
    ),
    loose(
        "fft_along_batch",
        lambda x: tf.abs(tf.signal.fft(tf.cast(x, tf.complex64))),
        f32(3, B),
        tolerance=1e-4,
    ),
    case(
        "fft_3d",
        lambda x: tf.math.real(tf.signal.fft3d(tf.cast(x, tf.complex64))),
        f32(B, 2, 4, 3),
        tolerance=1e-4,
    ),
    loose(
        "fft_2d_with_batch",
        lambda x: tf.math.real(tf.signal.fft2d(tf.cast(x, tf.complex64))),
        f32(2, B, 4),
        tolerance=1e-4,
    ),
    case("cross", tf.linalg.cross, f32(B, 3), f32(B, 3)),
    case(
        "matrix_logarithm",
        lambda x: tf.math.real(tf.linalg.logm(tf.cast(x + 4 * tf.eye(3), tf.complex64))),
        f32(B, 3, 3, values=positive),
        gradient=False,
        tolerance=1e-3,
    ),
    case(
        "matrix_square_root",
        lambda x: tf.linalg.sqrtm(x + 4 * tf.eye(3)),
        f32(B, 3, 3, values=positive),
        gradient=False,
        tolerance=1e-3,
    ),
    case(
        "lu",
        lambda x: tf.linalg.lu(x + 4 * tf.eye(3)),
        f32(B, 3, 3),
        gradient=False,
        tolerance=1e-3,
    ),
    loose(
        "eigenvectors",
        lambda x: tf.abs(tf.linalg.eigvals(x)),
        f32(B, 3, 3),
        gradient=False,
        tolerance=2e-3,
    ),
    loose(
        "triangular_of_one_matrix",
        lambda a, y: tf.linalg.triangular_solve(a + 4 * tf.eye(3), y),
        f32(3, 3),
        f32(B, 3, 2),
        tolerance=1e-4,
    ),
    loose(
        "triangular_of_one_side",
        lambda a, y: tf.linalg.triangular_solve(a + 4 * tf.eye(3), y),
        f32(B, 3, 3),
        f32(3, 2),
        tolerance=1e-4,
    ),
    case(
        "tridiagonal_solve",
        lambda a, y: tf.linalg.tridiagonal_solve(a + tf.constant([[0.0], [6.0], [0.0]]), y),
        f32(B, 3, 4),
        f32(B, 4, 2),
        tolerance=1e-4,
    ),
    case(
        "tridiagonal_product",
        tf.linalg.tridiagonal_matmul,
        f32(B, 3, 4),
        f32(B, 4, 2),
        tolerance=1e-4,
    ),
    loose(
        "banded_solve",
        lambda a, y: tf.linalg.banded_triangular_solve(a + 3.0, y),
        f32(B, 2, 4, values=positive),
        f32(B, 4, 2),
        tolerance=1e-4,
    ),
    case(
        "counts_of_rows", lambda x: tf.math.bincount(x, minlength=5, maxlength=5, axis=-1), LABELS
    ),
    case(
        "which_of_rows",
        lambda x: tf.math.bincount(x, minlength=5, maxlength=5, axis=-1, binary_output=True),
        LABELS,
    ),
    case(
        "counts_of_all",
        lambda x: tf.raw_ops.DenseBincount(input=x, size=5, weights=tf.zeros([0])),
        below(5, B),
    ),
    case(
        "which_of_all",
        lambda x: tf.raw_ops.DenseBincount(
            input=x, size=5, weights=tf.zeros([0]), binary_output=True
        ),
        below(5, B),
    ),
    loose(
        "weights_of_rows",
        lambda x, w: tf.raw_ops.DenseBincount(input=x, size=5, weights=w),
        LABELS,
        f32(B, 4),
        gradient=False,
    ),
    loose(
        "weights_of_all",
        lambda x, w: tf.raw_ops.DenseBincount(input=x, size=5, weights=w),
        below(5, B),
        f32(B),
        gradient=False,
    ),
    loose(
        "histogram",
        lambda x: tf.histogram_fixed_width(x, [-1.0, 1.0], 4),
        f32(B, 3),
        gradient=False,
    ),
    loose(
        "search_in_rows",
        lambda t, x: tf.searchsorted(tf.sort(t), x),
        f32(B, 4, values=distinct),
        f32(B, 3, values=distinct),
        gradient=False,
    ),
    loose(
        "search_in_one_row",
        lambda x: tf.searchsorted([-1.0, 0.0, 1.0], tf.reshape(x, [-1])),
        f32(B, 3),
        gradient=False,
    ),
    loose("scatter_to_columns", scattered, f32(B, 4), f32(B, 4)),
    case(
        "betainc",
        lambda x: tf.math.betainc(1.5 + x, 2.0 + 0 * x, tf.sigmoid(x)),
        f32(B, 4, values=inside),
        gradient=False,
    ),
    case("bessel", lambda x: tf.math.bessel_i0(x) + tf.math.special.dawsn(x), f32(B, 4)),
    loose(
        "slice_at_random_place",
        lambda x, n: x[:, tf.reduce_sum(n) % 3 :, : 2 + tf.reduce_max(n)],
        f32(B, 4, 5),
        below(3, 3),
    ),
    loose(
        "slice_at_largest_of_batch",
        lambda x, n: x[:, : 1 + tf.reduce_max(n)],
        f32(B, 5),
        below(4, B),
    ),
    loose(
        "slice_updated",
        lambda x, y: keras.ops.slice_update(x, [0, 1], y),
        f32(B, 4),
        f32(B, 2),
        gradient=False,
    ),
    case("softmax_along_axis", lambda x: tf.nn.softmax(x, 1), f32(B, 3, 4), expect=avoiding(1)),
)
