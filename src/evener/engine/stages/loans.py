"""Weights on loan: fetched from their owners shortly before a stage needs them.

A stage keeps its weights while the same device computes nothing but this stage, and gives
them back when another stage's turn comes, so that a device can compute stages whose weights
it could not hold all at once. Weights that live elsewhere begin to move while the device
still computes the last task of the stage before:

      task        F0 F0 F0 F1 F1 F1 B1 ...
      loan        [ stage 0 ][ stage 1    ]
      fetch    0            1
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


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

    def take(self, stage: int, first: Sequence[tf.Operation]) -> dict[int, tf.Tensor]:
        """Return the weights of a stage, by their position.

        Args:
            stage: The stage whose turn it is.
            first: What has to be over before a fetch may begin.
        """
        if stage != self._stage:
            self._stage = stage
            self._lent = {k: self._fetch(self._variables[k], first) for k in self._needed[stage]}
        return self._lent

    def _fetch(self, variable: Any, first: Sequence[tf.Operation]) -> tf.Tensor:
        owner = variable.value.device
        # Where it is sent from, so that the copy itself waits.
        with tf.device(owner), tf.control_dependencies(list(first)):
            value = tf.identity(variable.value)
        with tf.device(self._device):
            return tf.identity(value)
