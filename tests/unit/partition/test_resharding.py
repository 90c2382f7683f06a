"""Whole tensors are split where costly work reads them; rows of unlike sizes never meet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import evener
from evener.graph.dims import BATCH
from evener.graph.ops.registry import OPERATIONS
from evener.graph.ops.states import (
    ROWS,
    Decision,
    Sharded,
    Sharding,
    ShardingRule,
    rows_of,
    rows_per_sample,
)
from unit.partition.steps import DEVICES

WEIGHTS = np.random.default_rng(0).normal(size=[6, 4]).astype("float32")


def sharding_of(step: Callable[..., Any], *args: tf.Tensor, **options: Any) -> Sharding:
    """Run a step on three devices, compare it with one device, and return what was split."""
    distributed = evener.distribute(step, **{"devices": DEVICES, "shares": [3, 1, 2], **options})
    expected, given = tf.nest.flatten(step(*args)), tf.nest.flatten(distributed(*args))
    for wanted, got in zip(expected, given, strict=True):
        tf.debugging.assert_near(wanted, got, rtol=1e-5)
    return distributed.partitioned_steps[-1].partition.sharding


def rows_by_op(sharding: Sharding) -> dict[str, Any]:
    return {node.op: rows_of(decision) for node, decision in sharding.decisions.items()}


def normal(*shape: int) -> tf.Tensor:
    return tf.random.stateless_normal(shape, (3, 4))


def noise(x: tf.Tensor) -> Any:
    return tf.tanh(tf.random.stateless_normal([16, 6], (5, 6)) @ WEIGHTS), tf.reduce_sum(x)


def joined(x: tf.Tensor, u: tf.Tensor) -> Any:
    return tf.tanh(tf.concat([x, u], 0) @ WEIGHTS)


def numbers_of_rows(x: tf.Tensor) -> Any:
    """All parts know tensors that are made of sizes alone; each needs the numbers of its rows."""
    scores = tf.random.stateless_normal([16, 6], (5, 6)) @ WEIGHTS
    best = tf.argmax(scores, 1, output_type=tf.int32)
    first = tf.range(16)
    chosen = tf.gather_nd(scores, tf.stack([first, best], 1))
    return tf.cast(best + first, tf.float32), chosen, tf.reduce_sum(x)


def few_rows_and_weights(x: tf.Tensor) -> Any:
    few = tf.random.stateless_normal([4, 6], (5, 6))
    return few @ WEIGHTS, tf.matmul(WEIGHTS, WEIGHTS, transpose_b=True), tf.reduce_sum(x)


@pytest.mark.parametrize(
    ("step", "sizes", "rows"),
    [
        (noise, [9], {"MatMul": 16, "Tanh": 16}),
        (joined, [13, 8], {"MatMul": BATCH + 8, "Tanh": BATCH + 8}),
        (numbers_of_rows, [9], {"AddV2": 16, "Pack": 16}),
        (few_rows_and_weights, [9], {"MatMul": None}),
    ],
)
def test_costly_work_is_split(step: Callable[..., Any], sizes: list[int], rows: Any) -> None:
    found = rows_by_op(sharding_of(step, *(normal(size, 6) for size in sizes)))
    assert {op: found.get(op) for op in rows} == rows


MICRO_BATCHES = evener.Plan.data_parallel(list(DEVICES), num_micro_batches=2)


@pytest.mark.parametrize(
    "options",
    [{"plan": MICRO_BATCHES, "devices": None, "shares": None}, {"batch_norm": "per_device"}],
    ids=["micro_batches", "per_device"],
)
def test_nothing_but_samples_is_split(options: dict[str, Any]) -> None:
    assert set(rows_by_op(sharding_of(noise, normal(9, 6), **options)).values()) <= {BATCH}


def test_rows_of_unlike_sizes_never_meet() -> None:
    """Two splits of one node: of the other tensor all parts read the whole."""

    def step(x: tf.Tensor) -> Any:
        return tf.matmul(tf.tanh(x @ WEIGHTS), noise(x)[0], transpose_b=True)

    sharding = sharding_of(step, normal(9, 6))
    for decision in sharding.decisions.values():
        split = {s.rows for s in (*decision.inputs, *decision.outputs) if isinstance(s, Sharded)}
        assert len(split) <= 1


def test_a_rule_that_knows_of_samples_alone_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operations that it adds might be given the sizes of samples."""

    def of_samples(node: Any, states: Any) -> Decision | None:
        if not isinstance(states[0], Sharded):
            return None
        lower = lambda builder, node, inputs: builder.op(node.op, inputs, node.attrs)  # noqa: E731
        return Decision(inputs=(states[0],), outputs=(states[0],), lower=lower)

    ignorant = ShardingRule(decide=of_samples, inputs=(ROWS,))
    monkeypatch.setattr(OPERATIONS["Softplus"], "rule", ignorant)

    found = rows_by_op(sharding_of(lambda x: tf.math.softplus(noise(x)[0]), normal(9, 6)))
    assert found["Tanh"] == 16 and "Softplus" not in found


def test_an_axis_of_size_one_has_no_rows() -> None:
    assert rows_per_sample(1, Sharded(0, 1, 1)) is None
    assert rows_per_sample(32, Sharded(0, 2, 16)) == 1
    assert rows_per_sample(BATCH * 3 + 24, Sharded(0, 1, BATCH + 8)) is None
    assert rows_per_sample(BATCH + 8, Sharded(0, 1, BATCH + 8)) == 1
