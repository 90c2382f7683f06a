"""Whole jobs under seeded schedules of deaths, freezes, cuts and ends, in simulation."""

from __future__ import annotations

import pytest

from evener.workers.late import Late, Point
from workers import simulated
from workers.simulated import in_place

EVERYDAY, ALL = 1_000, 3_000
FIRST_FOUND = {
    "a state was taken behind the program's own assignments": 10,
    "exit 0 behind a worker that ended in mid-training, and a death": 29,
    "the others waited for a worker that had left": 35,
    "a worker that died in the first view had nobody to ask": 390,
    "nobody wrote for workers that joined in the middle of a save": 1223,
    "workers connected anew before their program began": 1168,
    "a member was late at the end of the program": 7739,
    "an exchange was given before a worker left early": 170,
}
"""Seeds whose jobs went wrong before; what they did then."""


@pytest.mark.parametrize("seed", FIRST_FOUND.values(), ids=FIRST_FOUND.keys())
def test_what_was_found_first(seed: int) -> None:
    assert simulated.failures([seed]) == []


def test_schedules() -> None:
    assert simulated.failures(range(EVERYDAY)) == []


@pytest.mark.long
@pytest.mark.parametrize("part", range(4))
def test_many_schedules(part: int) -> None:
    begin = 1_000_000 + part * ALL
    assert simulated.failures(range(begin, begin + ALL)) == []


def test_a_state_that_is_taken_elsewhere_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was before: at the next call, behind what the program has assigned meanwhile."""

    def stands(late: Late, point: Point) -> bool:
        return late.state is not None and point.calls == late.state.point.calls

    monkeypatch.setattr(Late, "is_with_others", stands)
    assert [seed for seed, _ in simulated.failures([442, 550, 602])] == [442, 550, 602]


def test_a_seed_is_a_schedule() -> None:
    logs: list[list[str]] = [[], []]
    with in_place():
        for log in logs:
            assert simulated.failure_of(10, log) is None
    assert logs[0] == logs[1]
    assert any("restart 1" in line for line in logs[0])
