"""The law for models that are cut into stages, and batches that are cut into micro-batches."""

from __future__ import annotations

import pytest

from .harness import agree, train_case
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
# Each model is cut in every third way, and each way cuts every third model.
PAIRS = [
    (name, cut)
    for row, name in enumerate(BY_NAME)
    for column, cut in enumerate(CUTS)
    if (row + column) % 3 == 0
]


@pytest.mark.sampled(12)
@pytest.mark.parametrize(
    ("name", "cut"), [pytest.param(*pair, id="-".join(map(str, pair))) for pair in PAIRS]
)
def test_stages(name: str, cut: Cut) -> None:
    """Every model, cut in a third of the ways."""
    case = BY_NAME[name]
    plan = plan_of(layer_names(case.build), cut)
    agree(
        lambda place: train_case(place, case, "sgd"),
        within=tolerance(name, "sgd", "stages"),
        make_place=place_for(plan),
        name=f"{name} by fit with sgd",
    )


def test_every_model_and_every_cut_is_among_them() -> None:
    assert {name for name, _ in PAIRS} == set(BY_NAME)
    assert {cut for _, cut in PAIRS} == set(CUTS)
