"""The search against all plans of a small space."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evener.planner import Choices, search_plan
from evener.planner.assignment import HOST_OWNER, Assignment
from evener.profile import CostProfile, Curve, LayerCosts, LayerTimes, Link, ModelCosts
from unit.planner.brute_force import best_plan
from unit.planner.profiles import MIB, cluster_of, model_of, profile_of, profiles

WITHIN = 1.01
COUNTS = (1, 2, 4)


def check(profile: CostProfile, batch_size: int, *, all_owners: bool) -> Assignment | None:
    """Compare with all plans; a plan that is only simpler is not preferred."""
    best = best_plan(profile, batch_size, num_micro_batches=COUNTS, all_owners=all_owners)
    choices = Choices(num_micro_batches=COUNTS, host=all_owners, simpler_within=0.0)
    result = search_plan(profile, batch_size, choices)
    found = result.best
    if best is None:
        assert found is None
        return None
    assert found is not None, f"nothing was found, and {best[0]:.6g} s is possible"
    assert found.fits
    assert found.prediction.step_seconds <= best[0] * WITHIN
    return result.assignment


@settings(max_examples=40)
@given(profiles(most_devices=3, most_layers=4))
def test_with_memory_enough(profile: CostProfile) -> None:
    check(profile, 6, all_owners=False)


@pytest.mark.long
@settings(max_examples=25)
@given(profiles(most_devices=3, most_layers=8))
def test_of_longer_models(profile: CostProfile) -> None:
    check(profile, 6, all_owners=False)


@pytest.mark.long
@settings(max_examples=60)
@given(profiles(most_devices=2, most_layers=3, tight=True))
def test_with_little_memory(profile: CostProfile) -> None:
    check(profile, 6, all_owners=True)


@settings(max_examples=40)
@given(profiles(most_devices=1, most_layers=7, tight=True))
def test_of_one_device_on_which_some_layers_are_computed_again(profile: CostProfile) -> None:
    check(profile, 6, all_owners=False)


@settings(max_examples=40)
@given(profiles(most_devices=2, most_layers=3, tight=True), st.integers(0, 2))
def test_of_models_in_which_micro_batches_meet(profile: CostProfile, place: int) -> None:
    layers = list(profile.model.layers)
    place = min(place, len(layers) - 1)
    layers[place] = dataclasses.replace(layers[place], forward_barriers=2, backward_barriers=1)
    model = dataclasses.replace(profile.model, layers=tuple(layers))
    check(dataclasses.replace(profile, model=model), 6, all_owners=False)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("mebibytes", [7, 8, 9, 10, 12, 16, 24, 40])
@pytest.mark.parametrize("activation_bytes", [1024.0, MIB])
def test_as_memory_gets_short(mebibytes: int, activation_bytes: float) -> None:
    memory = (mebibytes * MIB, 40 * MIB)
    cluster = cluster_of(["fast", "slow"], memory, Link(bytes_per_second=1e11))
    slowness = {"fast": 1.0, "slow": 2.5}
    profile = profile_of(
        [1e-3] * 3, slowness, cluster, overhead=1e-4, activation_bytes=activation_bytes
    )
    check(profile, 6, all_owners=True)


def test_a_fast_device_may_need_more_micro_batches_than_samples_in_an_even_split() -> None:
    # 3 of 6 samples would be its share; 4 of them only fit one after another.
    profile = CostProfile(
        model=model_of((5e-3, 5e-3), weight_bytes=MIB // 8, activation_bytes=MIB / 16),
        cluster=cluster_of(["fast", "slow"], [MIB, MIB], Link(bytes_per_second=1e11)),
        times={"fast": alike(3e-3), "slow": alike(7.5e-3)},
    )
    found = check(profile, 6, all_owners=True)
    assert found is not None
    assert [replica.samples for replica in found.replicas] == [4, 2]


def alike(seconds: float) -> tuple[LayerTimes, ...]:
    """Return times of two layers that grow with samples, and cost nothing to start."""
    line = Curve(((1, seconds / 3), (64, 64 * seconds / 3)))
    return (LayerTimes(forward=line, backward=line.scaled(2.0)),) * 2


# Problems with little memory, with a figure for each layer or each device.
TIGHT: dict[str, dict[str, Any]] = {
    # The slow device helps only if the fast one has two micro-batches: at first, it is no faster
    # than the fast one alone, which is also a plan of the grouping with both.
    "with a slow device": {
        "weight_bytes": (MIB // 4, 0, MIB // 8, MIB // 8),
        "optimizer_bytes": MIB // 4,
        "activation_bytes": (MIB, MIB, MIB, MIB / 4),
        "boundary_bytes": (128.0, 128.0, 32.0, 128.0),
        "seconds": (1e-2, 1e-2, 2e-3, 1e-2),
        "slowness": (1.0, 6.0),
        "memory": (11 * MIB, 22 * MIB),
        "num_barriers": (0, 0, 0, 2),
    },
    # Of the same grouping, a plan with other owners is faster at first, and cannot get as fast.
    "with other owners": {
        "weight_bytes": (MIB, 0, 0, MIB),
        "optimizer_bytes": 2 * MIB,
        "activation_bytes": (MIB / 4, MIB, MIB, MIB),
        "boundary_bytes": (8192.0, 4096.0, 2048.0, 4096.0),
        "seconds": (1e-2, 1e-3, 1e-3, 1e-3),
        "slowness": (6.0, 1.0, 2.5),
        "memory": (41628467, 10407117, 10407117),
        "num_barriers": (0, 0, 0, 0),
    },
}


@pytest.mark.parametrize("tight", TIGHT.values(), ids=TIGHT)
def test_the_best_may_begin_slower_than_others(tight: dict[str, Any]) -> None:
    layers = tuple(
        LayerCosts(
            name=f"layer_{k}",
            weight_bytes=tight["weight_bytes"][k],
            optimizer_bytes=tight["optimizer_bytes"],
            activation_bytes=tight["activation_bytes"][k],
            boundary_bytes=tight["boundary_bytes"][k],
            forward_barriers=num_barriers,
            backward_barriers=num_barriers // 2,
        )
        for k, num_barriers in enumerate(tight["num_barriers"])
    )
    slowness = {str(factor): factor for factor in tight["slowness"]}
    link = Link(bytes_per_second=1e8, latency_seconds=1e-4)
    cluster = cluster_of(list(slowness), tight["memory"], link)
    profile = profile_of(tight["seconds"], slowness, cluster, overhead=1e-4)
    model = ModelCosts(name="tight", layers=layers, input_bytes=64.0)
    check(dataclasses.replace(profile, model=model), 6, all_owners=False)


def test_the_host_owns_what_it_updates_faster() -> None:
    cluster = cluster_of(["one", "one"], None, Link(bytes_per_second=1e11))
    sizes = {"weight_bytes": MIB // 8, "activation_bytes": 1024.0}
    # 1 ms for each update; the host takes less than 0.1 ms.
    profile = profile_of([1e-3, 1e-3], {"one": 1.0}, cluster, overhead=2e-3, **sizes)
    found = check(profile, 6, all_owners=True)
    assert found is not None
    assert found.owners == (HOST_OWNER, HOST_OWNER)
