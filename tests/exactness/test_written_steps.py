"""Every step of the corpus, through `evener.distribute`, against one device.

Its operations have an entry, or a reason here. What has no entry runs as TensorFlow says it does,
once, of the rows of all parts. A new operation in a step makes its test fail: it gets an entry in
`evener.graph.ops`, or a line here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from typing import Any

import pytest
import tensorflow as tf

import evener
from evener import Plan
from evener._tf_private import graphs
from evener.graph.ops.registry import OPERATIONS
from evener.strategy import spot_check
from exactness.harness import usually
from exactness.steps.case import CASES, BuiltStep, graph_optimizers_of
from exactness.steps.runs import check, one_device, train


def data_parallel(*shares: int) -> Plan:
    """Return the plan with a device for every share."""
    return Plan.data_parallel([f"cpu:{k}" for k in range(len(shares))], shares=shares)


def cut(plan: Plan, *num_micro_batches: int) -> Plan:
    """Return a plan whose replicas are cut into micro-batches, two of them alive at once."""
    pairs = zip(plan.replicas, num_micro_batches, strict=True)
    replicas = [dataclasses.replace(r, num_micro_batches=n, in_flight=2) for r, n in pairs]
    return dataclasses.replace(plan, replicas=tuple(replicas))


# Each case runs on one of these; a step of three samples leaves devices without samples.
PLANS = {
    "2": data_parallel(5, 3),
    "3": data_parallel(13, 4, 7),
    "5": data_parallel(4, 0, 2, 1, 3),
    "cut": cut(data_parallel(5, 3), 2, 3),
}

CASES_AND_PLANS = [
    pytest.param(name, plan, id=f"{name}-{plan}")
    for name, plan in zip(sorted(CASES), itertools.cycle(PLANS), strict=False)
]


WITHOUT_ENTRY = {
    "It writes to a variable, whose owner runs it.": """
        AssignAddVariableOp AssignSubVariableOp AssignVariableOp ResourceScatterAdd
        ResourceScatterNdUpdate ResourceScatterSub ResourceScatterUpdate
        """,
    "It reads sizes or rows of a variable, whose owner runs it.": "ResourceGatherNd VariableShape",
    "It calls functions, which are read in its place or sharded as bodies.": """
        Case If PartitionedCall StatefulPartitionedCall StatelessIf StatelessWhile While
        """,
    "It holds what one branch of a condition hands on; the branch is taken where it is known.": """
        OptionalFromValue OptionalGetValue OptionalNone
        """,
    "It is an argument.": "PlaceholderWithDefault",
    "It checks or prints the whole batch.": "Assert PrintV2 StringFormat",
    "It is a program of its own on the host.": "PyFunc",
    "It draws, shuffles or counts for the whole batch.": """
        ComputeAccidentalHits RandomShuffle RngReadAndSkip StatelessRandomGetKeyCounter
        StatelessShuffle
        """,
    "Its rows are sparse or ragged: how many a sample has is in the data.": """
        RaggedTensorToTensor SparseCross SparseReduceSum SparseTensorDenseMatMul SparseToDense
        """,
    "The number of rows of its result is in the data.": "SegmentMean SegmentSum",
    "Strings are computed on the host.": "StringSplitV2 Substr",
}
LISTED = {op: reason for reason, ops in WITHOUT_ENTRY.items() for op in ops.split()}


def test_what_is_listed_has_no_entry() -> None:
    assert [op for op in LISTED if op in OPERATIONS or not graphs.is_operation(op)] == []


@pytest.mark.parametrize(("name", "plan"), CASES_AND_PLANS)
def test_equals_one_device(name: str, plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every fourth, a check of a few samples, which goes on meanwhile, sees no difference.

    In every other fourth, TensorFlow rewrites the graphs before it runs them, as in programs.
    """
    fourth = sorted(CASES).index(name) % 4
    if fourth == 0:
        monkeypatch.delenv("EVENER_VERIFY")
        monkeypatch.setattr(spot_check, "begins_after", lambda _: 0.0)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": fourth != 2})
    case = CASES[name]()
    axes = {} if case.in_axes is None else {"in_axes": case.in_axes}
    step = evener.distribute(case.step, plan=PLANS[plan], **axes)
    with graph_optimizers_of(name):
        actual = train(case, step)
        graphs_of_step = [traced.partition.graph for traced in step.partitioned_steps]
        ops = {node.op for graph in graphs_of_step for node in graph}
        assert ops - OPERATIONS.keys() <= LISTED.keys()
        spot_check.wait_for_checks()
        assert not [found for found in step.spot_checks if found.state == "differs"]
        with contextlib.suppress(AssertionError):
            # Kernels draw other numbers in a graph.
            return check(case, one_device(name, eagerly=not case.stateful_random), actual)
        for _ in range(case.references - 2):
            with contextlib.suppress(AssertionError):
                return check(case, one_device(name), actual)
        check(case, one_device(name), actual)


# Of each kind of steps a few: losses over the batch, random numbers, state, several gradients.
BY_XLA = """
contrastive/clip_with_learned_temperature control_flow/loop_with_break
embeddings/sparse_gradients_into_adam_with_clipping
evaluation/test_step_with_trackers_and_batchnorm functions/compiled_function
gans/minibatch_deviation_and_relativistic_loss losses/root_of_mean optimizers/update_by_hand
queues/moco_by_scatter_at_a_pointer regularisation/dropout_shared_by_the_batch
""".split()


def by_xla(case: BuiltStep) -> Any:
    return tf.function(case.step, jit_compile=True)


@pytest.mark.parametrize(
    "name", usually(BY_XLA, ["losses/root_of_mean", "regularisation/dropout_shared_by_the_batch"])
)
def test_parts_compiled_by_xla_equal_one_device_by_xla(name: str) -> None:
    alone, several = CASES[name](), CASES[name]()
    axes = {} if several.in_axes is None else {"in_axes": several.in_axes}
    step = evener.distribute(by_xla(several), plan=PLANS["2"], **axes)
    check(several, train(alone, by_xla(alone)), train(several, step))
