"""Plans that differ by less than the noise of measuring: the simpler one is chosen."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from evener.plan import Plan
from evener.planner import Choices, plan_profile
from evener.planner.assignment import Assignment, ReplicaAssignment, Span
from evener.planner.planning import complexity
from evener.profile import CostProfile, Curve, LayerTimes, Link
from unit.planner.profiles import cluster_of, model_of

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
    profile = two_devices([(1, 0.1), (64, 6.4)], slowness=1.08)
    exact = chosen(profile, noise=0.0)
    assert exact.shares == (33, 31)
    assert chosen(profile).shares == (32, 32)


def test_unlike_devices_get_uneven_shares() -> None:
    shares = chosen(two_devices([(1, 0.1), (64, 6.4)], slowness=1.5)).shares
    assert shares == (38, 26)


def test_one_device_if_two_are_no_faster() -> None:
    # A step takes as long for 32 samples as for 64.
    flat = [(1, 1.0), (32, 1.0), (64, 1.02)]
    assert len(chosen(two_devices(flat), noise=0.0).replicas) == 2
    plan = chosen(two_devices(flat))
    assert plan.device_names == ("gpu:0",) and plan.layout == "one device"
    assert any("2 replicas" in other.layout for other in plan.rejected)


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


def test_two_devices_if_they_are_faster_beyond_the_noise() -> None:
    assert len(chosen(two_devices([(1, 1.0), (32, 1.0), (64, 1.2)])).replicas) == 2


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
