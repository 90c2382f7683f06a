from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from evener._tf_private.tapes import keep_order_of_variables, tape_is_recording
from evener.pinning import gradients

pytestmark = pytest.mark.usefixtures("logical_cpus")


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


@pytest.mark.usefixtures("patches_undone")
def test_variables_come_in_the_order_in_which_they_were_made() -> None:
    keep_order_of_variables()
    # Each has another size, so that it is known again; their addresses have no order.
    made = [
        (tf.Variable(tf.ones([size]), name=f"kernel_{size % 20}"), [0] * 1000)
        for size in range(1, 60)
    ]
    variables = [made[k][0] for k in range(59)]
    seen: list[list[int]] = []

    @tf.custom_gradient
    def total(x: Any) -> Any:
        def gradient(upstream: Any, variables: Any = None) -> Any:
            seen.append([int(variable.shape[0]) for variable in variables])
            return upstream, [upstream * tf.ones_like(variable) for variable in variables]

        return x * tf.add_n([tf.reduce_sum(variable) for variable in variables]), gradient

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = total(x)
        return tape.gradient(loss, variables)

    gradients = step(tf.constant(3.0))
    assert seen == [list(range(1, 60))]
    assert [float(gradient[0]) for gradient in gradients] == [1.0] * 59
