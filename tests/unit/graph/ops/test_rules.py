"""Every rule gives what one device gives, in every state of its inputs.

The tables beside this file name operations; `trials` says what is drawn of them and compared. A
rule is used too for rows that are not the samples of the batch, or is right in not being used for
them: there the batch is another argument, with other samples, and what a trial shards is split by
its own number of rows, as is done behind something that was gathered.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Sequence
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
    OF_GRADIENTS,
    Step,
    check_gathered,
    compare,
    distributed,
    draw_trials,
    expected_of,
    gathered_by_trial,
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
# Cases of a family that are traced as one step.
NUM_TOGETHER = 8


def together() -> Iterator[Any]:
    """Yield cases of a family whose batches may be of the same sizes."""
    for family in FAMILIES:
        name = family.__name__.rpartition(".")[2]
        by_shares: dict[Any, list[OpCase]] = {}
        for case in family.CASES:
            by_shares.setdefault(case.shares, []).append(case)
        for cases in by_shares.values():
            for first in range(0, len(cases), NUM_TOGETHER):
                few = cases[first : first + NUM_TOGETHER]
                yield pytest.param(few, id=f"{name}-{few[0].name}")


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


def with_other_batch(step: Step) -> Any:
    """Run a step of a batch that it does not use, and of tensors that are split otherwise."""
    samples = SAMPLES[zlib.crc32(step.trials[0].case.name.encode()) % len(SAMPLES)]

    def both(batch: tf.Tensor, *tensors: tf.Tensor) -> Any:
        del batch
        return step(*tensors)

    step.reset()
    function: Any = evener.distribute(
        tf.autograph.experimental.do_not_convert(both),
        devices=list(DEVICES),
        shares=list(samples),
        in_axes=(0, *[None] * len(step.tensors)),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard, "propagate", split_by_own_rows(step.in_axes))
        return function(tf.zeros([sum(samples)]), *step.tensors)


def test_names_are_unlike() -> None:
    names = [(family.__name__, case.name) for family in FAMILIES for case in family.CASES]
    assert len(set(names)) == len(names)


@pytest.mark.sampled(30)
@pytest.mark.parametrize("cases", list(together()))
@as_drawn
@given(data=st.data())
def test_rules(cases: list[OpCase], data: st.DataObject) -> None:
    """Values, gradients by all floats, and what either gathers."""
    step = Step(draw_trials(cases, data.draw))
    expected = on_one_device(step)
    function = distributed(step)
    compare(step, "result", function(*step.tensors), expected)
    # So are all that are drawn first. Otherwise weights of the size of the batch are whole beside
    # sharded outputs.
    is_own = step.trials[0].cotangent == "own"
    for trial, gathered in zip(step.trials, gathered_by_trial(step, function), strict=True):
        name, drawn = trial.case.name, trial.drawn
        forward = [found for found in gathered if OF_GRADIENTS not in found[1]]
        expect = gathered_if_sharded if name in NO_RULE else drawn.expect
        check_gathered(trial, expected_of(trial, expect), forward)
        if trial.case.gradient and is_own:
            expect = drawn.expect_gradient or expect
            if name in NO_RULE_FOR_GRADIENTS:
                expect = gathered_if_sharded
            wanted = expected_of(trial, expect)
            backward = [found for found in gathered if found not in forward]
            check_gathered(trial, wanted, gathered if wanted == "gathered" else backward)
    if is_own:
        compare(step, "result of other rows", with_other_batch(step), expected)
