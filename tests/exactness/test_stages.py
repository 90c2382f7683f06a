"""The law for models that are cut into stages, and batches that are cut into micro-batches."""

from __future__ import annotations

import pytest

from .harness import agree, train_case
from .loops import loop_over_case
from .models import BY_NAME
from .staged import Cut, layer_names, place_for, plan_of
from .tolerances import tolerance

CUTS = (
    Cut(devices=(0, 1)),
    Cut(devices=(0, 1), micro_batches=4, in_flight=2),
    Cut(devices=(1,), micro_batches=5, in_flight=1),
    Cut(devices=(0, 1, 2), micro_batches=3, in_flight=3, schedule="gpipe"),
    Cut(devices=(2, 0, 1), micro_batches=8, in_flight=3, schedule="1f1b"),
    Cut(devices=(0, 1, 0, 1), micro_batches=4, in_flight=4),
    Cut(devices=(3, 1, 2, 0), micro_batches=6, in_flight=4),
    Cut(devices=(0, 0, 0), micro_batches=2, in_flight=1),
)
DOORS = {"fit": train_case, "loop": loop_over_case}
# Each model is cut in every third way, and each way cuts every third model, by turns in fit and in
# a loop.
CASES = [
    (name, cut, list(DOORS)[(row + column) % 2])
    for row, name in enumerate(BY_NAME)
    for column, cut in enumerate(CUTS)
    if (row + column) % 3 == 0
]


@pytest.mark.parametrize(
    ("name", "cut", "door"), [pytest.param(*case, id="-".join(map(str, case))) for case in CASES]
)
def test_stages(name: str, cut: Cut, door: str) -> None:
    case = BY_NAME[name]
    agree(
        lambda place: DOORS[door](place, case, "sgd"),
        within=tolerance(name, "sgd", "stages"),
        make_place=place_for(plan_of(layer_names(case.build), cut)),
        name=f"{name} by {door} with sgd",
    )


def test_every_model_and_every_cut_is_among_them_in_fit_and_in_a_loop() -> None:
    assert {(name, door) for name, _, door in CASES} == {(n, d) for n in BY_NAME for d in DOORS}
    assert {(cut, door) for _, cut, door in CASES} == {(c, d) for c in CUTS for d in DOORS}
