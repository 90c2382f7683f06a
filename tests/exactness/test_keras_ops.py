"""Every function of `keras.ops` that programs may use gives the numbers of one device."""

from __future__ import annotations

import contextlib
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import evener

from .keras_ops import GROUPS, WIDTH, Given, given

SIZES = (8, 8, 5, 3)
"""Samples of the batches: two of the same size, and smaller ones."""


def results_of(group: str, strategy: evener.Strategy | None) -> list[dict[str, list[np.ndarray]]]:
    """Take a step on each batch; return the results of every function, and the weights."""
    keras.utils.set_random_seed(1)
    rng = np.random.default_rng(0)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        weights = tf.Variable(rng.normal(size=(WIDTH, 48)).astype("float32") * 0.5)
        kernel = tf.Variable(rng.normal(size=(2, 2, 3, 3)).astype("float32"))

    def step(x: Any, k: Any, m: Any) -> dict[str, list[Any]]:
        with tf.GradientTape() as tape:
            made = given(x, k, m, weights, kernel)
            found = {name: outputs(function, made) for name, function in GROUPS[group].items()}
            flat = [t for tensors in found.values() for t in tensors if t.dtype.is_floating]
            loss = tf.add_n([tf.reduce_mean(tf.tanh(finite(tensor))) for tensor in flat])
        for variable, gradient in zip(
            (weights, kernel), tape.gradient(loss, [weights, kernel]), strict=True
        ):
            if gradient is not None:
                variable.assign_sub(0.1 * gradient)
        return {**found, "loss": [loss]}

    def run(*batch: Any) -> Any:
        return step(*batch) if strategy is None else strategy.run(step, args=batch)

    function = tf.function(run, reduce_retracing=True)
    results = []
    for size in SIZES:
        x = rng.normal(size=(size, WIDTH)).astype("float32")
        k = rng.integers(6, size=(size, WIDTH)).astype("int32")
        m = rng.random((size, WIDTH)) > 0.4
        found = tf.nest.map_structure(lambda t: t.numpy(), function(*map(tf.constant, (x, k, m))))
        results.append({**found, "weights": [weights.numpy(), kernel.numpy()]})
    return results


def outputs(function: Any, made: Given) -> list[Any]:
    return [tf.convert_to_tensor(tensor) for tensor in tf.nest.flatten(function(made))]


def finite(tensor: Any) -> Any:
    return tf.where(tf.math.is_finite(tensor), tensor, tf.zeros_like(tensor))


@pytest.mark.long
@pytest.mark.parametrize("group", GROUPS)
def test_functions_of_keras(group: str) -> None:
    strategy = evener.Strategy(devices=["cpu:0", "cpu:1", "cpu:2"], shares=(5, 3, 1))
    expected, found = results_of(group, None), results_of(group, strategy)
    assert strategy.is_partitioned
    for number, wanted in enumerate(expected):
        for name, tensors in wanted.items():
            for tensor, counterpart in zip(tensors, found[number][name], strict=True):
                where = f"{name}, batch {number}"
                assert tensor.dtype == counterpart.dtype, where
                np.testing.assert_allclose(counterpart, tensor, rtol=1e-4, atol=2e-5, err_msg=where)
