"""Plans with what they cost, why others lost, and what would help; simpler plans."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from evener.clusters import cluster_named, datasheet_profile, model_named
from evener.errors import PlanError
from evener.plan import Plan
from evener.planner import Choices, Planned, check_plan, plan_profile
from evener.planner.assignment import Assignment, ReplicaAssignment, Span
from evener.planner.planning import complexity, plans_to_try
from evener.planner.prediction import MOST_SAMPLES
from evener.profile import CostProfile, Curve, LayerTimes, Link
from unit.planner.profiles import MIB, cluster_of, model_of, profile_of

SECONDS = [1e-3] * 6


def profile_with(*memory: int | None, slow: float = 3.0, link: float = 1e10) -> CostProfile:
    """Return a profile of a fast and a slow device."""
    cluster = cluster_of(["fast", "slow"], memory, Link(bytes_per_second=link))
    slowness = {"fast": 1.0, "slow": slow}
    return profile_of(SECONDS, slowness, cluster, overhead=1e-4, activation_bytes=MIB)


def test_shares_follow_speed_and_what_was_rejected_has_numbers() -> None:
    planned = plan_profile(profile_with(None, None), 64)
    plan = planned.plan
    assert (plan.layout, plan.shares, plan.owners) == ("data parallel", (48, 16), "sharded")
    assert plan.predicted is not None
    assert plan.predicted.step_seconds == planned.prediction.step_seconds
    reasons = {rejected.layout: rejected.reason for rejected in plan.rejected}
    # Even shares: the slow device computes 32 samples where 16 would do.
    assert "2.00 times as long" in reasons["even shares"]
    assert "1.3" in reasons["gpu:0 alone"]
    assert "of it computing" in reasons["gpu:1 alone"]


def test_what_lacks_memory_says_how_much() -> None:
    costs = profile_with(None, 140 * MIB)
    planned = plan_profile(costs, 64)
    reasons = {rejected.layout: rejected.reason for rejected in planned.plan.rejected}
    assert reasons["gpu:1 alone"] == "gpu:1 needs 408.1 MiB and has 140.0 MiB"
    assert planned.problem == check_plan(planned.plan, costs, 64).problem == ""
    # A plan that somebody wrote.
    even = check_plan(Plan.data_parallel(["gpu:0", "gpu:1"]), costs, 64)
    assert even.prediction.step_seconds > planned.prediction.step_seconds
    assert even.problem.startswith("gpu:1 needs ")


def test_a_plan_for_little_memory_fits_and_says_what_would_help() -> None:
    free = plan_profile(profile_with(None, None), 64)
    tight = plan_profile(profile_with(80 * MIB, 80 * MIB), 64)
    assert tight.plan.predicted is not None
    assert all(size <= 80 * MIB for size in tight.plan.predicted.peak_bytes.values())
    assert tight.prediction.step_seconds >= free.prediction.step_seconds


def test_more_memory_and_faster_links_are_told_if_they_help() -> None:
    # With micro-batches of a sample, each layer costs its overhead for every sample.
    cluster = cluster_of(["fast", "slow"], (50 * MIB, None), Link(bytes_per_second=1e10))
    slowness = {"fast": 1.0, "slow": 100.0}
    costs = profile_of(SECONDS, slowness, cluster, overhead=1e-2, activation_bytes=MIB)
    remedies = plan_profile(costs, 64).remedies
    assert any("more on gpu:0" in remedy and "times as fast" in remedy for remedy in remedies)
    remedies = plan_profile(profile_with(None, None, link=1e7), 64).remedies
    assert any(remedy.startswith("links of twice the bandwidth") for remedy in remedies)


def test_nothing_fits() -> None:
    costs = profile_with(MIB, MIB)
    costs = dataclasses.replace(costs, cluster=dataclasses.replace(costs.cluster, name="small"))
    with pytest.raises(PlanError) as caught:
        plan_profile(costs, 64)
    assert caught.value.code == "PLAN-043"
    assert "needs" in caught.value.why
    assert "MiB" in caught.value.fix


@pytest.mark.long
def test_a_batch_that_is_too_large_names_one_that_fits() -> None:
    costs = profile_with(30 * MIB, 30 * MIB)
    with pytest.raises(PlanError) as caught:
        plan_profile(costs, 2**20)
    assert caught.value.code == "PLAN-043"
    samples = int(caught.value.fix.split()[4].rstrip(","))
    plan_profile(costs, samples)


def test_a_cluster_that_is_too_large_is_refused_at_once() -> None:
    profile = profile_with(None, None)
    devices = [
        dataclasses.replace(profile.cluster.devices[0], name=f"gpu:{k}") for k in range(100_000)
    ]
    cluster = dataclasses.replace(profile.cluster, devices=tuple(devices))
    with pytest.raises(PlanError, match="100,000 devices") as caught:
        plan_profile(dataclasses.replace(profile, cluster=cluster), 100_000)
    assert caught.value.code == "PLAN-054"
    assert "1/49 of its machines" in caught.value.fix


@pytest.mark.parametrize("batch_size", [0, -3, 2**21])
def test_batch_sizes_that_cannot_be(batch_size: int) -> None:
    with pytest.raises(PlanError, match="PLAN-042"):
        plan_profile(profile_with(None, None), batch_size)


def test_the_most_that_fits_at_once() -> None:
    planned = plan_profile(profile_with(200 * MIB, 100 * MIB), "max")
    assert all(replica.num_micro_batches == 1 for replica in planned.plan.replicas)
    peak = sum(planned.plan.predicted.peak_bytes.values())  # pyright: ignore
    assert 0.85 * 300 * MIB <= peak <= 300 * MIB
    # With unlimited memory, it is the largest that is searched for.
    planned = plan_profile(profile_with(None, None), "max", Choices(noise=0.0))
    assert planned.batch_size == sum(planned.plan.shares) == MOST_SAMPLES
    assert str(planned.assignment.replicas[0].samples) in str(planned.plan).split()


@pytest.mark.long
def test_the_knee_of_the_curve() -> None:
    costs = dataclasses.replace(profile_with(None, None), step_overhead_seconds=0.05)
    planned = plan_profile(costs, "auto")
    rate = planned.batch_size / planned.prediction.step_seconds
    twice = plan_profile(costs, 2 * planned.batch_size)
    half = plan_profile(costs, planned.batch_size // 2)
    assert rate >= 0.95 * twice.batch_size / twice.prediction.step_seconds
    assert rate > half.batch_size / half.prediction.step_seconds


BATCH = 64


def two_devices(
    points: Sequence[tuple[float, float]], *, slowness: float = 1.0, num_layers: int = 4
) -> CostProfile:
    """Return a profile of two devices, on whose first the layers take these seconds together."""
    curve = Curve(tuple((samples, seconds / num_layers) for samples, seconds in points))
    zero = Curve(((1, 0.0),))
    return CostProfile(
        model=model_of([1.0] * num_layers, weight_bytes=1024),
        cluster=cluster_of(["first", "second"], None, Link(bytes_per_second=1e12)),
        times={
            "first": (LayerTimes(forward=curve, backward=zero),) * num_layers,
            "second": (LayerTimes(forward=curve.scaled(slowness), backward=zero),) * num_layers,
        },
    )


def chosen(profile: CostProfile, *, noise: float = 0.05) -> Plan:
    return plan_profile(profile, BATCH, Choices(noise=noise)).plan


def test_devices_that_were_measured_nearly_alike_get_even_shares() -> None:
    points = [(1, 0.1), (64, 6.4)]
    alike = two_devices(points, slowness=1.08)
    assert chosen(alike, noise=0.0).shares == (33, 31)
    assert chosen(alike).shares == (32, 32)
    assert chosen(two_devices(points, slowness=1.5)).shares == (38, 26)


def test_one_device_if_two_are_no_faster_beyond_the_noise() -> None:
    # A step takes as long for 32 samples as for 64.
    flat = [(1, 1.0), (32, 1.0), (64, 1.02)]
    assert len(chosen(two_devices(flat), noise=0.0).replicas) == 2
    plan = chosen(two_devices(flat))
    assert plan.device_names == ("gpu:0",) and plan.layout == "one device"
    assert any("2 replicas" in other.layout for other in plan.rejected)
    assert len(chosen(two_devices([*flat[:2], (64, 1.2)])).replicas) == 2


def test_no_micro_batches_that_are_no_faster_beyond_the_noise() -> None:
    # Two micro-batches of 32 take 4 % less than one of 64, on a device that is far faster.
    points = [(1, 0.1), (32, 0.48), (64, 1.0)]
    profile = two_devices(points, slowness=30.0)
    assert chosen(profile, noise=0.0).replicas[0].num_micro_batches == 2
    assert chosen(profile).replicas[0].num_micro_batches == 1


def test_micro_batches_save_memory_and_not_time() -> None:
    """A curve that is too steep, as a noisy machine measures it, promises a third of the time."""
    steep = two_devices([(1, 0.01), (8, 0.2), (64, 6.0)], slowness=30.0)
    assert chosen(steep, noise=0.0).replicas[0].num_micro_batches > 1
    plan = chosen(steep)
    assert [replica.num_micro_batches for replica in plan.replicas] == [1] * len(plan.replicas)
    # Four layers keep 16 KiB of each sample: the half of the batch takes 2 MiB.
    memory = [3 * 2**19, 3 * 2**19]
    link = Link(bytes_per_second=1e12)
    small = dataclasses.replace(steep, cluster=cluster_of(["first", "second"], memory, link))
    assert any(replica.num_micro_batches > 1 for replica in chosen(small).replicas)


@pytest.mark.parametrize(
    ("replicas", "expected"),
    [
        ([(64, [0])], 0),
        ([(32, [0]), (32, [1])], 1),
        ([(22, [0]), (21, [1]), (21, [2])], 1),
        ([(39, [0]), (25, [1])], 2),
        ([(64, [0, 1])], 3),
        ([(32, [0, 1]), (32, [2, 3])], 3),
    ],
)
def test_the_order_of_layouts(replicas: list[tuple[int, list[int]]], expected: int) -> None:
    def spans(devices: list[int]) -> tuple[Span, ...]:
        return tuple(Span(device, k, k + 1) for k, device in enumerate(devices))

    found = Assignment(
        replicas=tuple(
            ReplicaAssignment(samples=samples, spans=spans(devices))
            for samples, devices in replicas
        ),
        owners=(0,),
        recompute=(False,),
    )
    assert complexity(found) == expected


def planned_for(cluster: str, batch_size: int, memory: dict[str, int]) -> Planned:
    profile = datasheet_profile(model_named("resnet-50"), cluster_named(cluster))
    devices = tuple(
        dataclasses.replace(device, memory_bytes=memory.get(device.name, device.memory_bytes))
        for device in profile.cluster.devices
    )
    described = dataclasses.replace(profile.cluster, devices=devices)
    return plan_profile(dataclasses.replace(profile, cluster=described), batch_size)


def test_the_best_device_alone_even_shares_and_the_plan() -> None:
    planned = planned_for("rtx3090-rtx3060", 128, {})
    alone, even, best = plans_to_try(planned)
    assert [stage.device for replica in alone.replicas for stage in replica.stages] == ["gpu:0"]
    assert even.device_names == ("gpu:0", "gpu:1") and len(set(even.shares)) == 1
    assert best is planned.plan


@pytest.mark.parametrize(
    ("cluster", "batch_size", "memory", "num_devices"),
    [
        ("rtx3090-rtx3060", 128, {"gpu:1": 2 * 2**30}, [1, 2]),
        # The plan itself is one of the simplest.
        ("a100-8", 512, {}, [1, 8]),
    ],
)
def test_what_does_not_fit_or_is_there_already_is_not_tried(
    cluster: str, batch_size: int, memory: dict[str, int], num_devices: list[int]
) -> None:
    planned = planned_for(cluster, batch_size, memory)
    plans = plans_to_try(planned)
    assert [len(plan.device_names) for plan in plans] == num_devices
    assert plans[1] is planned.plan
