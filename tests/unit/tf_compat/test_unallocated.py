from __future__ import annotations

import tensorflow as tf

from evener.tf_compat.unallocated import unallocated_variables


def test_a_variable_has_a_shape_and_no_value() -> None:
    with unallocated_variables():
        variable = tf.Variable(lambda: tf.ones([1 << 20, 1 << 20]), name="large", trainable=False)
    assert variable.shape == (1 << 20, 1 << 20)
    assert variable.dtype == tf.float32
    assert not variable.trainable
    assert variable.read_value().shape == (0,)


def test_a_value_that_is_there_gives_its_shape() -> None:
    with unallocated_variables():
        variable = tf.Variable([[1, 2]], dtype=tf.int64)
    assert (variable.shape, variable.dtype) == ((1, 2), tf.int64)


def test_outside_variables_are_as_ever() -> None:
    with unallocated_variables():
        pass
    assert tf.Variable(2.0).numpy() == 2.0
