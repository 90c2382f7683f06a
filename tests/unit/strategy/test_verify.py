"""`verify=True`: the first run of a step, also on one device."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import evener
from evener.errors import EvenerWarning
from evener.strategy.verify import Verifier

pytestmark = pytest.mark.usefixtures("logical_cpus")
DEVICES = ["cpu:0", "cpu:1"]
TOLD = "Verified against one device"


def test_the_first_call_is_verified_and_counts_once(capsys: Any) -> None:
    weight = tf.Variable(2.0)

    def step(x: tf.Tensor) -> tf.Tensor:
        loss = tf.sqrt(tf.reduce_mean(tf.square(weight * x)))
        weight.assign_sub(0.1 * loss)
        return loss

    distributed = evener.distribute(step, devices=DEVICES, shares=[3, 1], verify=True)
    x = np.arange(9, dtype="float32")
    distributed(x)
    assert TOLD in capsys.readouterr().err
    [verification] = distributed.verifications
    assert verification.results < 1e-6
    assert verification.variables < 1e-6
    np.testing.assert_allclose(weight.numpy(), 2 - 0.2 * np.sqrt(np.mean(x**2)), rtol=1e-6)
    distributed(x)
    assert TOLD not in capsys.readouterr().err


def fitted(model: keras.Model, **options: Any) -> list[np.ndarray]:
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"], **options)
    x = np.random.default_rng(1).normal(size=(20, 5)).astype("float32")
    history = model.fit(
        x, x[:, :1], batch_size=8, epochs=2, shuffle=False, verbose=0, validation_data=(x, x[:, :1])
    )
    return [*model.get_weights(), *map(np.array, history.history.values())]


def small_model() -> keras.Model:
    keras.utils.set_random_seed(2)
    layers = [keras.layers.Dense(7, activation="tanh"), keras.layers.BatchNormalization()]
    return keras.Sequential(
        [keras.Input((5,)), *layers, keras.layers.Dropout(0.3), keras.layers.Dense(1)]
    )


@pytest.mark.sampled(4)
@pytest.mark.parametrize("options", [{}, {"steps_per_execution": 2}], ids=str)
def test_fit_is_verified_and_trains_as_without(options: dict[str, Any], capsys: Any) -> None:
    results = []
    for verify in (False, True):
        strategy = evener.Strategy(devices=DEVICES, shares=[2, 1], verify=verify)
        with strategy.scope():
            model = small_model()
        results.append(fitted(model, **options))
    assert capsys.readouterr().err.count(TOLD) == len(strategy.verifications)
    assert len(strategy.verifications) >= 2  # training and evaluation
    for verification in strategy.verifications:
        assert max(verification.results, verification.variables) < 1e-5
    for verification, other in zip(*results, strict=True):
        np.testing.assert_array_equal(verification, other)


def test_a_loop_is_verified() -> None:
    strategy = evener.Strategy(devices=DEVICES, shares=[2, 1], verify=True)
    with strategy.scope():
        weight = tf.Variable([1.0, 2.0])

    @tf.function
    def epoch(data: tf.Tensor) -> None:
        for x in data:
            strategy.run(lambda batch: weight.assign_sub(tf.reduce_mean(batch, 0)), args=(x,))

    epoch(tf.ones([3, 6, 2]))
    assert len(strategy.verifications) == 1
    np.testing.assert_allclose(weight.numpy(), [-2.0, -1.0])


def verified(plain: Any, partitioned: Any, variables: list[tf.Variable]) -> Any:
    found: list[Any] = []
    verifier = Verifier("a step", variables, 2.0**-24, found.append)

    @tf.function
    def run() -> Any:
        return verifier.run(lambda _: plain(), partitioned, ())

    with pytest.warns(EvenerWarning, match="ENG-080"):
        run()
    return found[0]


def test_a_difference_is_warned_of() -> None:
    variable = tf.Variable(1.0)

    def partitioned() -> list[tf.Tensor]:
        variable.assign_add(0.5)
        return [tf.constant(2.0)]

    found = verified(lambda: [tf.constant(1.0)], partitioned, [variable])
    assert found.results == 1.0
    assert found.variables == 0.5


def test_other_shapes_are_a_difference_without_end() -> None:
    found = verified(lambda: [tf.zeros([2])], lambda: [tf.zeros([3])], [])
    assert found.results == float("inf")


@pytest.mark.parametrize("kind", ["drawn", "python", "loop"])
def test_what_cannot_be_undone_is_not_done_twice(kind: str, capsys: Any) -> None:
    calls: list[int] = []

    def count(x: np.ndarray) -> np.ndarray:
        calls.append(1)
        return x

    def step(x: tf.Tensor) -> tf.Tensor:
        if kind == "drawn":
            return x + tf.random.uniform([])
        if kind == "python":
            return tf.numpy_function(count, [x], tf.float32)
        for _ in tf.range(1):
            x = tf.ensure_shape(tf.numpy_function(count, [x], tf.float32), [3])
        return x

    distributed = evener.distribute(step, devices=DEVICES, verify=True)
    with pytest.warns(EvenerWarning, match="ENG-087"):
        distributed(tf.ones([3]))
    assert distributed.verifications == []
    assert TOLD not in capsys.readouterr().err
    assert len(calls) == (kind != "drawn")
