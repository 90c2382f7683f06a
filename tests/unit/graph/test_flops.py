"""Floating-point operations, against the formulas of textbooks."""

from __future__ import annotations

import pytest
from keras import layers

from unit.profiler.models import by_name, costs_of, dense, sequence


def test_a_dense_layer() -> None:
    costs = costs_of(sequence((3,), dense(5, "a"), dense(1, "b")), (1,)).layers[0]
    # Products and sums, and one addition of the bias for each result.
    assert costs.forward_flops == 2 * 3 * 5 + 5


@pytest.mark.parametrize(("strides", "padding", "places"), [(1, "valid", 16), (2, "same", 9)])
def test_a_convolution(strides: int, padding: str, places: int) -> None:
    conv = layers.Conv2D(4, 3, strides=strides, padding=padding, use_bias=False, name="conv")
    costs = by_name(costs_of(sequence((6, 6, 2), conv, layers.Flatten(), dense(1, "b")), (1,)))
    assert costs["conv"].forward_flops == 2 * places * 4 * (3 * 3 * 2)


def test_a_depthwise_convolution() -> None:
    conv = layers.DepthwiseConv2D(3, use_bias=False, name="conv")
    costs = by_name(costs_of(sequence((6, 6, 5), conv, layers.Flatten(), dense(1, "b")), (1,)))
    assert costs["conv"].forward_flops == 2 * 16 * 5 * 9


def test_a_product_for_each_place() -> None:
    costs = costs_of(sequence((7, 3), dense(5, "a"), dense(1, "b")), (7, 1)).layers[0]
    assert costs.forward_flops == 7 * (2 * 3 * 5 + 5)


def test_a_loop_counts_its_iterations() -> None:
    short, long = (
        costs_of(sequence((length, 3), layers.LSTM(16, name="a"), dense(1, "b")), (1,)).layers[0]
        for length in (4, 8)
    )
    products = 2 * 3 * 4 * 16 + 2 * 16 * 4 * 16
    assert 4 * products < short.forward_flops < 4 * 1.3 * products
    assert long.forward_flops == pytest.approx(2 * short.forward_flops, rel=0.1)
