"""Gradient tapes."""

from __future__ import annotations

import tensorflow as tf

from evener._tf_private.tapes import tape_is_recording
from evener.pinning import gradients


def test_it_is_seen_that_a_tape_records() -> None:
    assert not tape_is_recording()
    with tf.GradientTape():
        assert tape_is_recording()
    assert not tape_is_recording()


def test_an_eager_operation_can_be_sent_the_slower_way() -> None:
    # It puts a wrapper around the fast way, which raises `FallBack`.
    gradients.install()
    with tf.GradientTape() as tape, tf.device("/CPU:1"):
        x = tf.Variable(3.0)
        y = x * x
    gradient = tape.gradient(y, x)
    assert (float(gradient), gradient.device[-5:]) == (6.0, "CPU:1")
