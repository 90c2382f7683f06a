"""Non-trainable state of several replicas is merged by the stated rules."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from evener.engine.staged.state import StateRule, is_seed, merge, rules_for, seed_for_replica

MOMENTUM = 0.9


def moving(old: np.ndarray, batch: np.ndarray) -> np.ndarray:
    return (MOMENTUM * old + (1 - MOMENTUM) * batch).astype("f4")


@pytest.mark.parametrize("sizes", [(5, 7), (1, 11), (3, 4, 5)])
def test_moving_statistics_follow_the_law_of_total_variance(sizes: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).normal(3, 2, size=(sum(sizes), 4)).astype("f4")
    old_mean, old_variance = np.full(4, 0.5, "f4"), np.full(4, 2.0, "f4")
    shares = np.split(x, np.cumsum(sizes)[:-1])
    rules = [StateRule(rule="variance", mean_of=1, momentum=MOMENTUM), StateRule(rule="mean")]
    new = [[moving(old_variance, s.var(0)), moving(old_mean, s.mean(0))] for s in shares]
    weights = tf.constant([size / sum(sizes) for size in sizes], tf.float32)
    variance, mean = merge(rules, [old_variance, old_mean], tf.nest.map_structure(
        tf.constant, new), weights)  # fmt: skip
    np.testing.assert_allclose(mean, moving(old_mean, x.mean(0)), rtol=1e-5)
    np.testing.assert_allclose(variance, moving(old_variance, x.var(0)), rtol=1e-5)


def test_a_replica_without_samples_counts_for_nothing() -> None:
    weights = tf.constant([1.0, 0.0])
    for rule in ("mean", "sum"):
        new = [[tf.constant(5.0)], [tf.constant(float("nan"))]]
        (value,) = merge([StateRule(rule=rule)], [tf.constant(2.0)], new, weights)
        assert float(value) == 5.0


def test_sums_add_the_changes_of_all() -> None:
    new = [[tf.constant(5.0)], [tf.constant(3.0)]]
    (value,) = merge([StateRule(rule="sum")], [tf.constant(2.0)], new, tf.constant([0.5, 0.5]))
    assert float(value) == 2.0 + 3.0 + 1.0


def test_counters_and_seeds_are_those_of_the_first_replica() -> None:
    new = [[tf.constant(5), tf.constant([7, 1])], [tf.constant(9), tf.constant([8, 1])]]
    rules = [StateRule(rule="first"), StateRule(rule="seed")]
    merged = merge(rules, [tf.constant(4), tf.constant([7, 0])], new, tf.constant([0.1, 0.9]))
    assert int(merged[0]) == 5
    assert merged[1].numpy().tolist() == [7, 1]


def test_what_nobody_changed_stays_unwritten() -> None:
    assert merge([StateRule(rule="mean")], [tf.zeros([])], [[None], [None]], tf.zeros([2])) == [
        None
    ]


def test_rules_are_read_off_a_model() -> None:
    model = keras.Sequential([
        keras.Input((3,)), layers.BatchNormalization(momentum=MOMENTUM), layers.Dropout(0.5)
    ])  # fmt: skip
    variables = list(model.non_trainable_variables)
    rules = dict(zip((v.name for v in variables), rules_for(model, variables), strict=True))
    assert rules["moving_mean"].rule == "mean"
    assert rules["moving_variance"] == StateRule(
        rule="variance", mean_of=0, momentum=pytest.approx(MOMENTUM)
    )
    assert rules["seed_generator_state"].rule == "seed"
    assert [is_seed(v) for v in variables].count(True) == 1


def test_replicas_draw_from_streams_of_their_own() -> None:
    seed = tf.constant([2**32 - 5, 3], tf.uint32)
    seeds = [seed_for_replica(seed, k).numpy().tolist() for k in range(8)]
    assert seeds[0] == seed.numpy().tolist()
    assert len({tuple(s) for s in seeds}) == 8
    assert {s[1] for s in seeds} == {3}
