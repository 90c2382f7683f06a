"""Verification: the first run of a step is also computed on one device, and compared.

::

    first run      snapshot -> step on one device -> results, variables to the host -> put back
                   six times:  last places changed -> step on one device -> host -> put back
                                                                                |
    every run      the partitioned step                                         v
    first run                             -> results, variables to the host -> compare, print
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from evener.errors import EngineError, warn
from evener.partition.tasks import HOST
from evener.strategy.rounding import (
    NUM_DISTURBED,
    Difference,
    Moved,
    disturbed,
    gap,
    is_beyond,
    is_inexact,
    magnitude,
    moved,
)

# First run of a step: results of one device, and their differences from all devices.

_TINY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Differences of a partitioned step and the same step on one device."""

    step: str = "a step"  # Name of the step
    # Largest difference of the results, relative to the largest number of each tensor
    results: float
    variables: float  # Largest difference of the variables after the step, relative in the same way
    # Largest change of the results on one device by other last places of all numbers, relative in
    # the same way
    rounding_of_results: float = 0.0
    rounding_of_variables: float = 0.0  # The same of the variables
    # Tensors that differ by more than that rounding explains
    differences: tuple[Difference, ...] = ()

    def __str__(self) -> str:
        verdict = (
            "more than rounding explains"
            if self.differences
            else "rounding of the step on one device: "
            f"{self.rounding_of_results:.1e} and {self.rounding_of_variables:.1e}"
        )
        return (
            f"Verified against one device: results differ by at most {self.results:.1e}, variables "
            f"by {self.variables:.1e} (relative), in {self.step}; {verdict}."
        )


class FirstRun:
    """Results of the first run of a step on one device."""

    def __init__(
        self,
        step: str,
        variables: Sequence[tuple[str, bool]],
        epsilon: float,
        arrays: Sequence[np.ndarray],
    ) -> None:
        self._step = step
        self._epsilon = epsilon
        count = len(variables)
        numbers = range(len(arrays) - 2 * count)
        self._is_trained = [is_trained for _, is_trained in variables] + [False] * len(numbers)
        self._names = [f"the change of {name.split(':')[0]}" for name, _ in variables]
        self._names += [f"result {number}" for number in numbers]
        # TensorFlow may use the memory again.
        self._before = [np.array(array) for array in arrays[:count]]
        self._after = [magnitude(array) for array in arrays[count : 2 * count]]
        self._expected = [np.array(array) for array in _changes(self._before, arrays[count:])]
        self._noise: list[list[Moved]] = [[] for _ in self._expected]

    def add_disturbed(self, arrays: Sequence[np.ndarray]) -> None:
        """Add a run on one device with other last places, given as the first one."""
        count = len(self._before)
        found = _changes(arrays[:count], arrays[count:])
        for noise, expected, other in zip(self._noise, self._expected, found, strict=True):
            noise.append(moved(expected, other))

    def compared_with(self, arrays: Sequence[np.ndarray]) -> Verification:
        """Return the differences of a run on all devices."""
        actual = _changes(self._before, arrays)
        count = len(self._before)
        by: list[float] = []
        rounding: list[float] = []
        differences: list[Difference] = []
        for number, (expected, other) in enumerate(zip(self._expected, actual, strict=True)):
            largest = gap(expected, other)
            noise = max((item.largest for item in self._noise[number]), default=0.0)
            own = max(magnitude(expected) or magnitude(other), _TINY)
            if self._is_beyond(number, other):
                differences.append(
                    Difference(
                        name=self._names[number],
                        by=_relative(largest, own, expected),
                        rounding=_relative(noise, own, expected),
                    )
                )
            is_change = number < count
            scale = max(self._after[number] if is_change else own, _TINY)
            if np.isfinite(noise):
                scale = max(scale, noise)
            by.append(_relative(largest, scale, expected))
            rounding.append(_relative(noise, scale, expected))
        return Verification(
            step=self._step,
            results=max(by[count:], default=0.0),
            variables=max(by[:count], default=0.0),
            rounding_of_results=max(rounding[count:], default=0.0),
            rounding_of_variables=max(rounding[:count], default=0.0),
            differences=tuple(differences),
        )

    def _is_beyond(self, number: int, actual: np.ndarray) -> bool:
        expected = self._expected[number]
        is_change = number < len(self._before)
        return is_beyond(
            moved(expected, actual, without_few=self._is_trained[number]),
            self._noise[number],
            expected,
            held=magnitude(self._before[number]) if is_change else 0.0,
            epsilon=self._epsilon,
        )


def _relative(largest: float, scale: float, expected: np.ndarray) -> float:
    return largest / scale if is_inexact(expected) or not np.isfinite(largest) else largest


def _changes(before: Sequence[np.ndarray], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return what a step has changed of inexact variables, exact variables, and the results."""
    changed: list[np.ndarray] = []
    for old, new in zip(before, arrays, strict=False):
        if is_inexact(new):
            wide = np.result_type(new.dtype, np.float32) if new.dtype.kind in "fc" else np.float32
            with np.errstate(invalid="ignore"):
                changed.append(new.astype(wide) - old.astype(wide))
        else:
            changed.append(new)
    return [*changed, *arrays[len(before) :]]


# Verification: the first run of a step is also computed on one device, and compared.
#
# ::
#
#     first run      snapshot -> step on one device -> results, variables to the host -> put back
#                    six times:  last places changed -> step on one device -> host -> put back
#                                                                                 |
#     every run      the partitioned step                                         v
#     first run                             -> results, variables to the host -> compare, print
#
# It is a part of the graph of the step, so it runs wherever a step runs: in Keras's ``fit``, in
# custom loops, in `evener.distribute`.

VARIABLE = "EVENER_VERIFY"
"""Environment variable that decides for steps whose ``verify`` is None."""


def chosen_verification(verify: bool | None) -> bool | None:
    """Return the verification of steps: the one asked for, else that of ``EVENER_VERIFY``."""
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
    """Compares the first run of a step with the same step on one device."""

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
        """Run a step in the graph that is being made; in its first run, on one device as well."""
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
