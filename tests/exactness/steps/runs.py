"""Running a step of the corpus, and holding what it gave against one device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from exactness.references import shared
from exactness.steps.case import CASES, BuiltStep

FLOOR = 1e-3
"""Arrays whose largest number is less are compared by absolute difference."""

Run = tuple[list[list[np.ndarray]], list[np.ndarray]]


def train(case: BuiltStep, step: Any) -> Run:
    """Run a step for every size of a case; return what it returned and the state at the end."""
    rng = np.random.default_rng(3)
    sizes = (24, 24, 24) if case.stateful_random else case.sizes
    returned = []
    for size in sizes:
        results = step(*case.batch(rng, size))
        leaves = tf.nest.flatten(results, expand_composites=True)
        returned.append([np.asarray(leaf) for leaf in leaves if leaf is not None])
    return returned, [np.asarray(variable) for variable in case.variables]


def difference(expected: np.ndarray, actual: np.ndarray) -> float:
    """Return the largest difference, relative to the largest number; 1 for other kinds."""
    assert expected.shape == actual.shape
    assert expected.dtype == actual.dtype
    if expected.dtype.kind not in "fc":
        return float(not np.array_equal(expected, actual))
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    wanted, got = expected.astype(wide), actual.astype(wide)
    np.testing.assert_array_equal(np.isfinite(wanted), np.isfinite(got))
    finite = np.isfinite(wanted)
    if not finite.any():
        return 0.0
    scale = max(FLOOR, float(np.abs(wanted[finite]).max()))
    return float(np.abs(wanted - got)[finite].max()) / scale


def one_device(name: str, *, eagerly: bool = False) -> Run:
    """Run a case by plain TensorFlow; it changes something, and its numbers are finite."""
    case = CASES[name]()
    before = [np.array(variable) for variable in case.variables]
    # Traces of three sizes take several times as long as the steps.
    step = functools.partial(on_tensors, case.step) if eagerly else tf.function(case.step)
    run = returned, after = train(case, step)
    arrays = [*after, *(array for results in returned for array in results)]
    assert all(np.isfinite(array).all() for array in arrays if array.dtype.kind == "f")
    assert _differ(before, after) or any(_differ(returned[0], other) for other in returned[1:])
    return run


def on_tensors(step: Callable[..., Any], *arguments: Any) -> Any:
    """Call a step with tensors in the place of arrays, as a traced one is."""

    def as_tensor(leaf: Any) -> Any:
        return tf.constant(leaf) if isinstance(leaf, np.ndarray) else leaf

    return step(*tf.nest.map_structure(as_tensor, arguments))


def as_arrays(results: Any) -> list[np.ndarray]:
    """Return the tensors and numbers of a structure as arrays, in a fixed order."""
    arrays: list[np.ndarray] = []
    for leaf in tf.nest.flatten(results, expand_composites=True):
        if leaf is not None:
            array = np.array(tf.convert_to_tensor(leaf))
            arrays.append(array.astype("S") if array.dtype == object else array)
    return arrays


def differ(first: list[np.ndarray], second: list[np.ndarray], *, same_bits: bool = True) -> bool:
    """Return whether two lists of arrays are unlike, in any bit or by more than rounding."""
    if len(first) != len(second):
        return True
    for a, b in zip(first, second, strict=True):
        if a.dtype != b.dtype or a.shape != b.shape:
            return True
        if same_bits or not np.issubdtype(a.dtype, np.floating):
            if a.tobytes() != b.tobytes():
                return True
        elif not np.allclose(a, b, rtol=1e-5, atol=1e-5):
            return True
    return False


@functools.cache
def reference(name: str) -> Run:
    """Return a run of a case by plain TensorFlow; the processes of a test run share it."""
    return shared(name, lambda: one_device(name))


def _differ(first: list[np.ndarray], second: list[np.ndarray]) -> bool:
    return any(a.shape != b.shape or (a != b).any() for a, b in zip(first, second, strict=True))


def check(case: BuiltStep, expected: Run, actual: Run, *, least_tolerance: float = 0.0) -> None:
    tolerance = max(case.tolerance, least_tolerance)
    for batch, (before, after) in enumerate(zip(expected[0], actual[0], strict=True)):
        for index, (left, right) in enumerate(zip(before, after, strict=True)):
            assert difference(left, right) <= tolerance, f"batch {batch}, result {index}"
    for index, (left, right) in enumerate(zip(expected[1], actual[1], strict=True)):
        assert difference(left, right) <= tolerance, f"variable {index}"
