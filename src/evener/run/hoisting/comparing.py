"""A step computed both ways from the same state: on all devices, and as it is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from evener.run.hoisting.code import Observed, keep_operation_seeds
from evener.run.hoisting.reads import Call, ChangesArrays
from evener.run.hoisting.state import State, differences, is_rounding, numbers_of
from evener.run.hoisting.values import CannotHoist, same
from evener.run.hoisting.variant import OTHER_DRAWS, Variant
from evener.strategy import Strategy


class AsWritten(Exception):
    """Says that a step ran as it is written, with its effects, and is not to be hoisted.

    Args:
        reason: Why not.
        results: Its results.
    """

    def __init__(self, reason: str, results: tuple[Any, ...]) -> None:
        super().__init__(reason)
        self.results = results


class Comparison:
    """Runs a step both ways. The results and effects of the step as written are those that count.

    Args:
        variant: The step.
        call: The call.
        strategy: Runs it on all devices.
        others: Variables that are not the program's.
    """

    def __init__(
        self, variant: Variant, call: Call, strategy: Strategy, others: Sequence[tf.Variable]
    ) -> None:
        self._variant = variant
        self._call = call
        self._strategy = strategy
        self._state = State(others)
        self._put_back_seeds = keep_operation_seeds()
        self.observed = Observed()

    def run(self) -> tuple[Any, ...] | None:
        """Return the results; None if the step as written fails, which then has no effect.

        Raises:
            CannotHoist: If the step cannot be hoisted. It has no effect.
            AsWritten: If it cannot, and has run as it is written.
            Exception: What running on all devices raises. It has no effect.
        """
        actual, after = self._on_all_devices()
        try:
            with self.observed:
                expected = self._call.run()
        except ChangesArrays as changed:
            raise AsWritten("it changes an array of NumPy", changed.results) from None
        except BaseException:
            # As written, it fails again, at its own line.
            self._undo()
            return None
        changed = self._variant.reads.changed()
        if changed is not None:
            raise AsWritten(f"it changes {changed}", expected)
        if self.observed.num_draws != self._variant.num_draws:
            raise AsWritten(OTHER_DRAWS, expected)
        truth = self._state.now()
        found = _differences(expected, actual, truth, after)
        eager, on_all = (expected, truth), (actual, after)
        if not is_rounding(found) and not is_rounding(found, self._disturbed(eager, on_all)):
            raise AsWritten("as a function it computes other values than as written", expected)
        return expected

    def _on_all_devices(self) -> tuple[tuple[Any, ...], list[np.ndarray]]:
        """Return the results on all devices and the variables then, which are put back."""
        try:
            actual = self._variant.call(self._call, self._strategy)
            after = self._state.now()
            changed = self._variant.reads.changed()
        finally:
            self._undo()
        if changed is not None:
            raise CannotHoist(f"it changes {changed}")
        return actual, after

    def _undo(self) -> None:
        self._state.restore()
        self._variant.reads.restore()
        self._put_back_seeds()

    def _disturbed(
        self, eager: tuple[Any, list[np.ndarray]], actual: tuple[Any, list[np.ndarray]]
    ) -> list[float] | None:
        """Return how much rounding changes results and variables; its effects are undone."""
        put_back_seeds: Callable[[], None] = keep_operation_seeds()
        self._put_back_seeds()
        self._state.disturb()
        try:
            if not self._variant.num_draws:
                return _differences(eager[0], self._call.run(), eager[1], self._state.now())
            # Eager kernels draw other numbers when they draw again.
            results = self._variant.call(self._call, self._strategy)
            return _differences(actual[0], results, actual[1], self._state.now())
        finally:
            self._undo()
            self._state.assign(eager[1])
            put_back_seeds()


def _differences(
    expected: tuple[Any, ...],
    actual: tuple[Any, ...],
    after_expected: Sequence[np.ndarray],
    after_actual: Sequence[np.ndarray],
) -> list[float]:
    """Return the differences of the results and of the variables of two runs."""
    left = tf.nest.flatten(expected, expand_composites=True)
    right = tf.nest.flatten(actual, expand_composites=True)
    if len(left) != len(right):
        return [float("inf")]
    pairs = list(zip(left, right, strict=True))
    if any(not same(a, b) and not (tf.is_tensor(a) and tf.is_tensor(b)) for a, b in pairs):
        return [float("inf")]
    tensors = [(a, b) for a, b in pairs if tf.is_tensor(a) and a is not b]
    return [
        *differences(numbers_of([a for a, _ in tensors]), numbers_of([b for _, b in tensors])),
        *differences(after_expected, after_actual),
    ]
