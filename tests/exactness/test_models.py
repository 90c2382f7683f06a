"""The law for every model, with every optimizer, on 1, 2, 3 and 5 stand-ins.

Shares are even, uneven (with a replica that has none), or change while training, between
epochs or between batches. A covering subset of the full product has every model with every
optimizer, every number of stand-ins and every kind of shares; every optimizer with every number
and kind; every number with every kind. The default run takes a third of it (`sampled`).
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .compare import assert_equal
from .harness import CHANGES, UNEVEN, Layout, candidate_case, reference_case, start
from .models import BY_NAME, CASES
from .optimizers import OPTIMIZERS
from .tolerances import tolerance

NUMBERS = (1, 2, 3, 5)
KINDS = ("even", "uneven", "by_epoch", "by_batch")
NAMES = tuple(case.name for case in CASES)
Combination = tuple[str, str, int, str]


def layout_of(num_devices: int, kind: str) -> Layout:
    """Return the layout for a number of stand-ins and a kind of shares."""
    if kind == "even":
        return Layout(num_devices=num_devices)
    if kind == "uneven":
        return Layout(num_devices=num_devices, shares=UNEVEN[num_devices])
    changes = CHANGES[num_devices]
    if kind == "by_epoch":
        return Layout(num_devices=num_devices, shares=changes[-1], by_epoch=changes)
    return Layout(num_devices=num_devices, by_batch=changes)


def covering_subset() -> list[Combination]:
    """Return one combination for every model and optimizer, spread over all layouts."""
    subset: list[Combination] = []
    for i, name in enumerate(NAMES):
        for j, optimizer in enumerate(OPTIMIZERS):
            number = NUMBERS[(i + j) % 4]
            kind = KINDS[(i - j + i // 4) % 4]
            subset.append((name, optimizer, number, kind))
    return subset


DEFAULT = covering_subset()
FULL = [c for c in itertools.product(NAMES, OPTIMIZERS, NUMBERS, KINDS) if c not in DEFAULT]


def check(name: str, optimizer: str, number: int, kind: str) -> None:
    """Hold one combination against one device."""
    layout = layout_of(number, kind)
    reference = reference_case(name, optimizer)
    losses = reference["history"]["loss"]  # type: ignore[index]
    assert losses[1] < losses[0], "a model that does not learn agrees with anything"
    candidate = candidate_case(BY_NAME[name], optimizer, layout)
    assert_equal(
        reference,
        candidate,
        within=tolerance(name, optimizer),
        where=f"{name} {optimizer} {layout}",
    )


def test_the_subset_covers_every_pair() -> None:
    """No model, optimizer, number of stand-ins or kind of shares meets another untested."""
    values = (NAMES, tuple(OPTIMIZERS), NUMBERS, KINDS)
    for first, second in itertools.combinations(range(4), 2):
        wanted = set(itertools.product(values[first], values[second]))
        assert {(c[first], c[second]) for c in DEFAULT} == wanted


@pytest.mark.sampled(14)
@pytest.mark.parametrize(("name", "optimizer", "number", "kind"), DEFAULT)
def test_equals_one_device(name: str, optimizer: str, number: int, kind: str) -> None:
    """Weights, history, evaluation and predictions are those of one device."""
    check(name, optimizer, number, kind)


@pytest.mark.long
@settings(deadline=None, database=None)
@given(combination=st.sampled_from(FULL))
def test_equals_one_device_as_drawn(combination: Combination) -> None:
    """Some of the rest of the full product; in a campaign, others every time."""
    start()
    check(*combination)
