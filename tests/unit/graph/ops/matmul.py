"""Products of matrices, sums of products, and linear algebra of each sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import tensorflow as tf

from unit.graph.ops.op_case import (
    B,
    Draw,
    Drawn,
    Expect,
    OpCase,
    Shape,
    States,
    avoiding,
    case,
    f32,
    gathered_if_sharded,
    i32,
    ints,
    loose,
    one_label,
)

# Rows, columns in common, columns.
SIZES: tuple[Shape, ...] = (
    (B, 4, 3),
    (3, B, 4),
    (3, 4, B),
    (B, 4, B),
    (B, B, 3),
    (3, B, B),
    (B, B, B),
    (B, 1, 3),
)

# Labels in front of those of the matrices, with the sizes of the left and the right; a size of 1
# or none is broadcast.
FRONTS: tuple[tuple[Shape, Shape], ...] = (
    ((B,), (B,)),
    ((B,), ()),
    ((), (B,)),
    ((B,), (1,)),
    ((1,), (B,)),
    ((B, 2), (B, 2)),
    ((B, 2), (B, 1)),
    ((B, 2), (2,)),
    ((2,), (B, 2)),
    ((2, B), (B,)),
    ((2, 1), (1, B)),
    ((2,), (2,)),
    ((B, 1), (1, 2)),
)

# Any label may be the batch's.
EQUATIONS = (
    "ni,ij->nj",
    "nij,njk->nik",
    "nij,jk->nik",
    "nij,kj->nik",
    "nij,kj->kin",
    "nhqd,nhkd->nhqk",
    "nqhd,nkhd->nhqk",
    "nhqk,nkhd->nqhd",
    "i,j->ij",
    "ni,ni->n",
    "ni,ni->",
    "ni,nj->ij",
    "ni,mj->nimj",
    "nij,ni->nj",
    "nij,i->n",
    "n,n->",
    "n,nij->nij",
    "ij->ji",
    "nij->n",
    "nij->ij",
    "nij->jn",
    "nij->",
    "nii->n",
    "nii->ni",
    "ni,ij,jk->nk",
    "ni,nj,nk->ijk",
    "ti,nij->tnj",
)

# With an ellipsis: shapes are given.
ELLIPSES: tuple[tuple[str, Shape, Shape], ...] = (
    ("...ij,...jk->...ik", (B, 2, 3), (B, 3, 4)),
    ("...ij,jk->...ik", (2, B, 3, 2), (2, 4)),
    ("...ij,...jk->...ik", (B, 2, 3), (3, 4)),
    ("...i,ij->...j", (B, 5, 3), (3, 2)),
    ("...i,...i->...", (3, B, 2), (3, B, 2)),
    ("i...,j...->ij...", (2, B), (3, B)),
)

TENSORDOTS: tuple[tuple[Shape, Shape, Any], ...] = (
    ((B, 3, 4), (4, 2), 1),
    ((B, 3, 4), (4, 2), [[2], [0]]),
    ((B, 3, 4), (3, 4, 2), 2),
    ((B, 3, 4), (2, 4, 3), [[1, 2], [2, 1]]),
    ((3, B), (B, 2), 1),
    ((3, B), (2, B), [[1], [1]]),
    ((3, B, 2), (2, 4), 1),
    ((B,), (B,), 1),
    ((B, 2), (3,), 0),
)

# Of a square matrix that has an inverse, per sample.
SQUARE: dict[str, Callable[[Any], Any]] = {
    "inverse": tf.linalg.inv,
    "determinant": tf.linalg.det,
    "log_determinant": lambda x: tf.linalg.slogdet(x)[1],
    "cholesky": lambda x: tf.linalg.cholesky(tf.matmul(x, x, transpose_b=True)),
    "solve": lambda x: tf.linalg.solve(x, tf.ones_like(x)),
    "triangular_solve": lambda x: tf.linalg.triangular_solve(x, x + 1, lower=True),
    "qr": lambda x: tf.linalg.qr(x)[1] ** 2,
    "singular_values": lambda x: tf.linalg.svd(x, compute_uv=False),
    "eigenvalues": lambda x: tf.linalg.eigvalsh(x + tf.linalg.matrix_transpose(x)),
    "least_squares": lambda x: tf.linalg.lstsq(x, x[..., :1], fast=True),
    "trace": tf.linalg.trace,
    "diag_part": tf.linalg.diag_part,
    "set_diag": lambda x: tf.linalg.set_diag(x, 2 * x[..., 0]),
    "band_part": lambda x: tf.linalg.band_part(x, 1, 0),
    "lower_triangle": lambda x: tf.linalg.band_part(x, -1, 0),
    "matrix_transpose": tf.linalg.matrix_transpose,
    "adjoint": tf.linalg.adjoint,
    "tensor_diag_part": lambda x: tf.linalg.diag_part(x, k=1),
    "fft": lambda x: tf.abs(tf.signal.rfft(x)),
    "fft_back": lambda x: tf.signal.irfft(tf.signal.rfft(x, [4]), [4]),
}
NOT_ONE_RULE = ("qr", "singular_values", "eigenvalues", "least_squares", "fft", "fft_back")


def matmul(draw: Draw) -> Drawn:
    rows, common, columns = draw(st.sampled_from(SIZES))
    left, right = draw(st.booleans()), draw(st.booleans())
    shapes = [(common, rows) if left else (rows, common)]
    shapes.append((columns, common) if right else (common, columns))
    expect = one_label(f"{'km' if left else 'mk'},{'nk' if right else 'kn'}->mn")
    args = tuple(f32(*shape) for shape in shapes)
    return Drawn(lambda x, y: tf.matmul(x, y, left, right), args, expect)


def batch_matmul(draw: Draw) -> Drawn:
    fronts = draw(st.sampled_from(FRONTS))
    rows, common, columns = draw(st.sampled_from([(2, 3, 4), (1, 3, 2), *SIZES[:3]]))
    left, right = draw(st.booleans()), draw(st.booleans())
    shapes = [
        (*fronts[0], common, rows) if left else (*fronts[0], rows, common),
        (*fronts[1], columns, common) if right else (*fronts[1], common, columns),
    ]
    terms = [
        ("xyz" + matrix)[-len(shape) :]
        for matrix, shape in zip(
            ("km" if left else "mk", "nk" if right else "kn"), shapes, strict=True
        )
    ]
    args = tuple(f32(*shape) for shape in shapes)
    # Where no axis is the batch's, only partial sums are left.
    return Drawn(
        lambda x, y: tf.matmul(x, y, adjoint_a=left, adjoint_b=right),
        args,
        one_label(",".join(terms) + "->"),
    )


def einsum(equation: str) -> OpCase:
    terms = equation.split("->")[0].split(",")
    labels = sorted(set("".join(terms)))

    def draw(draw: Draw) -> Drawn:
        batch = draw(st.sampled_from(labels))
        sizes = {label: 2 + position % 3 for position, label in enumerate(labels)}
        shapes = [tuple(B if label == batch else sizes[label] for label in term) for term in terms]
        args = tuple(f32(*shape) for shape in shapes)
        return Drawn(lambda *xs: tf.einsum(equation, *xs), args, one_label(equation))

    # A number that all products add up to may be small beside them.
    return OpCase(f"einsum_{equation}", draw, tolerance=2e-5 if equation.endswith("->") else 1e-5)


def ellipsis(draw: Draw) -> Drawn:
    equation, left, right = draw(st.sampled_from(ELLIPSES))
    batches = left.count(B) + right.count(B)

    def expect_gradient(states: States) -> str:
        # The gradients of the operands have no rule for an ellipsis. Nothing is expected of a whole
        # operand with samples beside a sharded one.
        is_whole_beside = batches == 2 and not all(isinstance(state, int) for state in states)
        return avoiding()(states) if is_whole_beside else gathered_if_sharded(states)

    args = (f32(*left), f32(*right))
    return Drawn(lambda x, y: tf.einsum(equation, x, y), args, avoiding(), expect_gradient)


def tensordot(draw: Draw) -> Drawn:
    left, right, axes = draw(st.sampled_from(TENSORDOTS))
    common_batch = left.count(B) + right.count(B) == 2

    def expect(states: States) -> str:
        return "sharded" if not common_batch and left[0] == B else "any"

    return Drawn(lambda x, y: tf.tensordot(x, y, axes), (f32(*left), f32(*right)), expect)


def well_conditioned(rng: Any, shape: tuple[int, ...], batch: int) -> Any:
    """Square matrices in the last two axes, close to three times the one matrix."""
    return 3 * np.eye(shape[-1]) + rng.uniform(-0.5, 0.5, shape)


def square(name: str, fn: Callable[[Any], Any]) -> OpCase:
    def draw(draw: Draw) -> Drawn:
        shape = draw(st.sampled_from([(B, 3, 3), (2, B, 3, 3), (B, 2, 3, 3)]))
        expect: Expect = "any" if name in NOT_ONE_RULE else "sharded"
        if name == "tensor_diag_part" and shape[1] != 2:
            # Off the main diagonal, these shapes are computed once.
            expect = gathered_if_sharded
        return Drawn(fn, (f32(*shape, values=well_conditioned),), expect)

    return OpCase(f"each_{name}", draw, tolerance=1e-4)


CASES: tuple[OpCase, ...] = (
    OpCase("matmul", matmul),
    OpCase("batch_matmul", batch_matmul),
    *(einsum(equation) for equation in EQUATIONS),
    OpCase("einsum_ellipsis", ellipsis),
    OpCase("tensordot", tensordot),
    *(square(name, fn) for name, fn in SQUARE.items()),
    loose("band_part_of_rows", "B 4", lambda x: tf.linalg.band_part(x, 1, 1)),
    loose("band_part_of_columns", "4 B", lambda x: tf.linalg.band_part(x, 0, -1)),
    case("diag", "B 3", tf.linalg.diag),
    loose("diag_of_samples", "B", tf.linalg.diag),
    case("diag_shifted", "3 B 2", lambda x: tf.linalg.diag(x, k=-1)),
    loose("tensor_diag", "B", tf.linalg.tensor_diag),
    loose("tensor_diag_part", "B B", tf.linalg.tensor_diag_part),
    case("matvec", "B 3 4, B 4", tf.linalg.matvec, expect=avoiding()),
    case("matvec_of_one_matrix", "3 4, B 4", tf.linalg.matvec),
    case("matvec_of_samples", "B 4, 4", tf.linalg.matvec),
    case("matvec_over_samples", "3 B, B", tf.linalg.matvec, expect=one_label("ij,j->i")),
    case("cross", "B 3, B 3", tf.linalg.cross, expect=avoiding()),
    case("cross_of_columns", "B 3", lambda x: tf.transpose(tf.linalg.cross(x, 2 + x * x))),
    case("linear", "B 4, 4 3, 3", lambda x, w, b: x @ w + b),
    case("gram", "B 4", lambda x: tf.matmul(x, x, transpose_a=True)),
    loose("gram_of_samples", "B 4", lambda x: tf.matmul(x, x, transpose_b=True)),
    case(
        "matmul_of_ints",
        [i32(B, 4, values=ints(-3, 4)), i32(4, B, values=ints(-3, 4))],
        tf.matmul,
        expect=one_label("mk,kn->"),
    ),
    case("sparse_matmul", "B 4, 4 3", lambda x, y: tf.matmul(x, y, a_is_sparse=True)),
    loose(
        "dense_of_sparse", "4 B", lambda x: tf.sparse.sparse_dense_matmul(tf.sparse.eye(4, 4), x)
    ),
    case(
        "attention",
        "B 2 3 4, B 2 5 4, B 2 5 3",
        lambda q, k, v: tf.matmul(tf.nn.softmax(tf.matmul(q, k, transpose_b=True) / 2.0), v),
    ),
    case(
        "quadratic_form",
        "B 3, positive 3 3",
        lambda x, a: tf.reduce_sum(tf.matmul(x, a) * x, -1),
        expect=avoiding(1),
    ),
)
