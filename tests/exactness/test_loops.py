"""The law for custom loops: every model, with every optimizer, on 1, 2, 3 and 5 stand-ins.

The same matrix as of `fit` (test_models.py), with a few of its covering subset by default. A loop's
weights, optimizer state, losses of every step, metrics of every epoch, an evaluation and
predictions are those of the same loop without a strategy.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .compare import assert_equal
from .harness import start
from .loops import candidate_loop, reference_loop
from .models import BY_NAME
from .test_models import DEFAULT, FULL, Combination, layout_of
from .tolerances import tolerance


def check(name: str, optimizer: str, number: int, kind: str) -> None:
    """Hold one combination against one device."""
    layout = layout_of(number, kind)
    reference = reference_loop(name, optimizer)
    losses = reference["epochs"]["loss"]  # type: ignore[index]
    assert losses[1] < losses[0], "a model that does not learn agrees with anything"
    candidate = candidate_loop(BY_NAME[name], optimizer, layout)
    assert_equal(
        reference,
        candidate,
        within=tolerance(name, optimizer),
        where=f"{name} {optimizer} {layout}",
    )


@pytest.mark.sampled(40)
@pytest.mark.parametrize(("name", "optimizer", "number", "kind"), DEFAULT)
def test_equals_one_device(name: str, optimizer: str, number: int, kind: str) -> None:
    """Everything is as on one device."""
    check(name, optimizer, number, kind)


@pytest.mark.long
@settings(deadline=None, database=None)
@given(combination=st.sampled_from(FULL))
def test_equals_one_device_as_drawn(combination: Combination) -> None:
    """Some of the rest of the full product; in a campaign, others every time."""
    start()
    check(*combination)
