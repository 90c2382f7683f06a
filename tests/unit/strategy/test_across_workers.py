"""Devices of the workers of a job, and a plan for several of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from evener.errors import PlanError
from evener.plan import Plan
from evener.strategy.across_workers import devices_of_owners, own_devices

PLAN = Plan.data_parallel(["worker:0/gpu:0", "worker:1/cpu:0", "worker:1/cpu:1"])


def group(index: int, count: int) -> Any:
    return SimpleNamespace(index=index, count=count)


def test_own_devices_of_a_plan() -> None:
    assert own_devices(group(0, 2), PLAN) == ["gpu:0"]
    assert own_devices(group(1, 2), PLAN) == ["cpu:0", "cpu:1"]


@pytest.mark.parametrize(
    ("plan", "count"), [(PLAN, 3), (PLAN, 1), (Plan.data_parallel(["gpu:0", "gpu:1"]), 2)]
)
def test_a_plan_for_other_workers(plan: Plan, count: int) -> None:
    with pytest.raises(PlanError, match="PLAN-052"):
        own_devices(group(0, count), plan)


def test_all_workers_choose_owners_among_the_same_devices() -> None:
    assert devices_of_owners(PLAN) == ["cpu:0", "cpu:1"]
    assert devices_of_owners(Plan.data_parallel(["gpu:0", "gpu:1"])) == ["gpu:0", "gpu:1"]
