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
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from evener.errors import EngineError, warn
from evener.partition.tasks import HOST
from evener.strategy.rounding import (
    NUM_DISTURBED,
    Arrays,
    Moved,
    disturbed,
    gap,
    is_beyond,
    is_inexact,
    magnitude,
    moved,
)

VARIABLE = "EVENER_VERIFY"
"""Environment variable that decides for steps whose ``verify`` is None."""

_TINY = float(np.finfo(np.float32).tiny)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDifference:
    """Tensor that differs by more than the rounding of the step.

    Attributes:
        by: Largest difference, relative to the largest number of the tensor.
        rounding: Largest difference that other last places cause, relative to the same number.
    """

    name: str
    by: float
    rounding: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Differences of a partitioned step and the same step on one device.

    Attributes:
        results: Largest difference of the results, relative to the largest number of each tensor.
        variables: Largest difference of the variables after the step, relative in the same way.
        rounding_of_results: Largest change of the results on one device by other last places of
            all numbers, relative in the same way.
        rounding_of_variables: The same of the variables.
        differences: Tensors that differ by more than that rounding explains.
    """

    step: str = "a step"
    results: float
    variables: float
    rounding_of_results: float = 0.0
    rounding_of_variables: float = 0.0
    differences: tuple[TensorDifference, ...] = ()

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


class Verifier:
    def __init__(
        self,
        step: str,
        variables: Sequence[tf.Variable],
        epsilon: float,
        when_compared: Callable[[Verification], None],
    ) -> None:
        self._step, self._variables = step, variables
        self._epsilon, self._when_compared = epsilon, when_compared
        self._is_begun = False
        self._before: list[np.ndarray] = []
        self._after: list[float] = []
        self._expected: list[np.ndarray] = []
        self._noise: list[list[Moved]] = []

    def run(
        self,
        plain: Callable[[Sequence[Any]], Sequence[Any]],
        partitioned: Callable[[], Sequence[Any]],
        tensors: Sequence[Any],
    ) -> Sequence[Any]:
        """Run a step in the graph that is being made; in its first run, on one device as well."""

        def run_plain(arguments: Sequence[Any], after: Sequence[Any]) -> list[Any]:
            with tf.control_dependencies(after):
                results = _numbers(plain(arguments))
            with tf.control_dependencies(results):
                return [*self._read(), *results]

        def disturb(number: tf.Tensor, before: Sequence[Any]) -> tf.Tensor:
            changed = disturbed(before, self._variables, number, self._epsilon)
            with tf.control_dependencies(changed):
                puts = self._assign(changed)
            arguments = disturbed(tensors, None, number, self._epsilon)
            kept = _on_host(self._keep_noise, [*changed, *run_plain(arguments, puts)])
            with tf.control_dependencies([kept]):
                return number + 1

        def on_one_device() -> tf.Tensor:
            before = self._read()
            kept = _on_host(self._keep_first, [*before, *run_plain(tensors, before)])
            with tf.control_dependencies([kept]):
                begin = tf.constant(0)
            [end] = tf.while_loop(
                lambda number: number < NUM_DISTURBED,
                lambda number: [disturb(number, before)],
                [begin],
                parallel_iterations=1,
            )
            with tf.control_dependencies([end]):
                puts = self._assign(before)
            with tf.control_dependencies(puts):
                return tf.identity(kept)

        is_first = _on_host(self._begins, [])
        is_done = tf.cond(is_first, on_one_device, lambda: tf.constant(False))
        with tf.control_dependencies([is_done]):
            results = partitioned()
        numbers = _numbers(results)
        with tf.control_dependencies(numbers):
            tf.cond(
                is_first,
                lambda: _on_host(self._compare, [*self._read(), *numbers]),
                lambda: tf.constant(False),
            )
        return results

    def _read(self) -> list[Any]:
        return [variable.read_value() for variable in self._variables]

    def _assign(self, values: Sequence[Any]) -> list[Any]:
        return [
            variable.assign(value, read_value=False)
            for variable, value in zip(self._variables, values, strict=True)
        ]

    def _begins(self) -> bool:
        is_first, self._is_begun = not self._is_begun, True
        return is_first

    def _keep_first(self, *arrays: np.ndarray) -> bool:
        """Keep a run on one device: variables before it, variables after it, and results."""
        count = len(self._variables)
        # TensorFlow may use the memory again.
        self._before = [np.array(array) for array in arrays[:count]]
        self._after = [magnitude(array) for array in arrays[count : 2 * count]]
        self._expected = [np.array(array) for array in _changes(self._before, arrays[count:])]
        self._noise = [[] for _ in self._expected]
        return True

    def _keep_noise(self, *arrays: np.ndarray) -> bool:
        """Keep a run on one device with other last places, given as the first one."""
        count = len(self._variables)
        changes = _changes(arrays[:count], arrays[count:])
        for noise, expected, other in zip(self._noise, self._expected, changes, strict=True):
            noise.append(moved(expected, other))
        return True

    def _compare(self, *arrays: np.ndarray) -> bool:
        """Compare a run on all devices: variables after it, and results."""
        actual = _changes(self._before, arrays)
        count = len(self._before)
        by: list[float] = []
        rounding: list[float] = []
        differences: list[TensorDifference] = []
        for number, (expected, other) in enumerate(zip(self._expected, actual, strict=True)):
            is_change = number < count
            largest = gap(expected, other)
            noise = max((item.largest for item in self._noise[number]), default=0.0)
            own = max(magnitude(expected) or magnitude(other), _TINY)
            if is_beyond(
                moved(
                    expected,
                    other,
                    without_few=is_change and self._variables[number].trainable,
                ),
                self._noise[number],
                expected,
                held=magnitude(self._before[number]) if is_change else 0.0,
                epsilon=self._epsilon,
            ):
                name = f"result {number - count}"
                if is_change:
                    name = f"the change of {self._variables[number].name.split(':')[0]}"
                differences.append(
                    TensorDifference(
                        name=name,
                        by=_relative(largest, own, expected),
                        rounding=_relative(noise, own, expected),
                    )
                )
            scale = max(self._after[number] if is_change else own, _TINY)
            if np.isfinite(noise):
                scale = max(scale, noise)
            by.append(_relative(largest, scale, expected))
            rounding.append(_relative(noise, scale, expected))
        self._before, self._expected, self._noise = [], [], []
        verification = Verification(
            step=self._step,
            results=max(by[count:], default=0.0),
            variables=max(by[:count], default=0.0),
            rounding_of_results=max(rounding[count:], default=0.0),
            rounding_of_variables=max(rounding[:count], default=0.0),
            differences=tuple(differences),
        )
        print(f"evener: {verification}", file=sys.stderr)
        self._when_compared(verification)
        if differences:
            worst = max(differences, key=lambda difference: difference.by)
            others = len(differences) - 1
            and_more = f", and {others} more" if others else ""
            warn(
                "ENG-080",
                f"The first run of {self._step} differs from the same run on one device: "
                f"{worst.name}, by {worst.by:.1e} of its largest number{and_more}.",
                why="Rounding does not explain it. One device computed the same run with other "
                f"last places of all numbers {NUM_DISTURBED} times, which changed {worst.name} by "
                f"at most {worst.rounding:.1e}. BatchNormalization differs where "
                'batch_norm="per_device" was chosen, which is not exact.',
                fix="Run the program on one device. Unless per_device was chosen, please report it "
                "as a fault of evener, with strategy.report() or step.report().",
                stacklevel=1,
            )
        return True


def _on_host(function: Callable[..., bool], tensors: Sequence[Any]) -> Any:
    with tf.device(HOST):
        return tf.numpy_function(function, tensors, tf.bool, stateful=True)


def _numbers(tensors: Sequence[Any]) -> list[Any]:
    return [tensor for tensor in tensors if tensor.dtype not in (tf.resource, tf.variant)]


def _relative(largest: float, scale: float, expected: np.ndarray) -> float:
    return largest / scale if is_inexact(expected) or not np.isfinite(largest) else largest


def _changes(before: Arrays, arrays: Arrays) -> list[np.ndarray]:
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
