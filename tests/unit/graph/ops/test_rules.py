"""Every rule gives what one device gives, in every state of its inputs.

The tables beside this file name operations; `trials` says what is drawn of them and compared. A
rule is used too for rows that are not the samples of the batch, or is right in not being used for
them: there the batch is another argument, with other samples, and what a trial shards is split by
its own number of rows, as is done behind something that was gathered.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
import tensorflow as tf
from hypothesis import Phase, given, settings

import evener
from evener.graph.ops.states import Sharded
from evener.partition import shard
from evener.partition.shard import propagate
from unit.graph.ops import (
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
from unit.graph.ops.op_case import OpCase, gathered_if_sharded
from unit.graph.ops.trials import (
    DEVICES,
    Trial,
    check_gathered,
    compare,
    distributed,
    draw_trial,
    expected_of,
    gradient_step,
    on_one_device,
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


# Right, but computed once: an operation in them has no rule. A rule that is added takes its cases
# from here.
NO_RULE = frozenset(
    "bitcast_to_bytes order_of_transposed sparse_matmul unary_quantize unary_saturate".split()
)
# The same for their gradients.
NO_RULE_FOR_GRADIENTS = frozenset({"diag_shifted", "sparse_matmul"})
SAMPLES = ((4, 1, 2), (3, 0, 2), (1, 2, 4), (0, 3, 0))
CASES = [
    pytest.param(case, id=f"{family.__name__.rpartition('.')[2]}-{case.name}")
    for family in FAMILIES
    for case in family.CASES
]


def split_by_own_rows(axes: Sequence[int | None]) -> Callable[..., Any]:
    """Return a propagation in which arguments are split by the size of an axis of their own."""

    def propagated(graph: Any, states: Any, symbols: Any, **options: Any) -> Any:
        if options.get("is_body"):
            return propagate(graph, states, symbols, **options)
        own = {
            tensor: Sharded(axis, 1, tensor.shape[axis])
            for tensor, axis in zip(graph.inputs[1:], axes, strict=False)
            if axis is not None
        }
        return propagate(graph, {**states, **own}, symbols, **options)

    return propagated


def with_other_batch(trial: Trial, step: Callable[..., Any], tensors: Sequence[tf.Tensor]) -> Any:
    """Run a step of a batch that it does not use, and of tensors that are split otherwise."""
    samples = SAMPLES[zlib.crc32(trial.case.name.encode()) % len(SAMPLES)]

    def both(batch: tf.Tensor, *tensors: tf.Tensor) -> Any:
        del batch
        return step(*tensors)

    trial.drawn.reset()
    function: Any = evener.distribute(
        tf.autograph.experimental.do_not_convert(both),
        devices=list(DEVICES),
        shares=list(samples),
        in_axes=(0, *[None] * len(tensors)),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard, "propagate", split_by_own_rows(trial.in_axes()))
        return function(tf.zeros([sum(samples)]), *tensors)


def check(
    trial: Trial,
    what: str,
    step: Callable[..., Any],
    tensors: list[tf.Tensor],
    gathered: str,
    *,
    with_other_rows: bool,
) -> None:
    """Hold a step to what one device gives, and what is gathered to what the case expects."""
    expected = on_one_device(trial, step, tensors)
    whole = len(tensors) - len(trial.states)
    function = distributed(trial, step, (*trial.in_axes(), *[None] * whole))
    compare(trial, what, function(*tensors), expected)
    check_gathered(trial, gathered, function)
    if with_other_rows:
        compare(trial, f"{what} of other rows", with_other_batch(trial, step, tensors), expected)


def test_names_are_unlike() -> None:
    names = [param.id for param in CASES]
    assert len(set(names)) == len(names)


@pytest.mark.sampled(45)
@pytest.mark.parametrize("case", CASES)
@as_drawn
@given(data=st.data())
def test_a_rule(case: OpCase, data: st.DataObject) -> None:
    """Values, gradients by all floats, and what either gathers."""
    trial = draw_trial(case, data.draw)
    # So are all that are drawn first. Otherwise weights of the size of the batch are whole beside
    # sharded outputs.
    is_own = trial.cotangent == "own"
    expect = gathered_if_sharded if case.name in NO_RULE else trial.drawn.expect
    gathered = expected_of(trial, expect)
    check(trial, "output", trial.step(), trial.tensors(), gathered, with_other_rows=is_own)
    if case.gradient:
        expect = trial.drawn.expect_gradient or trial.drawn.expect
        if case.name in NO_RULE_FOR_GRADIENTS:
            expect = gathered_if_sharded
        gathered = expected_of(trial, expect) if is_own else "any"
        step, weights = gradient_step(trial)
        tensors = [*trial.tensors(), *weights]
        check(trial, "gradient", step, tensors, gathered, with_other_rows=is_own)
