"""Rules that were wrong once, put back: the programs that were found fail again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from evener.graph.ops import arithmetic
from evener.graph.ops.registry import OPERATIONS
from evener.graph.ops.states import PARTIALS, Decision, Partial
from evener.partition import build, tasks
from exactness.fuzz.check import Trial, check
from exactness.test_found_programs import program_of

Patch = Callable[[pytest.MonkeyPatch], None]


def sizes_of_parts(patch: pytest.MonkeyPatch) -> None:
    """A part takes the number of a size from what it holds, although that is its own maximum."""
    for module in (tasks, build):
        patch.setattr(module, "is_known_to_parts", lambda source, state: True)


def partial_positions(patch: pytest.MonkeyPatch) -> None:
    """A slice of partial sums begins where a partial sum says."""

    def decide(node, states):
        found = {state for state in states if isinstance(state, Partial)}
        if len(found) != 1 or not isinstance(states[0], Partial):
            return None
        return Decision(inputs=tuple(states), outputs=(*found,) * len(node.outputs))

    for op in ("StridedSlice", "Slice"):
        rule = OPERATIONS[op].partial_rule
        assert rule is not None
        wrong = dataclasses.replace(rule, decide=decide, inputs=(PARTIALS,) * len(rule.inputs))
        patch.setattr(OPERATIONS[op], "partial_rule", wrong)


def means_of_integers(patch: pytest.MonkeyPatch) -> None:
    """Every part rounds its mean."""
    rule = OPERATIONS["Mean"].partial_rule
    assert rule is not None
    patch.setattr(OPERATIONS["Mean"], "partial_rule", dataclasses.replace(rule, inexact=False))


def division_by_none(patch: pytest.MonkeyPatch) -> None:
    """Every part divides its sum by a size that may be 0."""
    patch.setattr(arithmetic, "is_not_zero", arithmetic.is_count)


# The fault, and a program that was found and has it.
PUT_BACK: dict[str, tuple[Patch, str]] = {
    "sizes of parts": (sizes_of_parts, "positions/column_of_a_sum"),
    "partial positions": (partial_positions, "positions/sum_over_the_batch_from_a_sum_on"),
    "means of integers": (means_of_integers, "integers/mean_of_a_sum"),
    "division by none": (division_by_none, "infinite/sum_over_one_sample_less"),
}


@pytest.mark.parametrize("name", sorted(PUT_BACK))
def test_found_program_fails(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put_back, found = PUT_BACK[name]
    trial = Trial(program=program_of(found), plan="3", sizes=(8, 1), seed=3)
    assert check(trial).fault is None
    put_back(monkeypatch)
    assert check(trial).fault is not None
