"""`verify=True`: the first step, also on one device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import evener
from evener.engine.verify import verify
from evener.errors import EvenerWarning


def test_the_first_call_is_verified_and_counts_once(capsys: Any) -> None:
    weight = tf.Variable(2.0)

    def step(x: tf.Tensor) -> tf.Tensor:
        loss = tf.sqrt(tf.reduce_mean(tf.square(weight * x)))
        weight.assign_sub(0.1 * loss)
        return loss

    distributed = evener.distribute(step, devices=["cpu:0", "cpu:1"], shares=[3, 1], verify=True)
    x = np.arange(9, dtype="float32")
    distributed(x)
    assert "Verified against one device" in capsys.readouterr().out
    assert distributed.verification.results < 1e-6
    assert distributed.verification.variables < 1e-6
    np.testing.assert_allclose(weight.numpy(), 2 - 0.2 * np.sqrt(np.mean(x**2)), rtol=1e-6)
    distributed(x)
    assert capsys.readouterr().out == ""


def test_a_difference_is_warned_of() -> None:
    variable = tf.Variable(1.0)

    def partitioned() -> tf.Tensor:
        variable.assign_add(0.5)
        return tf.constant(2.0)

    with pytest.warns(EvenerWarning, match="ENG-080"):
        _, found = verify(lambda: tf.constant(1.0), partitioned, [variable])
    assert found.results == 1.0
    assert found.variables == 0.5


def test_other_shapes_are_a_difference_without_end() -> None:
    with pytest.warns(EvenerWarning, match="ENG-080"):
        _, found = verify(lambda: tf.zeros([2]), lambda: tf.zeros([3]), [])
    assert found.results == float("inf")
