"""Weights on loan: fetched from their owners shortly before a stage needs them.

A stage keeps its weights while the same device computes nothing but this stage, and gives
them back when another stage's turn comes, so that a device can compute stages whose weights
it could not hold all at once. Weights that live elsewhere begin to move while the device
still computes the last task of the stage before:

      task        F0 F0 F0 F1 F1 F1 B1 B1 B1 B0 B0 B0
      loan        [ stage 0 ][ stage 1      ][ stage 0
      fetch    0         1                0
      gradients                           [ 1 ] to their owners

Gradients go to their owners as soon as they are complete. They must have arrived before another
fetch but one begins: where moving takes longer than computing they would pile up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from evener.engine.ownership import device_name


class Loans:
    """The weights that one device has on loan.

    Args:
        device: TensorFlow's name of the device.
        variables: All trained variables.
        needed: For each stage, the positions of the variables it computes with.
    """

    def __init__(
        self, device: str, variables: Sequence[Any], needed: Sequence[Sequence[int]]
    ) -> None:
        self._device = device
        self._variables = variables
        self._needed = needed
        self._stage: int | None = None
        self._lent: dict[int, tf.Tensor] = {}
        # What has arrived at owners, with the number of calls that were made before it left.
        self._arrivals: list[tuple[int, tf.Operation]] = []

    def take(self, stage: int, calls: Sequence[tf.Operation]) -> dict[int, tf.Tensor]:
        """Return the weights of a stage, by their position.

        Args:
            stage: The stage whose turn it is.
            calls: The calls that the device has before.
        """
        if stage != self._stage:
            self._stage = stage
            # Weights may begin to move when the call before this one begins.
            first = [*calls[-2:-1], *self._arrived_before(len(calls) - 1)]
            self._lent = {k: self._fetch(self._variables[k], first) for k in self._needed[stage]}
        return self._lent

    def give(self, variable: int, gradient: tf.Tensor, num_calls: int) -> tf.Tensor:
        """Return the complete gradient of a variable, with the variable's owner.

        Args:
            variable: Its position.
            gradient: On this device.
            num_calls: How many calls the device has, that which gave the gradient included.
        """
        owner = self._variables[variable].value.device
        if device_name(owner) == device_name(self._device):
            return gradient
        with tf.device(owner):
            arrived = tf.identity(gradient)
        if not tf.executing_eagerly():
            self._arrivals.append((num_calls, arrived.op))
        return arrived

    def _arrived_before(self, num_calls: int) -> list[tf.Operation]:
        """Return the arrivals of what calls have given before the last of so many."""
        over = [op for number, op in self._arrivals if number < num_calls]
        self._arrivals = [(n, op) for n, op in self._arrivals if n >= num_calls]
        if len(over) < 2:
            return over
        # One for all, because every weight of the loan waits for it.
        with tf.device(over[0].device), tf.control_dependencies(over):
            return [tf.no_op()]

    def _fetch(self, variable: Any, first: Sequence[tf.Operation]) -> tf.Tensor:
        owner = variable.value.device
        # Where it is sent from, so that the copy itself waits.
        with tf.device(owner), tf.control_dependencies(list(first)):
            value = tf.identity(variable.value)
        with tf.device(self._device):
            return tf.identity(value)


def deliver(tensor: tf.Tensor, device: str, first: Sequence[tf.Operation]) -> tf.Tensor:
    """Return a tensor that is not sent to another device before some operations are over.

    Without it, the samples of all micro-batches would wait on the device from the begin of the
    step.

    Args:
        tensor: Made somewhere else, or there.
        device: TensorFlow's name of the device that needs it.
        first: What has to be over.
    """
    if not first or device_name(tensor.device) == device_name(device):
        return tensor
    with tf.device(tensor.device), tf.control_dependencies(list(first)):
        return tf.identity(tensor)
