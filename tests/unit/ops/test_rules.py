"""Every rule gives what one device gives, in every state of its inputs.

The tables beside this file name operations; `trials` says what is drawn of them and compared.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import Phase, given, settings

from unit.ops import (
    control,
    elementwise,
    gathers,
    images,
    matmul,
    nn,
    numbers,
    own_rows,
    random,
    reductions,
    rows,
    segments,
    shapes,
    slices,
    states,
    vectorized,
)
from unit.ops.op_case import Draw, Drawn, OpCase, gathered_if_sharded
from unit.ops.trials import (
    check_gradients,
    check_report,
    check_values,
    draw_trial,
)

FAMILIES = (
    elementwise,
    reductions,
    matmul,
    shapes,
    numbers,
    slices,
    gathers,
    nn,
    images,
    rows,
    own_rows,
    segments,
    random,
    control,
    states,
    vectorized,
)


# A failure names its trial; to look for a smaller one would cost more than the whole family.
# Of ten thousand draws, one is too sensitive to rounding.
IS_CAMPAIGN = os.environ.get("EVENER_HYPOTHESIS_PROFILE") == "campaign"
as_drawn = settings(
    phases=[Phase.explicit, Phase.generate],
    derandomize=not IS_CAMPAIGN,
    max_examples=200 if IS_CAMPAIGN else 2,
    database=None,
)


# Right, but computed once: an operation in them, or in their gradients, has no rule. A rule that is
# added takes its cases from here.
NO_RULE_YET = frozenset({"sparse_matmul"})
# The same for one kind of trial.
NO_RULE_FOR_VALUES = frozenset(
    "bitcast_to_bytes order_of_transposed unary_quantize unary_saturate".split()
)
NO_RULE_FOR_GRADIENTS = frozenset({"diag_shifted"})


def cases(*, gradient: bool = False) -> list[Any]:
    return [
        pytest.param(
            case,
            id=f"{family.__name__.rpartition('.')[2]}-{case.name}",
        )
        for family in FAMILIES
        for case in family.CASES
        if case.gradient or not gradient
    ]


def coverage(*, gradient: bool = False) -> list[Any]:
    lacking = NO_RULE_YET | (NO_RULE_FOR_GRADIENTS if gradient else NO_RULE_FOR_VALUES)
    return [
        pytest.param(without_rule(case) if case.name in lacking else case, id=param.id)
        for param in cases(gradient=gradient)
        for case in param.values
    ]


def without_rule(case: OpCase) -> OpCase:
    """Return a case of which something is gathered in every state that is sharded."""

    def draw(draw: Draw) -> Drawn:
        return dataclasses.replace(
            case.draw(draw), expect=gathered_if_sharded, expect_gradient=gathered_if_sharded
        )

    return dataclasses.replace(case, draw=draw)


def test_names_are_unlike() -> None:
    names = [param.id for param in cases()]
    assert len(set(names)) == len(names)


@pytest.mark.sampled(45)
@pytest.mark.parametrize("case", coverage())
@as_drawn
@given(data=st.data())
def test_values(case: OpCase, data: st.DataObject) -> None:
    check_values(draw_trial(case, data.draw))


@pytest.mark.sampled(45)
@pytest.mark.parametrize("case", cases(gradient=True))
@as_drawn
@given(data=st.data())
def test_gradients(case: OpCase, data: st.DataObject) -> None:
    check_gradients(draw_trial(case, data.draw))


@pytest.mark.sampled(45)
@pytest.mark.parametrize("case", coverage(gradient=True))
@as_drawn
@given(data=st.data())
def test_what_is_gathered_with_gradients(case: OpCase, data: st.DataObject) -> None:
    check_report(draw_trial(case, data.draw))
