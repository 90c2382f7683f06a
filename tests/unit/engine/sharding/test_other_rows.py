"""Every rule is right for rows that are not the samples of the batch, or is not used for them.

The trials are those of the rules. Here the batch is another argument, with other samples, and what
a trial shards is split by its own number of rows, as is done behind something that was gathered.
"""

from __future__ import annotations

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
from unit.ops.op_case import OpCase
from unit.ops.test_rules import cases
from unit.ops.trials import (
    DEVICES,
    Trial,
    compare,
    draw_trial,
    gradient_step,
    on_one_device,
)

SAMPLES = ((4, 1, 2), (3, 0, 2), (1, 2, 4), (0, 3, 0))

# One draw of each: the rules have more.
as_drawn = settings(
    phases=[Phase.explicit, Phase.generate], derandomize=True, max_examples=1, database=None
)


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


def with_other_batch(
    step: Callable[..., Any],
    tensors: Sequence[tf.Tensor],
    axes: Sequence[int | None],
    samples: Sequence[int],
) -> Any:
    """Run a step of a batch that it does not use, and of tensors that are split otherwise."""

    def both(batch: tf.Tensor, *tensors: tf.Tensor) -> Any:
        del batch
        return step(*tensors)

    distributed: Any = evener.distribute(
        tf.autograph.experimental.do_not_convert(both),
        devices=list(DEVICES),
        shares=list(samples),
        in_axes=(0, *[None] * len(tensors)),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard, "propagate", split_by_own_rows(axes))
        return distributed(tf.zeros([sum(samples)]), *tensors)


def check(trial: Trial, what: str, step: Any, tensors: list[tf.Tensor]) -> None:
    samples = SAMPLES[zlib.crc32(trial.case.name.encode()) % len(SAMPLES)]
    expected = on_one_device(trial, step, tensors)
    trial.drawn.reset()
    given = with_other_batch(step, tensors, trial.in_axes(), samples)
    compare(trial, f"{what} of samples {samples}", given, expected)


@pytest.mark.sampled(45)
@pytest.mark.parametrize("case", cases())
@as_drawn
@given(data=st.data())
def test_values(case: OpCase, data: st.DataObject) -> None:
    trial = draw_trial(case, data.draw)
    check(trial, "output", trial.step(), trial.tensors())


@pytest.mark.sampled(45)
@pytest.mark.parametrize("case", cases(gradient=True))
@as_drawn
@given(data=st.data())
def test_gradients(case: OpCase, data: st.DataObject) -> None:
    trial = draw_trial(case, data.draw)
    step, weights = gradient_step(trial)
    check(trial, "gradient", step, [*trial.tensors(), *weights])
