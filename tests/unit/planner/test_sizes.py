"""Growth of the work of a search with the cluster: counted, not timed."""

from __future__ import annotations

from collections import Counter

import pytest

from evener.planner import search_plan
from evener.planner.groups import GroupCosts
from evener.planner.search import Solver
from evener.profile import CostProfile, Link
from unit.planner.profiles import MIB, cluster_of, model_of, times_of

SECONDS = [1e-3] * 20
ROOMY, TIGHT = None, 40 * MIB


def profile_of(num_devices: int, memory: int | None) -> CostProfile:
    """Return a profile of as many fast devices as slow ones."""
    types = ["fast"] * (num_devices // 2) + ["slow"] * (num_devices // 2)
    return CostProfile(
        model=model_of(SECONDS),
        cluster=cluster_of(types, [memory] * num_devices, Link(bytes_per_second=1e10)),
        times={
            name: times_of(SECONDS, slowness=slowness, overhead=1e-4)
            for name, slowness in (("fast", 1.0), ("slow", 2.5))
        },
    )


def work_of(num_devices: int, memory: int | None) -> Counter[str]:
    """Return how often groupings are solved, models cut, and times of replicas looked up."""
    counted: Counter[str] = Counter()
    with pytest.MonkeyPatch.context() as patch:
        for kind, name in ((Solver, "solve"), (GroupCosts, "cut"), (GroupCosts, "_makespan")):
            patch.setattr(kind, name, _counting(counted, name, getattr(kind, name)))
        assert search_plan(profile_of(num_devices, memory), 8 * num_devices).best is not None
    return counted


def _counting(counted: Counter[str], name: str, method: object) -> object:
    assert callable(method)

    def call(*arguments: object, **named: object) -> object:
        counted[name] += 1
        return method(*arguments, **named)

    return call


@pytest.mark.parametrize("memory", [ROOMY, TIGHT])
def test_work_grows_far_slower_than_the_cluster(memory: int | None) -> None:
    small, large = work_of(16, memory), work_of(128, memory)
    # Eight times as many devices.
    assert large["solve"] <= 2 * small["solve"]
    assert large["cut"] <= 3 * small["cut"]
    assert large["_makespan"] <= 4 * small["_makespan"]


def test_few_groupings_are_solved_where_memory_is_enough() -> None:
    assert work_of(128, ROOMY)["solve"] <= 40


def test_equal_devices_are_looked_at_once() -> None:
    mixed = work_of(16, ROOMY)
    alike = Counter[str]()
    profile = profile_of(16, ROOMY)
    cluster = cluster_of(["fast"] * 16, None, Link(bytes_per_second=1e10))
    equal = CostProfile(model=profile.model, cluster=cluster, times=profile.times)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Solver, "solve", _counting(alike, "solve", Solver.solve))
        search_plan(equal, 128)
    assert alike["solve"] < mixed["solve"]
