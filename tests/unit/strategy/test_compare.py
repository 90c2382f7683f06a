"""Differences of two sides: those that count, and those that are rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from evener.strategy.rounding import find_differences

X = np.random.default_rng(0).normal(size=(5, 7)).astype("float32")
EPSILON = 2.0**-24


def differences(whole: Callable[..., Any], parts: Callable[..., Any]) -> list[float]:
    """Compare functions of an array of float32."""

    def compute(inputs: Any) -> Any:
        return [np.asarray(whole(inputs[0]))], [np.asarray(parts(inputs[0]))]

    found = find_differences(compute, [X], EPSILON, [True])
    return list(found.values())


def test_rounding_is_no_difference() -> None:
    assert differences(lambda x: x.sum(0), lambda x: x[:2].sum(0) + x[2:].sum(0)) == []


@pytest.mark.parametrize(
    "parts",
    [
        lambda x: x[:2].sum(0),
        lambda x: x.sum(0)[::-1],
        lambda x: x.sum(0) * 1.002,
        lambda x: x.sum(0) * np.nan,
        lambda x: x[:, :3].sum(0),
        lambda x: np.zeros(7, "float32"),
    ],
)
def test_what_stays_is_a_difference(parts: Callable[..., Any]) -> None:
    assert differences(lambda x: x.sum(0), parts) != []


def test_the_difference_is_relative_to_the_largest_number() -> None:
    [found] = differences(lambda x: x * 0 + 2, lambda x: x * 0 + 1)
    assert found == pytest.approx(0.5)


def test_whole_numbers_have_to_be_equal() -> None:
    assert differences(lambda x: x.argmax(0), lambda x: x.argmax(0)) == []
    [found] = differences(lambda x: x[:, 0].size, lambda x: x[:, 0].size + 1)
    assert found == float("inf")


def test_nans_at_the_same_places_are_equal() -> None:
    def roots(x: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            return np.sqrt(x)

    assert differences(roots, roots) == []
    assert differences(roots, lambda x: np.sqrt(np.abs(x))) == [float("inf")]


def test_what_rounding_decides_in_one_draw_alone_is_left_out() -> None:
    """Such as a number beside the kink of a ReLU."""

    def parts(x: np.ndarray) -> np.ndarray:
        return x.sum(0) + np.array_equal(x, X)

    assert differences(lambda x: x.sum(0), parts) == []


def noise_of(x: np.ndarray) -> np.ndarray:
    """Return what is 0 but for rounding, and another number for every input."""
    return np.random.default_rng(abs(hash(x.tobytes()))).normal(size=7).astype("float32") * 1e-7


@pytest.mark.parametrize("noisy", ["whole", "parts", "both"])
def test_noise_is_no_difference(noisy: str) -> None:
    """Such as the gradient of a bias before a normalization, on one side or on both."""

    def zero(x: np.ndarray) -> np.ndarray:
        return np.zeros(7)

    whole = zero if noisy == "parts" else noise_of
    parts = zero if noisy == "whole" else lambda x: noise_of(x + 1)
    assert differences(whole, parts) == []


def test_a_floor_is_of_tensors_of_a_kind() -> None:
    """A millionth of the largest gradient counts as rounding; results have no such allowance."""

    def compute(inputs: Any) -> Any:
        small = np.full(3, 1e-6, "float32")
        return [np.full(3, 10.0), small], [np.full(3, 10.0), small * 2]

    assert find_differences(compute, [X], EPSILON, [True, True]) == {}
    assert list(find_differences(compute, [X], EPSILON, [True, False])) == [1]
