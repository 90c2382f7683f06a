"""Shares that evener chooses obey the memory of every device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import evener
from evener import EvenerWarning
from evener.partition.memory import MemoryLimits, estimate_memory, live_ranges_of
from exactness.compare import assert_equal

WIDTH = 64
BATCH = 512
# Of a sample 12 layers keep 256 bytes each.
SPEC = "cpu:1@64MiB,cpu:1@1MiB"


def model_under(strategy: evener.Strategy | None) -> keras.Model:
    keras.utils.set_random_seed(7)
    with strategy.scope() if strategy else tf.device("/cpu:0"):
        model = keras.Sequential(
            [keras.Input((WIDTH,))]
            + [keras.layers.Dense(WIDTH, activation="tanh") for _ in range(12)]
        )
        model.compile(keras.optimizers.SGD(0.01), "mse")
    return model


def data(num_samples: int = 2 * BATCH) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(3)
    x = draw.normal(size=(num_samples, WIDTH)).astype("float32")
    return x, x[::-1].copy()


def test_the_first_step_is_within_the_memory_and_exact() -> None:
    strategy = evener.Strategy(devices=SPEC)
    x, y = data()
    reference, model = model_under(None), model_under(strategy)
    before = model.predict_on_batch(x[:4])
    assert strategy.shares == (0.5, 0.5), "no step has trained yet"
    for trained in (reference, model):
        trained.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    assert 0 < strategy.shares[1] < 0.4
    estimate = strategy.memory_estimate(BATCH)
    assert 2**19 < estimate["cpu:1"].total <= 0.9 * 2**20
    assert strategy.share_controller.last_steps()[1][0][0] <= BATCH * strategy.shares[1] + 1
    assert_equal(
        {"weights": reference.get_weights()},
        {"weights": model.get_weights()},
        within=1e-5,
        where="limited",
    )
    assert not np.array_equal(before, model.predict_on_batch(x[:4]))


def test_a_larger_batch_has_a_smaller_share() -> None:
    strategy = evener.Strategy(devices=SPEC)
    model = model_under(strategy)
    x, y = data()
    model.fit(x[:64], y[:64], batch_size=64, verbose=0)
    assert strategy.shares == (0.5, 0.5), "all of it fits"
    model.fit(x, y, batch_size=BATCH, verbose=0)
    assert strategy.shares[1] < 0.4


def test_rebalancing_does_not_exceed_the_memory() -> None:
    """The device with little memory is the faster one."""
    strategy = evener.Strategy(devices=SPEC)
    model = model_under(strategy)
    x, y = data()
    model.fit(x, y, batch_size=BATCH, verbose=0)
    limit = strategy.shares[1]
    controller = strategy.share_controller
    window = np.asarray([[BATCH * share for share in controller.shares]] * 8)
    seconds = np.asarray([[4.0, 0.1]] * 8)
    measured = controller._rebalance_in_step(8, window, seconds, controller.shares)
    assert measured[1] == pytest.approx(limit)
    assert controller.events == (), "there is nothing to gain within the memory"


def test_shares_of_a_person_are_not_changed() -> None:
    strategy = evener.Strategy(devices=SPEC, shares=[1, 1])
    x, y = data()
    model_under(strategy).fit(x, y, batch_size=BATCH, verbose=0)
    assert strategy.shares == (0.5, 0.5)


def test_a_batch_that_fits_nowhere_is_told() -> None:
    strategy = evener.Strategy(devices="cpu:1@1200KiB,cpu:1@1MiB")
    x, y = data()
    with pytest.warns(EvenerWarning, match="ENG-051") as caught:
        model_under(strategy).fit(x, y, batch_size=BATCH, verbose=0)
    assert "cpu:1 holds about" in str(caught[0].message)
    assert strategy.shares[1] < strategy.shares[0] < 1


def own_step() -> Callable[[tf.Tensor], tf.Tensor]:
    weights = [tf.Variable(tf.eye(WIDTH) * 0.5) for _ in range(12)]

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            y = x
            for weight in weights:
                y = tf.tanh(y @ weight)
            loss = tf.reduce_mean(y**2)
        gradients: Any = tape.gradient(loss, weights)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.assign_sub(0.1 * gradient)
        return loss

    return step


@pytest.mark.parametrize("in_graph", [False, True])
def test_a_distributed_step(in_graph: bool) -> None:
    distributed = evener.distribute(own_step(), devices=SPEC)
    call: Callable[[tf.Tensor], tf.Tensor] = tf.function(distributed) if in_graph else distributed
    call(tf.constant(data(BATCH)[0]))
    assert 0 < distributed.shares[1] < 0.4
    distributed.set_shares([1, 3])
    assert distributed.shares == (0.25, 0.75)


def test_the_limit_is_the_last_number_of_samples_that_fits() -> None:
    """Against the estimate at one sample more."""
    distributed = evener.distribute(own_step(), devices=["cpu:0", "cpu:1"], shares=[1, 1])
    distributed(tf.constant(data(BATCH)[0]))
    (step,) = distributed.partitioned_steps
    owned = {"cpu:1": 2**16}
    limits = MemoryLimits(step, (None, 2**20), lambda: owned)
    first, most = limits.most_samples(BATCH)
    assert first == BATCH

    def needed(samples: int) -> int:
        replicas = evener.Plan.data_parallel(
            ["cpu:0", "cpu:1"], shares=[BATCH - samples, samples]
        ).replicas
        return estimate_memory(live_ranges_of(step), replicas, BATCH, owned)["cpu:1"].total

    assert needed(most) <= 0.9 * 2**20 < needed(most + 1)
