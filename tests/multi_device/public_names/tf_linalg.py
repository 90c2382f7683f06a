"""Calls of ``tf.linalg``."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from multi_device.public_names.recipe import B, Function, Recipe, Table, X, call, each
from unit.graph.ops.op_case import f32, positive

la = tf.linalg
SQUARE, RIGHT = f32(B, 3, 3), f32(B, 3, 2)


def well(x: tf.Tensor) -> tf.Tensor:
    """Return matrices that are far from singular, with eigenvalues apart."""
    return 0.2 * x + tf.linalg.diag([2.0, 3.0, 5.0])


def definite(x: tf.Tensor) -> tf.Tensor:
    return 0.2 * tf.matmul(x, x, transpose_b=True) + tf.linalg.diag([1.0, 2.0, 4.0])


def matrix(fn: Function, prepare: Function = well, **options: Any) -> Recipe:
    return call(lambda x: fn(prepare(x)), SQUARE, **{"tolerance": 2e-4, **options})


def solved(fn: Function, prepare: Function = well, **options: Any) -> Recipe:
    return call(lambda x, y: fn(prepare(x), y), SQUARE, RIGHT, **{"tolerance": 2e-4, **options})


def operator(make: Function, *args: Any, columns: int = 3, **options: Any) -> Recipe:
    """Return a product with an operator that is made of the first arguments."""
    right = f32(B, columns, 2)
    return call(
        lambda *tensors: make(*tensors[:-1]).matmul(tensors[-1]),
        *args,
        right,
        **{"tolerance": 2e-4, **options},
    )


def full(x: tf.Tensor) -> Any:
    return la.LinearOperatorFullMatrix(well(x), is_non_singular=True)


def lu_solved(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return la.lu_solve(*la.lu(x), y)


OPERATORS: Table = {
    "LinearOperatorAdjoint": operator(lambda x: la.LinearOperatorAdjoint(full(x)), SQUARE),
    "LinearOperatorBlockDiag": operator(
        lambda x, y: la.LinearOperatorBlockDiag([full(x), full(y)]), SQUARE, SQUARE, columns=6
    ),
    "LinearOperatorBlockLowerTriangular": operator(
        lambda x, y: la.LinearOperatorBlockLowerTriangular([[full(x)], [full(y), full(x)]]),
        SQUARE,
        SQUARE,
        columns=6,
    ),
    "LinearOperatorCirculant": operator(
        lambda x: la.LinearOperatorCirculant(
            tf.cast(x, tf.complex64), input_output_dtype=tf.complex64
        ).to_dense(),
        f32(B, 3),
    ),
    "LinearOperatorComposition": operator(
        lambda x, y: la.LinearOperatorComposition([full(x), full(y)]), SQUARE, SQUARE
    ),
    "LinearOperatorDiag": operator(la.LinearOperatorDiag, f32(B, 3)),
    "LinearOperatorFullMatrix": operator(full, SQUARE),
    "LinearOperatorHouseholder": operator(la.LinearOperatorHouseholder, f32(B, 3, values=positive)),
    "LinearOperatorInversion": operator(lambda x: la.LinearOperatorInversion(full(x)), SQUARE),
    "LinearOperatorLowRankUpdate": operator(
        lambda x, u: la.LinearOperatorLowRankUpdate(full(x), u), SQUARE, f32(B, 3, 1)
    ),
    "LinearOperatorLowerTriangular": operator(la.LinearOperatorLowerTriangular, SQUARE),
    "LinearOperatorScaledIdentity": operator(
        lambda x: la.LinearOperatorScaledIdentity(3, x), f32(B)
    ),
    "LinearOperatorToeplitz": operator(la.LinearOperatorToeplitz, f32(B, 3), f32(B, 3)),
    "LinearOperatorTridiag": operator(
        lambda x: la.LinearOperatorTridiag(x, diagonals_format="compact"), f32(B, 3, 3)
    ),
    "LinearOperatorIdentity": call(lambda x: la.LinearOperatorIdentity(3).matmul(x), RIGHT),
    "LinearOperatorPermutation": call(
        lambda x: la.LinearOperatorPermutation(np.array([2, 0, 1])).matmul(x), RIGHT
    ),
    "LinearOperatorZeros": call(lambda x: la.LinearOperatorZeros(3).matmul(x), RIGHT),
}


def circulant(x: tf.Tensor, y: tf.Tensor, make: Function) -> tf.Tensor:
    operator = make(tf.cast(x, tf.complex64))
    return tf.math.real(operator.matmul(tf.cast(y, tf.complex64)))


TABLE: Table = {
    **OPERATORS,
    "LinearOperatorCirculant": call(
        lambda x, y: circulant(x, y, la.LinearOperatorCirculant), f32(B, 3), f32(B, 3, 2)
    ),
    "LinearOperatorCirculant2D": call(
        lambda x, y: circulant(x, y, la.LinearOperatorCirculant2D), f32(B, 3, 2), f32(B, 6, 2)
    ),
    "LinearOperatorCirculant3D": call(
        lambda x, y: circulant(x, y, la.LinearOperatorCirculant3D), f32(B, 3, 2, 2), f32(B, 12, 2)
    ),
    **each(la, "adjoint matrix_transpose trace diag_part", SQUARE),
    **each(la, "diag", X),
    **each(la, "tensor_diag", f32(B)),
    "tensor_diag_part": call(la.tensor_diag_part, f32(B, B)),
    "band_part": call(lambda x: la.band_part(x, 1, 0), SQUARE),
    "banded_triangular_solve": call(
        lambda x, y: la.banded_triangular_solve(x + 3.0, y),
        f32(B, 2, 4, values=positive),
        f32(B, 4, 2),
        tolerance=2e-4,
    ),
    "cholesky": matrix(la.cholesky, definite),
    "cholesky_solve": solved(lambda x, y: la.cholesky_solve(la.cholesky(x), y), definite),
    "cross": call(la.cross, f32(B, 3), f32(B, 3)),
    "det": matrix(la.det),
    "eig": matrix(la.eig, gradient=False),
    "eigh": matrix(lambda x: la.eigh(x)[0], definite),
    "eigvals": matrix(la.eigvals, gradient=False),
    "eigvalsh": matrix(la.eigvalsh, definite),
    "einsum": call(lambda x, y: la.einsum("bij,bjk->bik", x, y), SQUARE, RIGHT),
    "expm": matrix(lambda x: la.expm(0.2 * x)),
    "global_norm": call(lambda x, y: la.global_norm([x, y]), X, SQUARE),
    "inv": matrix(la.inv),
    "l2_normalize": call(lambda x: la.l2_normalize(x, 1), X),
    "logdet": matrix(la.logdet, definite),
    "logm": matrix(lambda x: tf.math.real(la.logm(tf.cast(x, tf.complex64))), gradient=False),
    "lstsq": solved(la.lstsq, tolerance=2e-3),
    "lu": matrix(la.lu, gradient=False),
    "lu_matrix_inverse": matrix(lambda x: la.lu_matrix_inverse(*la.lu(x)), gradient=False),
    "lu_reconstruct": matrix(lambda x: la.lu_reconstruct(*la.lu(x)), gradient=False),
    "lu_solve": solved(lu_solved, gradient=False),
    "matmul": call(la.matmul, SQUARE, RIGHT),
    "matrix_rank": matrix(la.matrix_rank),
    "matvec": call(la.matvec, SQUARE, f32(B, 3)),
    "norm": call(lambda x: la.norm(x, axis=[1, 2]), SQUARE),
    "normalize": call(lambda x: la.normalize(x, axis=1), SQUARE),
    "pinv": matrix(la.pinv, tolerance=2e-3),
    "qr": matrix(la.qr),
    "set_diag": call(la.set_diag, SQUARE, f32(B, 3)),
    "slogdet": matrix(la.slogdet),
    "solve": solved(la.solve),
    "sqrtm": matrix(la.sqrtm, definite, gradient=False),
    "svd": matrix(lambda x: la.svd(x, compute_uv=False)),
    "tensordot": call(lambda x, y: la.tensordot(x, y, 1), SQUARE, f32(3, 2)),
    "triangular_solve": solved(la.triangular_solve),
    "tridiagonal_matmul": call(la.tridiagonal_matmul, f32(B, 3, 4), f32(B, 4, 2)),
    "tridiagonal_solve": call(
        lambda x, y: la.tridiagonal_solve(x + tf.constant([[0.0], [6.0], [0.0]]), y),
        f32(B, 3, 4),
        f32(B, 4, 2),
        tolerance=2e-4,
    ),
}
NOT_CALLED = {
    "LinearOperator": "an abstract class",
    "LinearOperatorKronecker": "fails on batches of an unknown size",
    "eigh_tridiagonal": "takes one matrix, not a batch",
    "eye": "creates a matrix from numbers; it takes no samples",
}
