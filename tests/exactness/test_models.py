"""The law for every model, with every optimizer, on 1, 2, 3 and 5 stand-ins, by fit and by a loop.

Shares are even, uneven (with a replica that has none), or change while training, between epochs or
between batches. Weights, optimizer, losses, metrics, an evaluation and predictions are compared.
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .candidates import Place
from .compare import Results
from .harness import CHANGES, UNEVEN, ChangeShares, Layout, agree, train_case
from .loops import loop_over_case
from .models import BY_NAME, OPTIMIZERS
from .tolerances import tolerance

NUMBERS = (1, 2, 3, 5)
KINDS = ("even", "uneven", "by_epoch", "by_batch")
DOORS = ("fit", "loop")
VALUES = (tuple(BY_NAME), tuple(OPTIMIZERS), NUMBERS, KINDS, DOORS)
Combination = tuple[str, str, int, str, str]


def layout_of(num_devices: int, kind: str) -> Layout:
    if kind == "even":
        return Layout(num_devices=num_devices)
    if kind == "uneven":
        return Layout(num_devices=num_devices, shares=UNEVEN[num_devices])
    changes = CHANGES[num_devices]
    if kind == "by_epoch":
        return Layout(num_devices=num_devices, shares=changes[-1], by_epoch=changes)
    return Layout(num_devices=num_devices, by_batch=changes)


DEFAULT: list[Combination] = [
    (name, optimizer, NUMBERS[(i + j) % 4], KINDS[(i - j + i // 4) % 4], DOORS[(i // 2 + j) % 2])
    for i, name in enumerate(BY_NAME)
    for j, optimizer in enumerate(OPTIMIZERS)
]
FULL = [c for c in itertools.product(*VALUES) if c not in DEFAULT]


def check(name: str, optimizer: str, number: int, kind: str, door: str) -> None:
    layout = layout_of(number, kind)

    def experiment(place: Place) -> Results:
        if door == "loop":
            return loop_over_case(place, BY_NAME[name], optimizer, layout)
        return train_case(place, BY_NAME[name], optimizer, callbacks=[ChangeShares(place, layout)])

    within = tolerance(name, optimizer)
    reference = agree(experiment, layout, within=within, name=f"{name} by {door} with {optimizer}")
    losses = reference["history" if door == "fit" else "epochs"]["loss"]  # type: ignore[index]
    assert losses[1] < losses[0], "a model that does not learn agrees with anything"


def test_every_pair_of_values_meets() -> None:
    for first, second in itertools.combinations(range(len(VALUES)), 2):
        wanted = set(itertools.product(VALUES[first], VALUES[second]))
        assert {(c[first], c[second]) for c in DEFAULT} == wanted


@pytest.mark.parametrize(("name", "optimizer", "number", "kind", "door"), DEFAULT)
def test_equals_one_device(name: str, optimizer: str, number: int, kind: str, door: str) -> None:
    check(name, optimizer, number, kind, door)


@pytest.mark.long
@settings(deadline=None, database=None)
@given(combination=st.sampled_from(FULL))
def test_equals_one_device_as_drawn(combination: Combination) -> None:
    """Some of the rest of the full product; in a campaign, others every time."""
    check(*combination)
