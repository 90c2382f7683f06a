"""How a number was computed tells whether it is a part of the batch's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from evener.engine.staged.loops.scaled import (
    ends_of,
    kind_of,
    mended,
    note_scaled,
    note_term,
    remembering_how,
)

X = np.array([1.0, 2.0, 4.0], "f4")
CASES: dict[str, tuple[Callable[[tf.Tensor], tf.Tensor], str]] = {
    "mean": (tf.reduce_mean, "mean"),
    "mean of squares": (lambda x: tf.reduce_mean(tf.square(x)), "mean"),
    "mean times a constant": (lambda x: 100.0 * tf.reduce_mean(x), "mean"),
    "mean over the replicas": (lambda x: tf.reduce_mean(x) / 2, "part"),
    "mean times their inverse": (lambda x: tf.reduce_mean(x) * 0.5, "part"),
    "sum over a constant": (lambda x: tf.reduce_sum(x) / 512.0, "part"),
    "sum": (tf.reduce_sum, "part"),
    "sum of a mean and a mean": (lambda x: tf.reduce_mean(x) + tf.reduce_mean(x * x), "mean"),
    "scaled sample by sample": (lambda x: tf.reduce_mean(x / tf.constant(2.0)), "unknown"),
    "times a varied number": (lambda x: tf.reduce_mean(x) * tf.reduce_max(x), "unknown"),
    "something else": (tf.reduce_max, "unknown"),
    "noted": (lambda x: note_scaled(tf.reduce_mean(x)), "part"),
    "noted and a constant": (lambda x: note_scaled(tf.reduce_mean(x)) + 1.0, "part"),
    "noted and a mean": (lambda x: note_scaled(tf.reduce_sum(x)) + tf.reduce_mean(x), "part"),
    "a term": (lambda x: note_term(tf.reduce_max(x)), "part"),
    "terms, added up": (lambda x: tf.add_n([note_term(tf.reduce_max(x))] * 2), "part"),
    "constant": (lambda x: tf.constant(1.0), "unknown"),
}


@pytest.mark.parametrize("name", CASES)
def test_in_a_graph(name: str) -> None:
    compute, expected = CASES[name]
    found = []

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def traced(x: tf.Tensor) -> tf.Tensor:
        number = compute(x)
        found.append(kind_of(number, 2))
        return number

    traced(X)
    assert set(found) == {expected}


@pytest.mark.parametrize("name", CASES)
def test_eagerly(name: str) -> None:
    compute, expected = CASES[name]
    with remembering_how():
        assert kind_of(compute(tf.identity(X)), 2) == expected


def test_outside_of_replicas_nothing_is_remembered() -> None:
    assert kind_of(tf.reduce_mean(X), 2) == "unknown"


WEIGHTS: list[tf.Variable] = []


@pytest.fixture(autouse=True)
def weights() -> None:
    WEIGHTS[:] = [tf.Variable([1.0, 2.0])]


MENDED: dict[str, tuple[Callable[[tf.Tensor], tf.Tensor], float]] = {
    # X has the mean 7/3; the weight is 3/4, and there are two replicas.
    "mean": (tf.reduce_mean, 0.75 * 7 / 3),
    "mean times a constant": (lambda x: 3.0 * tf.reduce_mean(x), 3 * 0.75 * 7 / 3),
    "mean over the replicas": (lambda x: tf.reduce_mean(x) / 2, 0.75 * 7 / 3),
    "sum": (tf.reduce_sum, 7.0),
    "part and mean": (lambda x: tf.reduce_sum(x) - tf.reduce_mean(x), 7 - 0.75 * 7 / 3),
    "part and term": (lambda x: tf.reduce_sum(x) + note_term(tf.reduce_max(x)), 7 + 0.75 * 4),
    "scaled penalty": (
        lambda x: tf.nn.scale_regularization_loss(tf.add_n([note_term(tf.reduce_max(x))])),
        4.0,  # No strategy here: it is scaled by one replica.
    ),
    "sum of weights": (lambda x: tf.reduce_sum(x) + 0.1 * tf.reduce_sum(WEIGHTS[0] + 1.0), 7.75),
    "their l2 loss": (lambda x: tf.reduce_sum(x) + tf.nn.l2_loss(WEIGHTS[0]), 7 + 1.5 * 2.5),
    "summed terms": (
        lambda x: tf.reduce_sum([note_term(tf.reduce_max(x)), note_term(tf.reduce_min(x))]),
        0.75 * 5,
    ),
}


@pytest.mark.parametrize("name", MENDED)
def test_what_is_no_part_is_made_one(name: str) -> None:
    compute, expected = MENDED[name]
    weight = 1.0 if name == "scaled penalty" else 0.75

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def traced(x: tf.Tensor) -> tf.Tensor:
        return mended(compute(x), tf.constant(weight, tf.float64), 2)

    assert float(traced(X)) == pytest.approx(expected)
    if name in ("summed terms", "sum of weights", "their l2 loss"):
        return  # Eagerly, no operation is to be seen for a list, nor all those of a variable.
    with remembering_how():
        eager = mended(compute(tf.identity(X)), tf.constant(weight, tf.float64), 2)
    assert float(eager) == pytest.approx(expected)


def test_the_factor_of_a_difference_is_negative() -> None:
    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def traced(x: tf.Tensor) -> tf.Tensor:
        number = 2.0 * (tf.reduce_mean(x) - tf.reduce_mean(x * x))
        assert sorted(end.factor for end in ends_of(number)) == [-2.0, 2.0]
        return number

    traced(X)
