"""Differences of a step from one device, and whether the rounding of the step explains them.

::

    one device     as it is ──────────────► expected ─┐
    one device     last places changed ───► noise     ├─► statistics of each tensor
    all devices    as it is ──────────────► actual   ─┘   actual beyond noise: a difference

Rounding has no direction, a fault has: three statistics of the difference are compared. The largest
number finds a wrong row, the root of the mean square finds many small ones, and the part along the
expected tensor finds a wrong factor that is smaller than the rounding of each number.

`verify=True` and the spot check judge by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from evener.devices.names import kind_of
from evener.graph.nodes import Graph
from evener.graph.trace import TracedStep

Arrays: TypeAlias = Sequence[np.ndarray]
Compute: TypeAlias = Callable[[Arrays], tuple[Arrays, Arrays]]
"""Inputs -> expected tensors, actual tensors."""

ROUNDINGS = {
    tf.float64: 2.0**-53,
    tf.complex128: 2.0**-53,
    tf.float32: 2.0**-24,
    tf.complex64: 2.0**-24,
    tf.float16: 2.0**-11,
    tf.bfloat16: 2.0**-8,
}
"""Half the distance of two numbers near 1."""
_OF_EIGHT_BITS = 2.0**-3
_TENSOR_FLOAT_32 = 2.0**-11
_HALVES = (tf.bfloat16, tf.float16)

NUM_DISTURBED = 6
"""Runs on one device with other last places."""
_LAST_PLACES = 64.0
"""Largest change of an input, in roundings of its dtype."""
_MARGIN = 8.0
_MARGIN_OF_HALVES = 4.0
"""Differences this many times the largest noise are more than rounding."""
_IS_HALF = 2.0**-12
_ALONE = 2
"""Numbers of a trained variable that may differ alone: the first update of Adam has the size of the
learning rate wherever a gradient is 0 but for rounding, with any sign."""
_SMALL = 8
"""Largest number of numbers of a tensor in which each counts."""
_FLOOR = 32.0
_FLOOR_OF_HALVES = 1.0
"""Least difference, in units of the rounding of the tensor's own dtype."""
SMALLEST = 1e-3
"""Least difference that a spot check reports, relative to the largest number of a tensor."""
_ROUNDINGS_OF_STEP = 30
"""Least difference that it reports, in units of the least precise dtype of the step."""
_FLOOR_OF_KIND = 1e-6
"""Least difference that it reports, as a part of the largest number of all tensors of a kind: sums
that cancel round by that much."""


def as_array(tensor: Any) -> np.ndarray:
    """Return a tensor, or an array, as an array; NumPy itself refuses one number of bfloat16."""
    return np.asarray(tensor.numpy() if hasattr(tensor, "numpy") else tensor)


def is_inexact(array: np.ndarray) -> bool:
    return array.dtype.kind in "fc" or array.dtype.name.startswith(("bfloat", "float"))


def magnitude(array: np.ndarray) -> float:
    """Return the largest finite absolute number of an array; 0 if its numbers are exact."""
    if not is_inexact(array) or not array.size:
        return 0.0
    largest = float(np.abs(array).max())
    if not np.isfinite(largest):
        finite = array[np.isfinite(array)]
        largest = float(np.abs(finite).max()) if finite.size else 0.0
    return largest


def gap(expected: np.ndarray, actual: np.ndarray) -> float:
    """Return the largest absolute difference; infinity for other shapes, exact numbers or nans."""
    if expected.shape != actual.shape:
        return float("inf")
    if not is_inexact(expected):
        return 0.0 if np.array_equal(expected, actual) else float("inf")
    if not expected.size:
        return 0.0
    with np.errstate(all="ignore"):
        largest = float(np.abs(expected - actual).max())
        if np.isfinite(largest):
            return largest
        finite = np.isfinite(expected) & np.isfinite(actual)
        if not np.array_equal(expected[~finite], actual[~finite], equal_nan=True):
            return float("inf")
        return float(np.abs(expected - actual)[finite].max()) if finite.any() else 0.0


def relative_difference(expected: np.ndarray, actual: np.ndarray, least: float) -> float:
    """Return the largest difference of two arrays, relative to the largest number of the first."""
    if expected.shape == actual.shape and not is_inexact(expected):
        return float(not np.array_equal(expected, actual))
    return gap(expected, actual) / max(magnitude(expected), least, float(np.finfo(np.float32).tiny))


def rounding_of(traced: TracedStep, devices: Iterable[str] = ()) -> float:
    """Return the rounding of the least precise arithmetic of a step."""
    dtypes = set(_dtypes(traced.graph))
    halves = [ROUNDINGS[dtype] for dtype in _HALVES if dtype in dtypes]
    if any(kind_of(name).has_tensor_float_32 for name in devices):
        if tf.config.experimental.tensor_float_32_execution_enabled():
            halves.append(_TENSOR_FLOAT_32)
    return max(halves, default=ROUNDINGS[tf.float32])


def _dtypes(graph: Graph) -> Iterator[tf.DType]:
    for node in graph:
        yield from (tensor.dtype for tensor in node.outputs)
        for body in node.bodies.values():
            yield from _dtypes(body)


def disturbed(
    tensors: Sequence[Any],
    variables: Sequence[tf.Variable] | None,
    seed: Any,
    epsilon: float,
) -> list[Any]:
    """Return tensors whose floating-point numbers have other last places.

    So any other order of summation would give them.
    """
    changed = []
    for number, tensor in enumerate(tensors):
        if not (tensor.dtype.is_floating or tensor.dtype.is_complex):
            changed.append(tensor)
            continue
        own = ROUNDINGS.get(tensor.dtype, _OF_EIGHT_BITS)
        computed = variables is None or variables[number].trainable
        by = max(own, epsilon) if computed else own
        by *= 1.0 if by > _IS_HALF else _LAST_PLACES
        wide = tensor.dtype.real_dtype
        draw = tf.float32 if wide in _HALVES or wide.size < 4 else wide
        factor = 1 + by * tf.random.stateless_uniform(
            tf.shape(tensor), tf.stack([seed, number]), -1.0, 1.0, draw
        )
        if tensor.dtype.is_complex:
            changed.append(tensor * tf.cast(factor, tensor.dtype))
        else:
            changed.append(tf.cast(tf.cast(tensor, draw) * factor, tensor.dtype))
    return changed


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    largest: float  # Infinity for other shapes, exact numbers or nans
    typical: float = 0.0  # Root of the mean square of the difference
    along: float = 0.0  # Part of the difference along the expected tensor, of its length


def moved(expected: np.ndarray, actual: np.ndarray, *, without_few: bool = False) -> Moved:
    largest = gap(expected, actual)
    if not np.isfinite(largest) or not largest:
        return Moved(largest=largest)
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    before, after = expected.astype(wide).ravel(), actual.astype(wide).ravel()
    is_finite = np.isfinite(before) & np.isfinite(after)
    before, difference = before[is_finite], (after - before)[is_finite]
    if without_few and difference.size > _SMALL:
        kept = np.argsort(np.abs(difference))[:-_ALONE]
        before, difference = before[kept], difference[kept]
        largest = float(np.abs(difference[-1]))
        if not largest:
            return Moved(largest=0.0)
    # Of the largest number, so that squares neither overflow nor vanish.
    scale = float(np.abs(before).max()) or 1.0
    length = float(np.linalg.norm(before / scale))
    along = abs(np.vdot(before / scale, difference / scale)) / length if length else 0.0
    size = np.sqrt(difference.size)
    typical = largest * float(np.linalg.norm(difference / largest)) / size
    return Moved(largest=largest, typical=typical, along=float(along) * scale / size)


def is_beyond(
    difference: Moved,
    noise: Sequence[Moved],
    expected: np.ndarray,
    *,
    held: float = 0.0,
    epsilon: float = ROUNDINGS[tf.float32],
) -> bool:
    if not is_inexact(expected):
        return difference.largest > max((item.largest for item in noise), default=0.0)
    rounding = ROUNDINGS.get(tf.as_dtype(expected.dtype), _OF_EIGHT_BITS)
    least = rounding * (_FLOOR if rounding < _IS_HALF else _FLOOR_OF_HALVES)
    floor = least * max(magnitude(expected), held)
    margin = _MARGIN if epsilon < _IS_HALF else _MARGIN_OF_HALVES
    limits = (
        (difference.largest, [item.largest for item in noise], floor),
        (difference.typical, [item.typical for item in noise], floor),
        (difference.along, [item.along for item in noise], floor / np.sqrt(max(expected.size, 1))),
    )
    return any(value > margin * max(values, default=0.0) + low for value, values, low in limits)


def find_differences(
    compute: Compute, inputs: Arrays, epsilon: float, kinds: Sequence[Any]
) -> dict[int, float]:
    """Return the numbers of the tensors of a spot check that differ, with the relative difference.

    A difference counts if it stays with other last places of the inputs: rounding that crosses a
    kink does not. And if it is beyond what they change on each side: numbers that are rounding
    themselves, such as the gradient of a bias before a normalization, do not differ.
    """
    tolerance = max(SMALLEST, _ROUNDINGS_OF_STEP * epsilon)
    expected, actual = compute(inputs)
    differing = _differing(expected, actual, tolerance, kinds)
    noise: dict[int, list[Moved]] = {number: [] for number in differing}
    for seed in range(NUM_DISTURBED):
        if not differing:
            break
        changed = [
            as_array(
                disturbed([tf.convert_to_tensor(array)], None, seed * len(inputs) + k, epsilon)[0]
            )
            if is_inexact(array)
            else array
            for k, array in enumerate(inputs)
        ]
        others = compute(changed)
        remaining = _differing(*others, tolerance, kinds)
        differing = {number: by for number, by in differing.items() if number in remaining}
        for number in differing:
            noise[number].append(moved(expected[number], others[0][number]))
            noise[number].append(moved(actual[number], others[1][number]))
    return {
        number: by
        for number, by in differing.items()
        if is_beyond(
            moved(expected[number], actual[number]),
            noise[number],
            expected[number],
            epsilon=epsilon,
        )
    }


def _differing(
    expected: Arrays, actual: Arrays, tolerance: float, kinds: Sequence[Any]
) -> dict[int, float]:
    scales = [max(magnitude(a), magnitude(b)) for a, b in zip(expected, actual, strict=True)]
    largest: dict[Any, float] = {}
    for scale, kind in zip(scales, kinds, strict=True):
        largest[kind] = max(largest.get(kind, 0.0), scale)
    differing: dict[int, float] = {}
    for number, (scale, kind) in enumerate(zip(scales, kinds, strict=True)):
        by = gap(expected[number], actual[number])
        if by > max(tolerance * scale, _FLOOR_OF_KIND * largest[kind]):
            differing[number] = by / scale if scale else by
    return differing
