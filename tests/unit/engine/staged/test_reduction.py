"""Gradients meet on the owner, and the update happens there."""

from __future__ import annotations

import tensorflow as tf

from evener.engine.staged.reduction import sum_on_owner
from evener.locality import beside_inputs

OWNER = "/device:CPU:1"


def test_dense_gradients_are_added_on_the_owner() -> None:
    total = sum_on_owner([tf.ones([2]), None, tf.ones([2])], OWNER)
    assert total.numpy().tolist() == [2.0, 2.0]
    assert total.device.endswith("CPU:1")


def test_slices_are_joined_and_stay_slices() -> None:
    slices = [
        tf.IndexedSlices(tf.ones([1, 2]), tf.constant([k]), tf.constant([5, 2])) for k in (3, 3)
    ]
    total = sum_on_owner(slices, OWNER)
    assert isinstance(total, tf.IndexedSlices)
    assert total.indices.numpy().tolist() == [3, 3]
    mixed = sum_on_owner([*slices, tf.ones([5, 2])], OWNER)
    assert mixed.numpy()[3].tolist() == [3.0, 3.0]


def test_nothing_adds_up_to_nothing() -> None:
    assert sum_on_owner([None, None], OWNER) is None


def test_operations_without_a_device_follow_their_largest_input() -> None:
    @tf.function(autograph=False)
    def step(small: tf.Tensor) -> tf.Tensor:
        with tf.device("/CPU:2"):
            large = tf.ones([10]) * small
        with beside_inputs():
            clipped = large * small
            branch = tf.cond(small > 0, lambda: clipped * 2.0, lambda: clipped)
        step.device = clipped.device
        return branch

    step(tf.ones([]))
    assert step.device.endswith("CPU:2")
