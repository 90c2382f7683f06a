"""Inferred shapes and numbers are those of the step when it runs.

Every function of the tables beside this file is traced for any batch size and run for several,
operation by operation (see `evaluator`). Every symbolic size and number must be the real one.
"""

from __future__ import annotations

import functools
import zlib

import numpy as np
import pytest
import tensorflow as tf

from evener.graph.dims import BATCH
from evener.graph.ops.states import Sharded, is_shardable
from evener.graph.trace import TracedStep, trace_step
from evener.partition.shard import propagate
from unit.graph import layer_cases, loop_cases, math_cases, shape_cases
from unit.graph.evaluator import Evaluator, misplaced_symbols
from unit.graph.inference_case import B, Case

CASES = [
    Case(case, *row)
    for module in (shape_cases, math_cases, layer_cases, loop_cases)
    for name, table in vars(module).items()
    if name.isupper() and isinstance(table, dict)
    for case, row in table.items()
]
# TensorFlow's own static shapes are wrong there: outputs of these operations, by their index.
WRONG_IN_TENSORFLOW = {"FusedBatchNormGradV3": (3, 4), "FractionalMaxPool": (1, 2)}
# The same in a whole case: a program on one device is told the same sizes.
KNOWN_FAULTS = {
    "diag_of_batch": "TensorFlow's static shape of MatrixDiagV3, a diagonal beside the main one",
    "cross_entropy_broadcast": "TensorFlow's static shape of logits of one row with more labels",
}


@functools.cache
def traced(case: Case) -> TracedStep:
    return trace_step(
        case.function,
        [arg.spec() for arg in case.args],
        [arg.batch_axis for arg in case.args],
        autograph=case.name in loop_cases.LOOPS | loop_cases.CONDITIONS | loop_cases.LISTS,
    )


def test_the_tables_are_large_and_their_names_unique() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names) > 180
    assert KNOWN_FAULTS.keys() <= set(names)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_claim_holds(case: Case, request: pytest.FixtureRequest) -> None:
    if case.name in KNOWN_FAULTS:
        reason = KNOWN_FAULTS[case.name]
        request.applymarker(pytest.mark.xfail(strict=True, reason=reason))
    step = traced(case)
    assert not list(misplaced_symbols(step))
    evaluator = Evaluator(step, ignored=WRONG_IN_TENSORFLOW)
    for run in case.runs:
        rng = np.random.default_rng(zlib.crc32(case.name.encode()))
        evaluator.run([arg.draw(rng, run) for arg in case.args], run[B])
    assert evaluator.claims > 0
    assert not evaluator.wrong, "\n".join(evaluator.wrong[:8])


def rows_of_no_samples(case: Case) -> list[str]:
    """Axes that parts share, whose size is a symbol: a part would take its own rows for all."""
    step = traced(case)
    axes = zip(step.graph.inputs, step.batch_axes, strict=False)
    sharding = propagate(
        step.graph, {t: Sharded(a) for t, a in axes if a is not None}, step.inference.symbols
    )
    return [
        f"{case.name}: {tensor} of {tensor.node} in {state}"
        for tensor, state in sharding.states.items()
        if isinstance(state, Sharded) and tensor.dtype != tf.variant
        if not is_shardable(tensor.shape, state)
    ]


@pytest.mark.long
def test_an_axis_that_parts_share_counts_samples() -> None:
    assert not [text for case in CASES for text in rows_of_no_samples(case)]


def test_symbols_are_found_that_matter() -> None:
    """A table of true claims proves nothing if little is claimed."""
    expected = {
        "merge": (BATCH, 12),
        "rows_to_columns": (6, BATCH * 2),
        "tile": (BATCH * 2, "s", 12),
        "of_joined": (BATCH * 2, 3),
        "split_by_size": (BATCH, 3),
        "einsum": (BATCH, "s", 2),
        "conv_transpose": (BATCH, 8, 8, 3),
        "gradient_of_reductions": (BATCH,),
        "choose_same": (BATCH, 3),
    }
    by_name = {case.name: case for case in CASES}
    for name, shape in expected.items():
        found = traced(by_name[name]).graph.outputs[0].shape
        assert found is not None
        kept = tuple("s" if want == "s" else dim for dim, want in zip(found, shape, strict=True))
        assert kept == shape, name


def test_the_size_of_a_batch_is_seen_in_a_step_for_one_size() -> None:
    """Traced for batches of 6: what counts samples is told from what has 6 rows by chance."""
    step = trace_step(
        lambda x, y: (x + 1.0, tf.concat([x, x], 0), y * 2.0, tf.zeros([6])),
        [tf.TensorSpec([6, 3]), tf.TensorSpec([6, 2])],
        [0, None],
        autograph=False,
        num_samples=6,
    )
    shapes = [tensor.shape for tensor in step.graph.outputs]
    assert shapes == [(BATCH, 3), (BATCH * 2, 3), (6, 2), (6,)]


def test_the_evaluator_sees_a_wrong_claim() -> None:
    step = trace_step(lambda x: tf.exp(x), [tf.TensorSpec([None, None])], [0], autograph=False)
    (exp,) = [node for node in step.graph if node.op == "Exp"]
    exp.outputs[0].shape = (BATCH, BATCH)
    evaluator = Evaluator(step)
    evaluator.run([tf.ones([4, 4])], 4)
    assert not evaluator.wrong
    evaluator.run([tf.ones([4, 3])], 4)
    assert len(evaluator.wrong) == 1 and "Exp" in evaluator.wrong[0]
