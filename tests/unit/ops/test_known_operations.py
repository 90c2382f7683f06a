"""Operations of Keras's layers and of the steps of the corpus have an entry, or a reason here.

What has no entry runs as TensorFlow says it does, once, of the rows of all parts. A new operation
in a layer or a step makes the test fail: it gets an entry in `evener.graph.ops`, or a line here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from evener._tf_private import graphs
from evener.graph.ops.registry import OPERATIONS
from exactness.steps.case import CASES
from multi_device.public_names.namespaces import recipes
from multi_device.public_names.verdicts import Call

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
LAYERS = {name: recipe for name, recipe in recipes().items() if name.startswith("keras.layers.")}


def operations_of(function: Any, arguments: Any) -> Iterator[str]:
    graph = tf.function(function).get_concrete_function(*arguments).graph.as_graph_def()
    yield from (node.op for node in graph.node)
    for called in graph.library.function:
        # A call of a function in a function names it as its operation.
        yield from (node.op for node in called.node_def if graphs.is_operation(node.op))


def without_entry(function: Any, arguments: Any) -> set[str]:
    return {op for op in operations_of(function, arguments) if op not in OPERATIONS}


def test_what_is_listed_has_no_entry() -> None:
    assert [op for op in LISTED if op in OPERATIONS or not graphs.is_operation(op)] == []


@pytest.mark.sampled(20)
@pytest.mark.parametrize("name", LAYERS)
def test_operations_of_layers(name: str) -> None:
    call = Call(name, LAYERS[name])
    assert without_entry(call.step(), call.specs()) <= LISTED.keys()


@pytest.mark.sampled(40)
@pytest.mark.parametrize("name", CASES)
def test_operations_of_steps(name: str) -> None:
    built = CASES[name]()
    arguments = built.batch(np.random.default_rng(0), built.sizes[0])
    assert without_entry(built.step, arguments) <= LISTED.keys()
