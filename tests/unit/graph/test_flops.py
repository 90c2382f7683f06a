"""Floating-point operations, against the formulas of textbooks."""

from __future__ import annotations

from typing import Any

import pytest
from keras import layers

from unit.profiler.models import by_name, costs_of, dense, sequence


@pytest.mark.parametrize(("shape", "positions"), [((3,), 1), ((7, 3), 7)])
def test_a_dense_layer(shape: tuple[int, ...], positions: int) -> None:
    costs = costs_of(sequence(shape, dense(5, "a"), dense(1, "b")), (*shape[:-1], 1)).layers[0]
    # Products and sums, and one addition of the bias for each result.
    assert costs.forward_flops == positions * (2 * 3 * 5 + 5)


@pytest.mark.parametrize(
    ("kind", "shape", "settings", "products"),
    [
        (layers.Conv2D, (6, 6, 2), {"filters": 4}, 16 * 4 * (3 * 3 * 2)),
        (layers.Conv2D, (6, 6, 2), {"filters": 4, "strides": 2, "padding": "same"}, 9 * 4 * 18),
        (layers.DepthwiseConv2D, (6, 6, 5), {}, 16 * 5 * 9),
    ],
)
def test_a_convolution(kind: Any, shape: Any, settings: dict[str, Any], products: int) -> None:
    conv = kind(kernel_size=3, use_bias=False, name="conv", **settings)
    costs = by_name(costs_of(sequence(shape, conv, layers.Flatten(), dense(1, "b")), (1,)))
    assert costs["conv"].forward_flops == 2 * products


def test_a_loop_counts_its_iterations() -> None:
    short, long = (
        costs_of(sequence((length, 3), layers.LSTM(16, name="a"), dense(1, "b")), (1,)).layers[0]
        for length in (4, 8)
    )
    products = 2 * 3 * 4 * 16 + 2 * 16 * 4 * 16
    assert 4 * products < short.forward_flops < 4 * 1.3 * products
    assert long.forward_flops == pytest.approx(2 * short.forward_flops, rel=0.1)
