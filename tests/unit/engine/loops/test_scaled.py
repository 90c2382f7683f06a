"""How a number was computed tells whether it is a part of the batch's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from evener.engine.loops.scaled import kind_of, note_scaled, remembering_how

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
    "noted and a penalty": (lambda x: note_scaled(tf.reduce_mean(x)) + 1.0, "part"),
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
