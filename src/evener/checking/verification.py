"""First run of a step: results of one device, and their differences from all devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evener.checking.differences import gap, is_inexact, magnitude
from evener.checking.rounding import Difference, Moved, is_beyond, moved

_TINY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Differences of a partitioned step and the same step on one device.

    Attributes:
        step: Name of the step.
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
    """Results of the first run of a step on one device.

    Args:
        step: Name of the step.
        variables: Names of the variables, and whether they are trained.
        epsilon: Rounding of the least precise dtype that the step computes in.
        arrays: Variables before the step, variables after it, and results.
    """

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
        """Return the differences of a run on all devices.

        Args:
            arrays: Variables after the step, and results.
        """
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
