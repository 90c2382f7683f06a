"""The search against all plans of a small space."""

from __future__ import annotations

from hypothesis import given

from evener.plan.search import Choices, search_plan
from evener.profile import CostProfile
from unit.plan.search.brute_force import least_seconds
from unit.plan.search.profiles import profiles

WITHIN = 1.01


def check(profile: CostProfile, batch_size: int, *, all_owners: bool) -> None:
    counts = (1, 2, 4)
    best = least_seconds(profile, batch_size, num_micro_batches=counts, all_owners=all_owners)
    choices = Choices(num_micro_batches=counts, host=all_owners, simpler_within=0.0)
    found = search_plan(profile, batch_size, choices).best
    if best is None:
        assert found is None
    else:
        assert found is not None, f"nothing was found, and {best:.6g} s is possible"
        assert found.prediction.step_seconds <= best * WITHIN


@given(profiles(most_devices=3, most_layers=4))
def test_with_memory_enough(profile: CostProfile) -> None:
    check(profile, 6, all_owners=False)


@given(profiles(most_devices=2, most_layers=3, tight=True))
def test_with_little_memory(profile: CostProfile) -> None:
    check(profile, 6, all_owners=True)
