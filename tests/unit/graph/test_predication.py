"""Conditions that update variables: which become unconditional updates, and their results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import evener
from evener.graph.nodes import Graph
from evener.graph.rewrites import CONDITIONS, LOOPS, open_functions

DEVICES = ["cpu:0", "cpu:1"]


class TwoOwners:
    """Variables on two devices, and a count on the first."""

    def __init__(self) -> None:
        with tf.device("CPU:0"):
            self.count = tf.Variable(tf.constant(0))
            self.first = tf.Variable(tf.constant([1.0, -0.0]))
        with tf.device("CPU:1"):
            self.second = tf.Variable(tf.constant([3.0, 4.0]))

    def state(self) -> list[np.ndarray]:
        return [item.numpy() for item in (self.count, self.first, self.second)]


def both_branches_write(owned: TwoOwners, x: tf.Tensor) -> Any:
    """Each branch reads what it wrote before, and the variable of the other owner."""
    total = tf.reduce_sum(x, 0)
    owned.count.assign_add(1)
    if tf.math.floormod(owned.count, 2) == 0:
        owned.first.assign_add(total)
        owned.second.assign(owned.second * owned.first)
        owned.first.assign(owned.first - 0.5 * owned.second)
        found = owned.first[0]
    else:
        owned.second.assign_sub(total / owned.first[0])
        owned.first.assign(owned.second + 1.0)
        found = owned.second[0]
    owned.second.assign_add([found, 1.0])
    return found + owned.first[0]


def nested(owned: TwoOwners, x: tf.Tensor) -> Any:
    total = tf.reduce_sum(x, 0)
    owned.count.assign_add(1)
    if owned.count > 1:
        owned.second.assign_sub(total)
        if tf.math.floormod(owned.count, 2) == 0:
            owned.first.assign(owned.second * 2.0)
        else:
            owned.first.assign_sub(owned.second)
            owned.count.assign_add(2)
    return owned.first[0]


def not_a_number(owned: TwoOwners, x: tf.Tensor) -> Any:
    """The value that is not chosen is infinite or no number."""
    worst = tf.reduce_sum(x, 0) / 0.0
    if tf.reduce_all(tf.math.is_finite(worst)):
        owned.first.assign_add(worst)
        owned.second.assign_sub(worst)
        owned.count.assign_add(1)
    else:
        owned.second.assign_add([1.0, 1.0])
    return owned.first[0]


def repeated(owned: TwoOwners, x: tf.Tensor) -> Any:
    """A branch with a loop and an assertion stays a condition."""
    total = tf.reduce_sum(x, 0)
    owned.count.assign_add(1)
    if tf.math.floormod(owned.count, 2) == 0:
        for _ in tf.range(3):
            owned.first.assign_add(total)
        owned.second.assign(owned.first)
    return owned.second[0]


def repeated_inside(owned: TwoOwners, x: tf.Tensor) -> Any:
    total = tf.reduce_sum(x, 0)
    owned.count.assign_add(1)
    if owned.count > 1:
        if tf.math.floormod(owned.count, 2) == 0:
            for _ in tf.range(3):
                owned.first.assign_add(total)
            owned.second.assign(owned.first)
    return owned.second[0]


def of_unlike_sizes(owned: TwoOwners, x: tf.Tensor) -> Any:
    """The branch that is not taken would fail: it subtracts tensors of unlike shapes."""
    owned.count.assign_add(1)
    if tf.shape(x)[0] == 4:
        owned.first.assign(tf.reduce_sum(x - tf.ones([4, 2]), 0))
        owned.second.assign(owned.first * 2.0)
    return owned.second[0]


def divides_integers(owned: TwoOwners, x: tf.Tensor) -> Any:
    """A division of integers by zero is an error in TensorFlow."""
    number = tf.cast(tf.reduce_sum(x), tf.int32)
    if number > 10_000:
        owned.count.assign(10 // (number - number))
        owned.second.assign_add([1.0, 1.0])
    return owned.second[0]


STEPS: dict[Callable[..., Any], bool] = {
    both_branches_write: True,
    nested: True,
    not_a_number: True,
    repeated: False,
    repeated_inside: False,
    of_unlike_sizes: False,
    divides_integers: False,
}


def batch(num_samples: int) -> tf.Tensor:
    numbers = np.random.default_rng(num_samples).normal(size=(num_samples, 2))
    return tf.constant(numbers.astype("float32"))


@pytest.mark.parametrize("step", STEPS)
def test_conditions_that_go(step: Callable[..., Any]) -> None:
    owned = TwoOwners()
    traced = tf.function(lambda x: step(owned, x))
    graph = Graph(traced.get_concrete_function(tf.TensorSpec([None, 2])).graph)
    open_functions(graph)
    assert any(item.op in LOOPS | CONDITIONS for item in graph) != STEPS[step]


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.filterwarnings("ignore:.*ENG-082")
def test_results_are_those_of_one_device(step: Callable[..., Any], jit_compile: bool) -> None:
    alone, together = TwoOwners(), TwoOwners()
    spec = [tf.TensorSpec([None, 2])]
    plain = tf.function(lambda x: step(alone, x), input_signature=spec)
    compiled = tf.function(lambda x: step(together, x), jit_compile=jit_compile)
    distributed: Any = evener.distribute(compiled, devices=DEVICES, shares=[3, 1])
    for num_samples in (5, 5, 4, 5, 1):
        x = batch(num_samples)
        np.testing.assert_allclose(plain(x), distributed(x), rtol=1e-5)
        for expected, found in zip(alone.state(), together.state(), strict=True):
            np.testing.assert_allclose(expected, found, rtol=1e-5)


def test_a_branch_that_is_not_taken_changes_no_bit() -> None:
    owned = TwoOwners()

    def step(x: tf.Tensor) -> None:
        if tf.reduce_sum(x) > 1e6:
            owned.first.assign_add(x[0])
            owned.second.assign_sub(x[0])

    evener.distribute(step, devices=DEVICES)(tf.constant([[0.0, 0.0]] * 2))
    assert np.signbit(owned.first.numpy()).tolist() == [False, True]
