"""The memory by kind is that of the cost model, and the largest batch is the last that fits."""

from __future__ import annotations

import dataclasses
import math

import pytest

from evener.clusters import model_named, model_names
from evener.plan import (
    Plan,
    PlanDevice,
    Replica,
    Stage,
)
from evener.planner.assignment import literal
from evener.planner.prediction import (
    MOST_SAMPLES,
    MemoryByKind,
    Way,
    estimate_memory,
    largest_batch,
    predict_plan,
    recomputed_layers,
)
from evener.profile import Cluster, ClusterDevice, CostProfile, Curve, LayerTimes, ModelCosts
from unit.planner.by_hand import MODEL

WAYS = [
    Way(num_micro_batches=count, recompute=recompute)
    for count in (1, 2, 8)
    for recompute in (False, True)
]
SMALL = {"resnet-50", "bert-large-128"}


def predicted(model: ModelCosts, batch_size: int, way: Way, num_devices: int) -> list[int]:
    """Return the bytes of each device as `predict` says them of the same plan."""
    devices = [PlanDevice.named(f"gpu:{k}") for k in range(num_devices)]
    recomputed = zip(model.layers, recomputed_layers(model), strict=True)
    plan = Plan(
        devices=tuple(devices),
        replicas=tuple(
            Replica(
                share=1,
                stages=(Stage(device=device.name),),
                num_micro_batches=way.num_micro_batches,
            )
            for device in devices
        ),
        recompute=tuple(literal(layer.name) for layer, is_recomputed in recomputed if is_recomputed)
        if way.recompute
        else (),
    )
    times = LayerTimes(forward=Curve(((1, 1.0),)), backward=Curve(((1, 1.0),)))
    profile = CostProfile(
        model=model,
        cluster=Cluster(devices=tuple(ClusterDevice(name=d.name, type="one") for d in devices)),
        times={"one": (times,) * len(model.layers)},
    )
    found = predict_plan(plan, profile, batch_size).memory
    return [found[place].total for place in range(num_devices)]


def test_each_kind_by_hand() -> None:
    assert estimate_memory(MODEL, 6) == MemoryByKind(
        weights=160,
        optimizer_state=320,
        other_variables=10,
        fetched=0,
        gradients=160,
        activations=(4 + 8) * 6,
        samples=6,
        workspace=3 * 6,
    )
    assert estimate_memory(MODEL, 6).total == 160 + 320 + 10 + 160 + 72 + 6 + 18


def test_the_fullest_device_of_two_by_hand() -> None:
    # gpu:0 owns a, the larger of the layers: its gradient of now, gpu:1's, and those that wait as
    # far as they have no place of b's weights, which are gone then.
    assert estimate_memory(MODEL, 6, num_devices=2) == MemoryByKind(
        weights=100,
        optimizer_state=200,
        other_variables=10,
        fetched=60,
        gradients=3 * 100 - 60,
        activations=4 * 3,
        samples=3,
        workspace=(3 + 2) * 3,
    )


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("name", model_names())
def test_one_device_needs_what_is_predicted_of_a_plan(name: str, way: Way) -> None:
    model = model_named(name).costs
    (wanted,) = predicted(model, 16, way, 1)
    # The parts are rounded one by one.
    assert abs(estimate_memory(model, 16, way).total - wanted) <= 4


@pytest.mark.parametrize("num_devices", [2, 3, 8])
@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("name", sorted(SMALL))
def test_the_fullest_device_needs_what_is_predicted(name: str, way: Way, num_devices: int) -> None:
    model = model_named(name).costs
    wanted = max(predicted(model, 16 * num_devices, way, num_devices))
    found = estimate_memory(model, 16 * num_devices, way, num_devices=num_devices)
    assert abs(found.total - wanted) <= 4


def test_the_largest_micro_batch_counts() -> None:
    way = Way(num_micro_batches=4)
    assert estimate_memory(MODEL, 10, way) == estimate_memory(MODEL, 12, way)
    assert estimate_memory(MODEL, 3, way) == estimate_memory(MODEL, 4, way)
    assert estimate_memory(MODEL, 7, num_devices=2) == estimate_memory(MODEL, 8, num_devices=2)


def test_a_batch_with_fewer_samples_than_devices_uses_as_many_devices() -> None:
    assert estimate_memory(MODEL, 1, num_devices=8) == estimate_memory(MODEL, 1)


def test_layers_that_keep_less_than_they_read_are_not_recomputed() -> None:
    a, b = MODEL.layers
    model = dataclasses.replace(MODEL, layers=(a, dataclasses.replace(b, activation_bytes=2)))
    assert recomputed_layers(MODEL) == (True, True)
    assert recomputed_layers(model) == (True, False)


@pytest.mark.parametrize("num_devices", [1, 2, 5])
@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("memory", [0, 400, 700, 746, 747, 10_000, 100_000])
def test_the_largest_batch_is_the_last_that_fits(memory: int, way: Way, num_devices: int) -> None:
    batch = largest_batch(MODEL, memory, way, num_devices=num_devices)
    at_once = num_devices * way.num_micro_batches
    assert batch % at_once == 0
    if batch:
        found = estimate_memory(MODEL, batch, way, num_devices=num_devices)
        assert found.total <= memory
    more = estimate_memory(MODEL, batch + at_once, way, num_devices=num_devices)
    assert more.total > memory


@pytest.mark.parametrize("name", model_names())
def test_the_largest_batch_of_published_models(name: str) -> None:
    model = model_named(name).costs
    for gib in (8, 24, 80):
        batch = largest_batch(model, gib * 2**30, num_devices=2)
        after = estimate_memory(model, batch + 2, num_devices=2)
        assert after.total > gib * 2**30
        if batch:
            assert estimate_memory(model, batch, num_devices=2).total <= gib * 2**30


def test_batches_end_where_planning_does() -> None:
    assert largest_batch(MODEL, 2**60) == MOST_SAMPLES
    found = largest_batch(MODEL, 2**60, Way(num_micro_batches=3))
    assert found == 3 * math.floor(MOST_SAMPLES / 3)
