"""The plans that a run tries: the two simplest, and the best by its prediction."""

from __future__ import annotations

import dataclasses

from evener.clusters import cluster_named, datasheet_profile, model_named
from evener.planner import Planned, plan_profile
from evener.planner.planning import plans_to_try
from evener.profile import CostProfile


def planned_for(cluster: str, batch_size: int, memory: dict[str, int] | None = None) -> Planned:
    profile = datasheet_profile(model_named("resnet-50"), cluster_named(cluster))
    return plan_profile(_with_memory(profile, memory or {}), batch_size)


def _with_memory(profile: CostProfile, memory: dict[str, int]) -> CostProfile:
    devices = tuple(
        dataclasses.replace(device, memory_bytes=memory.get(device.name, device.memory_bytes))
        for device in profile.cluster.devices
    )
    cluster = dataclasses.replace(profile.cluster, devices=devices)
    return dataclasses.replace(profile, cluster=cluster)


def test_the_best_device_alone_even_shares_and_the_plan() -> None:
    planned = planned_for("rtx3090-rtx3060", 128)
    alone, even, best = plans_to_try(planned)
    assert [stage.device for replica in alone.replicas for stage in replica.stages] == ["gpu:0"]
    assert even.device_names == ("gpu:0", "gpu:1") and len(set(even.shares)) == 1
    assert best is planned.plan


def test_a_plan_that_is_one_of_the_simplest_is_tried_once() -> None:
    planned = planned_for("a100-8", 512)
    plans = plans_to_try(planned)
    assert len(plans) == 2 and plans[1] is planned.plan


def test_what_does_not_fit_is_not_tried() -> None:
    planned = planned_for("rtx3090-rtx3060", 128, {"gpu:1": 2 * 2**30})
    plans = plans_to_try(planned)
    assert [len(plan.device_names) for plan in plans] == [1, 2]
    assert plans[1] is planned.plan
