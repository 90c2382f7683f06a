"""Made-up samples name rows that exist, and more than one of them."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers

from evener.graph.functions import TensorArgument
from evener.graph.ops.states import Sharded
from evener.graph.trace import TracedStep
from evener.profiler.layers import split_step
from evener.profiler.measure import SyntheticValues, index_limits
from evener.profiler.profile import trace_keras_step
from unit.profiler.models import dense, sequence, traced

ROWS, CLASSES = 50, 7


def words() -> TracedStep:
    model = sequence(
        (4,),
        layers.Embedding(ROWS, 3, name="words"),
        layers.Flatten(),
        dense(CLASSES, "head"),
        dtype="int32",
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return trace_keras_step(model, tf.TensorSpec([4], tf.int32), tf.TensorSpec([], tf.int32))


def test_samples_name_rows_of_their_table_and_labels_classes() -> None:
    graph = words().graph
    limits = index_limits(graph, {})
    assert limits[graph.inputs[0]] == ROWS
    losses = [node for node in graph if node.op == "SparseSoftmaxCrossEntropyWithLogits"]
    assert limits[losses[0].inputs[1]] == CLASSES
    sums = [node for node in graph if node.op == "UnsortedSegmentSum"]
    assert sums
    assert all(limits[node.inputs[1]] == ROWS for node in sums)


def test_steps_without_integers_have_no_limits() -> None:
    step = traced(sequence((3,), dense(2, "a"), dense(1, "b")), (1,))
    assert index_limits(step.graph, {}) == {}


def test_made_up_samples_name_many_rows() -> None:
    step = words()
    split = split_step(step)
    limits = index_limits(step.graph, {})
    values = SyntheticValues(
        32, {variable.handle: variable for variable in split.variables}, limits
    )
    rows = values.value(TensorArgument(step.graph.inputs[0], Sharded(0)))
    assert rows.shape == (32, 4)
    found = tf.unique(tf.reshape(rows, [-1])).y.numpy()
    assert found.min() >= 0
    assert found.max() < ROWS
    assert len(found) > ROWS / 2
