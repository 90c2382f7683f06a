"""Predicted memory of a model with barriers, compared with the bytes that the engine counts."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from evener import Plan, Strategy
from evener.planner.assignment import assignment_of
from evener.planner.memory import MemoryPrediction
from evener.planner.prediction import predict
from evener.profile import Cluster, ClusterDevice, CostProfile, Curve, LayerTimes, ModelCosts
from evener.profiler.layer_costs import layer_costs
from evener.profiler.profile import trace_keras_step

NUM_SAMPLES, WIDTH = 64, 64
ANY = Curve(((1, 1.0),))
CLUSTER = Cluster(devices=tuple(ClusterDevice(name=f"cpu:{k}", type="any") for k in range(3)))


def normalized() -> keras.Model:
    given: Any = keras.Input((32,))
    x = given
    for name in ("a0", "a1", "b0", "b1"):
        x = layers.Dense(WIDTH, name=name)(x)
        x = layers.BatchNormalization(name=f"{name}_norm")(x)
        x = layers.Activation("tanh", name=f"{name}_tanh")(x)
    model = keras.Model(given, layers.Dense(1, name="b_head")(x))
    model.compile("adam", "mse")
    return model


@pytest.fixture(scope="module")
def costs() -> ModelCosts:
    return layer_costs(trace_keras_step(normalized(), tf.TensorSpec([32]), tf.TensorSpec([1])))


def stages(num_micro_batches: int) -> Plan:
    return Plan.pipeline(
        {"cpu:1": "a*", "cpu:2": "b*"}, num_micro_batches=num_micro_batches, in_flight=2
    )


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    "plan",
    [
        Plan.data_parallel(["cpu:1"], num_micro_batches=4),
        Plan.data_parallel(["cpu:1", "cpu:2"]),
        stages(4),
        stages(8),
    ],
    ids=["micro-batches", "data parallel", "4 in stages", "8 in stages"],
)
def test_no_less_is_predicted_than_the_engine_counts(plan: Plan, costs: ModelCosts) -> None:
    strategy = Strategy(plan)
    with strategy.scope():
        model = normalized()
    model.train_on_batch(np.ones((NUM_SAMPLES, 32), "float32"), np.ones((NUM_SAMPLES, 1), "f"))
    counted = strategy.memory_estimate(NUM_SAMPLES)
    found = predicted(plan, costs)
    for device, needed in found.items():
        there = needed.activations
        if plan.layout == "data parallel" and len(plan.replicas) > 1:
            # What waits within one call is workspace, and the engine counts it with activations.
            there += needed.workspace
        assert there >= 0.99 * counted[device].activations
        assert needed.activations <= 2.1 * counted[device].activations


def test_more_micro_batches_save_nothing_up_to_the_last_barrier(costs: ModelCosts) -> None:
    few, many = predicted(stages(2), costs), predicted(stages(16), costs)
    assert many["cpu:1"].activations == few["cpu:1"].activations
    # Behind the last normalization there is one layer with one result of its own.
    saved = few["cpu:2"].activations - many["cpu:2"].activations
    assert saved <= NUM_SAMPLES / 2 * 3 * WIDTH * 4


def predicted(plan: Plan, costs: ModelCosts) -> dict[str, MemoryPrediction]:
    """Return what every device needs that computes."""
    times = {"any": (LayerTimes(forward=ANY, backward=ANY),) * len(costs.layers)}
    profile = CostProfile(model=costs, cluster=CLUSTER, times=times)
    needs = predict(assignment_of(plan, costs, CLUSTER, NUM_SAMPLES), profile).memory
    return {f"cpu:{place}": needed for place, needed in needs.items() if needed.activations > 0}
