"""Two batches joined, as in GANs and contrastive losses: parts keep their rows of both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import evener
from multi_device.public_names.verdicts import is_gathered_by_parts

from .test_written_steps import PLANS

Loss = Callable[[Any, Any], Any]
WIDTH = 4
LOSSES: dict[str, Loss] = {}
"""Losses of the outputs for both batches, joined, and of one of the batches."""


def loss(function: Loss) -> Loss:
    """Register a loss whose gradient nothing is gathered for."""
    LOSSES[function.__name__] = function
    return function


@loss
def mean(z: Any, x: Any) -> Any:
    return tf.reduce_mean(tf.square(z))


@loss
def real_or_not(z: Any, x: Any) -> Any:
    labels = tf.concat([tf.ones_like(x[:, :1]), tf.zeros_like(x[:, :1])], 0)
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, z[:, :1]))


@loss
def sum_of_rows(z: Any, x: Any) -> Any:
    return tf.reduce_sum(tf.sqrt(tf.reduce_sum(tf.square(z), 1) + 0.1))


@loss
def all_outputs(z: Any, x: Any) -> Any:
    return z


@loss
def where_positive(z: Any, x: Any) -> Any:
    return tf.reduce_sum(tf.where(z > 0.0, z * 2.0, tf.ones_like(z)))


@loss
def old_select(z: Any, x: Any) -> Any:
    chosen = tf.raw_ops.Select(condition=z[:, 0] > 0.0, x=tf.square(z), y=tf.ones_like(z))
    return tf.reduce_mean(chosen)


def weighed_by_rows(z: Any, x: Any) -> Any:
    """Unlike rows that are split in one block of both batches: they are split anew."""
    numbers = tf.cast(tf.range(2 * tf.shape(x)[0]), z.dtype)
    return tf.reduce_sum(tf.tanh(z) * numbers[:, None])


def weighed_by_column(z: Any, x: Any) -> Any:
    """Tensors that are stretched along the batch, and have unlike columns."""
    return tf.reduce_sum(
        tf.broadcast_to(tf.linspace(tf.cast(0.0, z.dtype), 1.0, 3), tf.shape(z)) * z
    )


CASES = {**LOSSES, "weighed_by_rows": weighed_by_rows, "weighed_by_column": weighed_by_column}


def step_of(name: str) -> Callable[[Any, Any], Any]:
    def step(x: Any, w: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            z = tf.tanh(tf.concat([x, tf.sin(x)], 0) @ w)
            value = CASES[name](z, x)
        return [value, *tape.gradient(value, [x, w])]

    return step


def samples(size: int) -> tuple[tf.Tensor, tf.Tensor]:
    rng = np.random.default_rng(size)
    return tf.constant(rng.normal(size=[size, WIDTH])), tf.constant(rng.normal(size=[WIDTH, 3]))


@pytest.mark.covering(1)
@pytest.mark.parametrize("plan", ["5", "cut"])
@pytest.mark.parametrize("name", CASES)
def test_equals_one_device(name: str, plan: str) -> None:
    expected = step_of(name)
    actual = evener.distribute(expected, plan=PLANS[plan], in_axes=(0, None))
    for size in (24, 9, 1):
        pairs = zip(expected(*samples(size)), actual(*samples(size)), strict=True)
        for left, right in pairs:
            np.testing.assert_allclose(right, left, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", LOSSES)
def test_no_rows_go_from_part_to_part(name: str) -> None:
    step = evener.distribute(step_of(name), plan=PLANS["3"], in_axes=(0, None))
    step(*samples(9))
    assert not step.report().gathered
    for partitioned in step.partitioned_steps:
        partition = partitioned.partition
        nodes = [node for task in partition.tasks for node in task.nodes]
        assert not [node.name for node in nodes if is_gathered_by_parts(partition, node)]
