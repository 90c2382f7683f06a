"""Every rule gives what one device gives, in every state of its inputs.

The tables beside this file name operations; `trials` says what is drawn of them and compared.
"""

from __future__ import annotations

import os
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import Phase, given, settings

from unit.engine.sharding import (
    control,
    elementwise,
    gathers,
    images,
    matmul,
    nn,
    numbers,
    random,
    reductions,
    segments,
    shapes,
    slices,
    states,
)
from unit.engine.sharding.op_case import OpCase
from unit.engine.sharding.trials import (
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
    segments,
    random,
    control,
    states,
)


# A failure names its trial; to look for a smaller one would cost more than the whole family.
# Of ten thousand draws, one is too sensitive to rounding.
IS_CAMPAIGN = os.environ.get("EVENER_HYPOTHESIS_PROFILE") == "campaign"
as_drawn = settings(
    phases=[Phase.explicit, Phase.generate],
    derandomize=not IS_CAMPAIGN,
    max_examples=200 if IS_CAMPAIGN else 4,
    database=None,
)


# Right, but computed once: an operation in them, or in their gradients, has no rule for every axis.
# A rule that is added takes its cases from here.
NO_RULE_YET = frozenset(
    """
    batch_sum_tiled_to_samples bitcast_to_bytes bucketize central_crop cholesky crop cross
    cross_of_columns diag_shifted each_cholesky each_determinant each_diag_part
    each_least_squares each_log_determinant each_qr each_set_diag each_solve
    each_tensor_diag_part each_trace each_triangular_solve einsum_ellipsis fused_batch_norm
    fused_batch_norm_inference linspace mirror_pad order_of_transposed pad pad_of_columns
    resize_smaller resize_with_crop_or_pad slice slice_slice_in_time slice_slice_op
    slice_slice_whole_sizes sobel sort sort_of_rows sparse_matmul ternary_betainc tile top_k
    unary_check_numerics unary_fake_quant unary_quantize unary_saturate
    """.split()
)
WITHOUT_RULE = pytest.mark.xfail(strict=False, reason="computed once: no rule yet")


def cases(*, gradient: bool = False) -> list[Any]:
    return [
        pytest.param(case, id=f"{family.__name__.rpartition('.')[2]}-{case.name}")
        for family in FAMILIES
        for case in family.CASES
        if case.gradient or not gradient
    ]


def coverage(*, gradient: bool = False) -> list[Any]:
    return [
        pytest.param(
            *param.values,
            id=param.id,
            marks=WITHOUT_RULE if param.values[0].name in NO_RULE_YET else (),
        )
        for param in cases(gradient=gradient)
    ]


def test_names_are_unlike() -> None:
    names = [param.id for param in cases()]
    assert len(set(names)) == len(names)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("case", cases())
@as_drawn
@given(data=st.data())
def test_values(case: OpCase, data: st.DataObject) -> None:
    check_values(draw_trial(case, data.draw))


@pytest.mark.sampled(12)
@pytest.mark.parametrize("case", cases(gradient=True))
@as_drawn
@given(data=st.data())
def test_gradients(case: OpCase, data: st.DataObject) -> None:
    check_gradients(draw_trial(case, data.draw))


@pytest.mark.sampled(12)
@pytest.mark.parametrize("case", coverage())
@as_drawn
@given(data=st.data())
def test_what_is_gathered(case: OpCase, data: st.DataObject) -> None:
    check_report(draw_trial(case, data.draw))


@pytest.mark.sampled(12)
@pytest.mark.parametrize("case", coverage(gradient=True))
@as_drawn
@given(data=st.data())
def test_what_is_gathered_with_gradients(case: OpCase, data: st.DataObject) -> None:
    check_report(draw_trial(case, data.draw), gradients=True)
