"""Reads of variables outside of graphs, by Python and by the C code of TensorFlow."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf

from evener._tf_private.workers import before_reads
from evener.errors import CheckpointError
from evener.pinning import gradients

READS: dict[str, Callable[[tf.Variable], object]] = {
    "argument": tf.reduce_sum,
    "arithmetic": lambda v: 2 * v,
    "list of arguments": lambda v: tf.concat([v, v], 0),
    "slice": lambda v: v[0],
    "rows": lambda v: tf.gather(v, [0]),
    "lookup": lambda v: tf.nn.embedding_lookup(v, [0]),
    "array": np.asarray,
    "value": lambda v: v.read_value(),
    "save": lambda v: tf.train.Checkpoint(v=v).write("/dev/shm/evener-test-handles"),
}
OTHERS: dict[str, Callable[[tf.Variable], object]] = {
    "assign": lambda v: v.assign([3.0, 4.0]),
    "add": lambda v: v.assign_add([3.0, 4.0]),
    "scatter": lambda v: v.scatter_nd_add([[0]], [1.0]),
    "call": lambda v: tf.function(lambda: v * 2.0)(),
    "description": lambda v: (v.name, v.shape, v.device),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_read_is_told_before(read: Callable[[tf.Variable], object]) -> None:
    variable = tf.Variable(tf.constant([1.0, 2.0]))
    with before_reads(lambda each: each.assign([5.0, 6.0])):
        read(variable)
    assert variable.numpy().tolist() == [5.0, 6.0]


def test_a_read_is_told_where_gradients_have_devices(patches_undone: None) -> None:
    """The functions of operations call one of evener, and that the C code."""
    gradients.install()
    test_a_read_is_told_before(READS["argument"])


@pytest.mark.parametrize("use", OTHERS.values(), ids=OTHERS)
def test_other_uses_are_not(use: Callable[[tf.Variable], object]) -> None:
    told: list[tf.Variable] = []
    with before_reads(told.append):
        use(tf.Variable(tf.constant([1.0, 2.0])))
    assert told == []


def test_layers_read_their_weights() -> None:
    layer, told = keras.layers.Dense(2), list[str]()
    layer.build((None, 2))
    with before_reads(lambda each: told.append(each.name)):
        layer(tf.ones([1, 2]))
    assert {name.rpartition("/")[2] for name in told} == {"kernel:0", "bias:0"}


@pytest.mark.parametrize("read", [READS["argument"], READS["array"]], ids=["C", "Python"])
def test_an_error_ends_the_read(read: Callable[[tf.Variable], object]) -> None:
    def refuse(_: tf.Variable) -> None:
        raise CheckpointError("CKPT-021", "It is another program.", why="A test.", fix="None.")

    variable = tf.Variable(tf.constant([1.0, 2.0]))
    with (
        before_reads(refuse),
        pytest.raises((CheckpointError, tf.errors.FailedPreconditionError), match="CKPT-021"),
    ):
        read(variable)
    assert variable.numpy().tolist() == [1.0, 2.0]
