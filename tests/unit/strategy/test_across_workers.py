"""Devices of the workers of a job, and a plan for several of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from evener.errors import PlanError, RunError
from evener.plan import Plan, PlanDevice
from evener.strategy.plans import devices_of_all, devices_of_owners, own_devices
from evener.strategy.shares import SharesOfWorkers
from evener.workers.messages import View

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


def told_by(index: int, *told: Any) -> list[PlanDevice]:
    """Return the devices of three workers, some of which have told theirs; of a CPU in each."""
    found = group(index, 3)
    found.exchange = lambda name, own: [*told, own] if index == 2 else [*told]
    return devices_of_all(found, [PlanDevice(name="cpu:0", kind="cpu")])


def test_a_worker_that_died_before_it_told_its_devices_has_a_place() -> None:
    """Its replacement computes alone in the end."""
    devices = told_by(2, [0, [["cpu:0", "cpu", None]]])
    assert [device.name for device in devices] == [f"worker:{k}/cpu:0" for k in range(3)]
    assert told_by(1, [0, [["cpu:0", "cpu", None]]]) == devices[:1] + devices[1:]
    names = [device.name for device in devices]
    shares = SharesOfWorkers(names, [1, 1, 1], measured=False, group=group(1, 3), workers=(0, 1, 2))
    for number, members in ((2, (0, 1)), (3, (1,))):
        view = View(number=number, members=members, addresses={}, done={0: 5}, joined=())
        shares.begin_with(shares.common_state(), view)
    assert shares.shares == (0.0, 1.0, 0.0)


def test_a_replacement_with_other_devices_than_expected_is_refused() -> None:
    with pytest.raises(RunError, match="RUN-094") as caught:
        told_by(1, [0, [["gpu:0", "gpu", None], ["gpu:1", "gpu", None]]])
    assert "they have gpu:0, gpu:1 as its devices" in str(caught.value)


def test_all_workers_choose_owners_among_the_same_devices() -> None:
    assert devices_of_owners(PLAN) == ["cpu:0", "cpu:1"]
    assert devices_of_owners(Plan.data_parallel(["gpu:0", "gpu:1"])) == ["gpu:0", "gpu:1"]
