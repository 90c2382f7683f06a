"""Plans with what they cost, why others lost, and what would help."""

from __future__ import annotations

import dataclasses

import pytest

from evener.errors import PlanError
from evener.plan import Plan
from evener.planner import Choices, check_plan, plan_profile
from evener.planner.prediction import MOST_SAMPLES
from evener.profile import CostProfile, Link
from unit.planner.profiles import MIB, cluster_of, model_of, times_of

SECONDS = [1e-3] * 6


def profile_with(*memory: int | None, slow: float = 3.0, link: float = 1e10) -> CostProfile:
    """Return a profile of a fast and a slow device."""
    return CostProfile(
        model=model_of(SECONDS, activation_bytes=MIB),
        cluster=cluster_of(["fast", "slow"], memory, Link(bytes_per_second=link)),
        times={
            "fast": times_of(SECONDS, slowness=1.0, overhead=1e-4),
            "slow": times_of(SECONDS, slowness=slow, overhead=1e-4),
        },
    )


def test_shares_follow_speed() -> None:
    planned = plan_profile(profile_with(None, None), 64)
    assert planned.plan.layout == "data parallel"
    assert planned.plan.shares == (48, 16)
    assert planned.plan.predicted is not None
    assert planned.plan.predicted.step_seconds == planned.prediction.step_seconds
    assert planned.plan.owners == "sharded"


def test_what_was_rejected_has_numbers() -> None:
    reasons = {
        rejected.layout: rejected.reason
        for rejected in plan_profile(profile_with(None, None), 64).plan.rejected
    }
    # Even shares: the slow device computes 32 samples where 16 would do.
    assert "2.00 times as long" in reasons["even shares"]
    assert "1.3" in reasons["gpu:0 alone"]
    assert "of it computing" in reasons["gpu:1 alone"]


def test_what_lacks_memory_says_how_much() -> None:
    planned = plan_profile(profile_with(None, 140 * MIB), 64)
    reasons = {rejected.layout: rejected.reason for rejected in planned.plan.rejected}
    assert reasons["gpu:1 alone"] == "gpu:1 needs 408.1 MiB and has 140.0 MiB"
    assert planned.problem == ""


def test_a_plan_for_little_memory_fits_and_says_what_would_help() -> None:
    free = plan_profile(profile_with(None, None), 64)
    tight = plan_profile(profile_with(80 * MIB, 80 * MIB), 64)
    assert tight.plan.predicted is not None
    assert all(size <= 80 * MIB for size in tight.plan.predicted.peak_bytes.values())
    assert tight.prediction.step_seconds >= free.prediction.step_seconds


def test_more_memory_is_told_if_it_helps() -> None:
    # With micro-batches of a sample, each layer costs its overhead for every sample.
    costs = dataclasses.replace(
        profile_with(50 * MIB, None, slow=100.0),
        times={
            "fast": times_of(SECONDS, slowness=1.0, overhead=1e-2),
            "slow": times_of(SECONDS, slowness=100.0, overhead=1e-2),
        },
    )
    remedies = plan_profile(costs, 64).remedies
    assert any("more on gpu:0" in remedy and "times as fast" in remedy for remedy in remedies)


def test_faster_links_are_told_if_they_help() -> None:
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
    costs = profile_with(200 * MIB, 100 * MIB)
    planned = plan_profile(costs, "max")
    assert all(replica.num_micro_batches == 1 for replica in planned.plan.replicas)
    peak = sum(planned.plan.predicted.peak_bytes.values())  # pyright: ignore
    assert 0.85 * 300 * MIB <= peak <= 300 * MIB


def test_with_unlimited_memory_the_largest_batch_is_the_largest_that_is_searched_for() -> None:
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


def test_a_plan_that_somebody_wrote() -> None:
    costs = profile_with(None, 140 * MIB)
    even = check_plan(Plan.data_parallel(["gpu:0", "gpu:1"]), costs, 64)
    best = plan_profile(costs, 64)
    assert even.prediction.step_seconds > best.prediction.step_seconds
    assert even.problem.startswith("gpu:1 needs ")
    assert check_plan(best.plan, costs, 64).problem == ""


def test_a_plan_for_other_devices_or_layers() -> None:
    costs = profile_with(None, None)
    with pytest.raises(PlanError, match="PLAN-029"):
        check_plan(Plan.data_parallel(["gpu:7"]), costs, 64)
    wrong = Plan.pipeline({"gpu:0": "layer_0", "gpu:1": "laier_*"})
    with pytest.raises(PlanError, match="PLAN-040"):
        check_plan(wrong, costs, 64)
