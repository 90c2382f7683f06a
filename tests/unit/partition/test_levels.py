"""Levels of tasks: two tasks of the parts become one, where no other task comes between them."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import given

from evener.partition.tasks import PARTS, PARTS_WITH_SAMPLES, Place, merge_parts

PLACES = (Place(PARTS), Place(PARTS_WITH_SAMPLES), Place("cpu:0"))


def least_levels(dependencies: dict[Any, list[tuple[Any, bool]]]) -> dict[Any, int]:
    levels: dict[Any, int] = {}
    for node, needs in dependencies.items():
        levels[node] = max((levels[need] + (not same) for need, same in needs), default=0)
    return levels


def merged(
    places: dict[Any, Place], dependencies: dict[Any, list[tuple[Any, bool]]], *alone: Any
) -> dict[Any, int]:
    levels = least_levels(dependencies)
    merge_parts(levels, dependencies, places, alone)
    return levels


def num_tasks(places: dict[Any, Place], levels: dict[Any, int]) -> int:
    return len({(places[node], level) for node, level in levels.items()})


def test_tasks_that_wait_for_each_other_in_turn_are_not_moved_for_ever() -> None:
    first, second, _ = PLACES
    places = {"a": first, "b": second, "c": second, "d": first}
    dependencies = {"a": [], "b": [("a", False)], "c": [], "d": [("c", False)]}
    levels = merged(places, dependencies)
    # One of the two places has one task, between those of the other place.
    assert num_tasks(places, levels) == 3
    assert levels["b"] > levels["a"] and levels["d"] > levels["c"]


def test_a_task_alone_stays_as_it_is() -> None:
    parts, _, device = PLACES
    places = {"a": parts, "weight": device, "b": parts}
    dependencies = {"a": [], "weight": [], "b": [("a", True), ("weight", False)]}
    assert merged(places, dependencies) == {"a": 1, "weight": 0, "b": 1}
    assert merged(places, dependencies, "a") == {"a": 0, "weight": 0, "b": 1}


@given(st.data())
def test_every_node_stays_behind_what_it_needs(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 14))
    places: dict[Any, Place] = {k: data.draw(st.sampled_from(PLACES)) for k in range(count)}
    dependencies: dict[Any, list[tuple[Any, bool]]] = {}
    for node in range(count):
        needs = data.draw(st.sets(st.integers(0, node - 1), max_size=3)) if node else set()
        dependencies[node] = [
            (need, places[need] == places[node] and data.draw(st.booleans())) for need in needs
        ]
    levels = merged(places, dependencies)
    for node, needs in dependencies.items():
        for need, is_same in needs:
            assert levels[node] >= levels[need] + (not is_same)
    assert num_tasks(places, levels) <= num_tasks(places, least_levels(dependencies))
