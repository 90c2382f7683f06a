"""Verification: the first run of a step is also computed on one device, and compared.

::

    first run      snapshot -> step on one device -> results, variables to the host -> put back
                   six times:  last places changed -> step on one device -> host -> put back
                                                                                |
    every run      the partitioned step                                         v
    first run                             -> results, variables to the host -> compare, print

It is a part of the graph of the step, so it runs wherever a step runs: in Keras's ``fit``, in
custom loops, in `evener.distribute`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from evener.checking.disturbed import disturbed
from evener.checking.rounding import NUM_DISTURBED
from evener.checking.verification import FirstRun, Verification
from evener.engine.partition.homes import HOST
from evener.errors import EngineError, warn

VARIABLE = "EVENER_VERIFY"
"""Environment variable that decides for steps whose ``verify`` is None."""


def chosen_verification(verify: bool | None) -> bool | None:
    """Return the verification of steps: the one asked for, else that of ``EVENER_VERIFY``.

    Args:
        verify: True for the first run of every step, False for none, None for a few samples unless
            the environment says 1 or 0.

    Raises:
        EngineError: ENG-012 if the environment says something else.
    """
    text = os.environ.get(VARIABLE, "")
    if verify is not None or not text:
        return verify
    if text not in ("0", "1"):
        raise EngineError(
            "ENG-012",
            f"{VARIABLE} is {text!r}.",
            why="1 compares the first run of every step with one device, 0 compares nothing.",
            fix=f"Set {VARIABLE} to 0 or 1, or unset it for a check of a few samples.",
        )
    return text == "1"


class Verifier:
    """Compares the first run of a step with the same step on one device.

    Args:
        when_compared: Function that is called with the differences.
    """

    def __init__(self, when_compared: Callable[[Verification], None]) -> None:
        self._when_compared = when_compared
        self._is_begun = False
        self._first: FirstRun | None = None

    def run(
        self,
        plain: Callable[[Sequence[Any]], Sequence[Any]],
        partitioned: Callable[[], Sequence[Any]],
        variables: Sequence[tf.Variable],
        *,
        tensors: Sequence[Any] = (),
        step: str = "a step",
        epsilon: float = 2.0**-24,
    ) -> Sequence[Any]:
        """Run a step in the graph that is being made; in its first run, on one device as well.

        Args:
            plain: Function of the arguments that runs it on one device, and returns flat tensors.
            partitioned: Function that runs it on all devices, and returns the same tensors.
            variables: Variables that the step may change.
            tensors: Arguments of the step.
            step: Name of the step.
            epsilon: Rounding of the least precise dtype that the step computes in.

        Returns:
            Results of the partitioned step.
        """
        is_first = self._on_host(self._begins, [], tf.bool)

        def on_one_device() -> tf.Tensor:
            before = [variable.read_value() for variable in variables]
            with tf.control_dependencies(before):
                results = _numbers(plain(tensors))

            def keep(*arrays: np.ndarray) -> bool:
                named = [(variable.name, variable.trainable) for variable in variables]
                self._first = FirstRun(step, named, epsilon, arrays)
                return True

            with tf.control_dependencies(results):
                after = [variable.read_value() for variable in variables]
            kept = self._on_host(keep, [*before, *after, *results], tf.bool)
            seed = self._disturbed_runs(plain, variables, before, tensors, epsilon, after=kept)
            with tf.control_dependencies([seed]):
                puts = _assigned(variables, before)
            with tf.control_dependencies(puts):
                return tf.identity(kept)

        is_done = tf.cond(is_first, on_one_device, lambda: tf.constant(False))
        with tf.control_dependencies([is_done]):
            results = partitioned()
        numbers = _numbers(results)

        def compare() -> tf.Tensor:
            after = [variable.read_value() for variable in variables]
            return self._on_host(self._compare, [*after, *numbers], tf.bool)

        with tf.control_dependencies(numbers):
            tf.cond(is_first, compare, lambda: tf.constant(False))
        return results

    def _disturbed_runs(
        self,
        plain: Callable[[Sequence[Any]], Sequence[Any]],
        variables: Sequence[tf.Variable],
        before: Sequence[Any],
        tensors: Sequence[Any],
        epsilon: float,
        *,
        after: tf.Tensor,
    ) -> tf.Tensor:
        """Run the step with other last places; return the number of runs, once all have ended."""

        def body(number: tf.Tensor) -> tf.Tensor:
            changed = disturbed(before, variables, number, epsilon)
            with tf.control_dependencies(changed):
                puts = _assigned(variables, changed)
            with tf.control_dependencies(puts):
                results = _numbers(plain(disturbed(tensors, None, number, epsilon)))
            with tf.control_dependencies(results):
                ended = [variable.read_value() for variable in variables]
            kept = self._on_host(self._disturb, [*changed, *ended, *results], tf.bool)
            with tf.control_dependencies([kept]):
                return number + 1

        with tf.control_dependencies([after]):
            begin = tf.constant(0)
        [end] = tf.while_loop(
            lambda number: number < NUM_DISTURBED,
            lambda number: [body(number)],
            [begin],
            parallel_iterations=1,
        )
        return end

    @staticmethod
    def _on_host(function: Callable[..., Any], tensors: Sequence[Any], dtype: tf.DType) -> Any:
        with tf.device(HOST):
            return tf.numpy_function(function, tensors, dtype, stateful=True)

    def _begins(self) -> bool:
        is_first, self._is_begun = not self._is_begun, True
        return is_first

    def _disturb(self, *arrays: np.ndarray) -> bool:
        assert self._first is not None
        self._first.add_disturbed(arrays)
        return True

    def _compare(self, *arrays: np.ndarray) -> bool:
        first, self._first = self._first, None
        assert first is not None
        found = first.compared_with(arrays)
        print(f"evener: {found}", file=sys.stderr)
        self._when_compared(found)
        if found.differences:
            _warn_of(found)
        return True


def _warn_of(found: Verification) -> None:
    """Warn of tensors that differ by more than the rounding of the step: ENG-080."""
    worst = max(found.differences, key=lambda difference: difference.by)
    others = len(found.differences) - 1
    and_more = f", and {others} more" if others else ""
    warn(
        "ENG-080",
        f"The first run of {found.step} differs from the same run on one device: {worst.name}, by "
        f"{worst.by:.1e} of its largest number{and_more}.",
        why="Rounding does not explain it. One device computed the same run with other last places "
        f"of all numbers {NUM_DISTURBED} times, which changed {worst.name} by at most "
        f'{worst.rounding:.1e}. BatchNormalization differs where batch_norm="per_device" was '
        "chosen, which is not exact.",
        fix="Run the program on one device. Unless per_device was chosen, please report it as a "
        "fault of evener, with strategy.report() or step.report().",
    )


def _assigned(variables: Sequence[tf.Variable], values: Sequence[Any]) -> list[Any]:
    return [
        variable.assign(value, read_value=False)
        for variable, value in zip(variables, values, strict=True)
    ]


def _numbers(tensors: Sequence[Any]) -> list[Any]:
    return [tensor for tensor in tensors if tensor.dtype not in (tf.resource, tf.variant)]
