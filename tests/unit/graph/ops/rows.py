"""Spectra, decompositions, equations, counts and searches of every row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from unit.graph.ops.op_case import (
    OpCase,
    avoiding,
    case,
    loose,
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


def scattered(x: Any, y: Any) -> Any:
    """Columns 2 and 0 of the table get more."""
    table = tf.transpose(x)
    return tf.tensor_scatter_nd_add(table, [[2], [0]], tf.transpose(y)[:2])


CASES: tuple[OpCase, ...] = (
    *(
        case(name, "B 3 8", fn, tolerance=1e-4, gradient=name != "rfft_of_length")
        for name, fn in SPECTRA.items()
    ),
    *(case(name, "distinct B 3 3", fn, tolerance=2e-3) for name, fn in MATRICES.items()),
    loose(
        "fft_along_batch",
        "3 B",
        lambda x: tf.abs(tf.signal.fft(tf.cast(x, tf.complex64))),
        tolerance=1e-4,
    ),
    case(
        "fft_3d",
        "B 2 4 3",
        lambda x: tf.math.real(tf.signal.fft3d(tf.cast(x, tf.complex64))),
        tolerance=1e-4,
    ),
    loose(
        "fft_2d_with_batch",
        "2 B 4",
        lambda x: tf.math.real(tf.signal.fft2d(tf.cast(x, tf.complex64))),
        tolerance=1e-4,
    ),
    case("cross", "B 3, B 3", tf.linalg.cross),
    case(
        "matrix_logarithm",
        "positive B 3 3",
        lambda x: tf.math.real(tf.linalg.logm(tf.cast(x + 4 * tf.eye(3), tf.complex64))),
        gradient=False,
        tolerance=1e-3,
    ),
    case(
        "matrix_square_root",
        "positive B 3 3",
        lambda x: tf.linalg.sqrtm(x + 4 * tf.eye(3)),
        gradient=False,
        tolerance=1e-3,
    ),
    case("lu", "B 3 3", lambda x: tf.linalg.lu(x + 4 * tf.eye(3)), gradient=False, tolerance=1e-3),
    loose(
        "eigenvectors",
        "B 3 3",
        lambda x: tf.abs(tf.linalg.eigvals(x)),
        gradient=False,
        tolerance=2e-3,
    ),
    loose(
        "triangular_of_one_matrix",
        "3 3, B 3 2",
        lambda a, y: tf.linalg.triangular_solve(a + 4 * tf.eye(3), y),
        tolerance=1e-4,
    ),
    loose(
        "triangular_of_one_side",
        "B 3 3, 3 2",
        lambda a, y: tf.linalg.triangular_solve(a + 4 * tf.eye(3), y),
        tolerance=1e-4,
    ),
    case(
        "tridiagonal_solve",
        "B 3 4, B 4 2",
        lambda a, y: tf.linalg.tridiagonal_solve(a + tf.constant([[0.0], [6.0], [0.0]]), y),
        tolerance=1e-4,
    ),
    case("tridiagonal_product", "B 3 4, B 4 2", tf.linalg.tridiagonal_matmul, tolerance=1e-4),
    loose(
        "banded_solve",
        "positive B 2 4, B 4 2",
        lambda a, y: tf.linalg.banded_triangular_solve(a + 3.0, y),
        tolerance=1e-4,
    ),
    case(
        "counts_of_rows",
        "int<5 B 4",
        lambda x: tf.math.bincount(x, minlength=5, maxlength=5, axis=-1),
    ),
    case(
        "which_of_rows",
        "int<5 B 4",
        lambda x: tf.math.bincount(x, minlength=5, maxlength=5, axis=-1, binary_output=True),
    ),
    case(
        "counts_of_all",
        "int<5 B",
        lambda x: tf.raw_ops.DenseBincount(input=x, size=5, weights=tf.zeros([0])),
    ),
    case(
        "which_of_all",
        "int<5 B",
        lambda x: tf.raw_ops.DenseBincount(
            input=x, size=5, weights=tf.zeros([0]), binary_output=True
        ),
    ),
    loose(
        "weights_of_rows",
        "int<5 B 4, B 4",
        lambda x, w: tf.raw_ops.DenseBincount(input=x, size=5, weights=w),
        gradient=False,
    ),
    loose(
        "weights_of_all",
        "int<5 B, B",
        lambda x, w: tf.raw_ops.DenseBincount(input=x, size=5, weights=w),
        gradient=False,
    ),
    loose(
        "histogram", "B 3", lambda x: tf.histogram_fixed_width(x, [-1.0, 1.0], 4), gradient=False
    ),
    loose(
        "search_in_rows",
        "distinct B 4, distinct B 3",
        lambda t, x: tf.searchsorted(tf.sort(t), x),
        gradient=False,
    ),
    loose(
        "search_in_one_row",
        "B 3",
        lambda x: tf.searchsorted([-1.0, 0.0, 1.0], tf.reshape(x, [-1])),
        gradient=False,
    ),
    loose("scatter_to_columns", "B 4, B 4", scattered),
    case(
        "betainc",
        "inside B 4",
        lambda x: tf.math.betainc(1.5 + x, 2.0 + 0 * x, tf.sigmoid(x)),
        gradient=False,
    ),
    case("bessel", "B 4", lambda x: tf.math.bessel_i0(x) + tf.math.special.dawsn(x)),
    loose(
        "slice_at_random_place",
        "B 4 5, int<3 3",
        lambda x, n: x[:, tf.reduce_sum(n) % 3 :, : 2 + tf.reduce_max(n)],
    ),
    loose("slice_at_largest_of_batch", "B 5, int<4 B", lambda x, n: x[:, : 1 + tf.reduce_max(n)]),
    loose(
        "slice_updated",
        "B 4, B 2",
        lambda x, y: keras.ops.slice_update(x, [0, 1], y),
        gradient=False,
    ),
    case("softmax_along_axis", "B 3 4", lambda x: tf.nn.softmax(x, 1), expect=avoiding(1)),
)
