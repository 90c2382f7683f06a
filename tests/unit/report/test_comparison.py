from __future__ import annotations

import numpy as np
import pytest

from evener.report.comparison import compare, compare_logs, compare_weights

INFINITE = float("inf")


def test_weights_are_compared_at_the_scale_of_their_array() -> None:
    a = [np.array([1.0, 100.0]), np.array([[0.5]])]
    b = [np.array([1.1, 100.0]), np.array([[0.5001]])]
    worst = compare_weights(a, b, names=["kernel", "bias"])
    assert worst.value == pytest.approx(1e-3)
    assert (worst.where, worst.num_compared) == ("kernel", 3)
    assert compare_weights(a, b).where == "array 0"


def test_logs_are_compared_epoch_by_epoch() -> None:
    worst = compare_logs("loss", [1.0, 0.01], [1.0001, 0.0101])
    assert worst.value == pytest.approx(1e-2)
    assert (worst.what, worst.where, worst.num_compared) == ("loss", "epoch 2", 2)


def test_equal_is_no_difference_anywhere() -> None:
    same = {"loss": [0.0, float("nan")]}
    found = compare(weights=([np.zeros(3)], [np.zeros(3)]), histories=(same, same))
    assert found.largest == 0 and found.within(0)
    assert {difference.where for difference in found.differences} == {"-"}


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([np.zeros(2)], [np.zeros(3)]),
        ([np.zeros(1)], [np.zeros((1, 1))]),
        ([np.zeros(2)], []),
        ([np.array([np.nan])], [np.array([1.0])]),
        ([np.array([1.0])], [np.array([np.inf])]),
        ([np.zeros(2)], [np.array([0.0, 1e-9])]),
    ],
)
def test_what_cannot_be_compared_is_infinitely_far(a: list, b: list) -> None:
    assert compare_weights(a, b).value == INFINITE


@pytest.mark.parametrize("other", [{}, {"loss": [1.0]}, {"loss": [1.0, 2.0], "mae": [1.0]}])
def test_a_log_that_one_side_lacks_is_infinitely_far(other: dict) -> None:
    found = compare(weights=([], []), histories=({"loss": [1.0, 2.0]}, other))
    assert found.largest == INFINITE and not found.within(1e9)


def test_nothing_to_compare_is_no_difference_in_each_part() -> None:
    assert compare_weights([], []).value == 0
    assert compare_logs("loss", [], []).value == 0


def test_the_table_names_every_log_and_its_difference() -> None:
    text = str(
        compare(
            weights=([np.array([1.0])], [np.array([1.0 + 2**-20])]),
            histories=({"loss": [0.5]}, {"loss": [0.5]}),
            names=["dense/kernel"],
        )
    )
    rows = [line.split() for line in text.splitlines()]
    assert ["weights", "9.5e-07", "dense/kernel", "1"] in rows
    assert ["loss", "0.0e+00", "-", "1"] in rows


def test_how_the_devices_worked_is_not_compared() -> None:
    logs = {"loss": [0.5]}
    worked = {**logs, "gpu:0/share": [0.6], "gpu:0/busy_seconds": [1.0]}
    found = compare(weights=([], []), histories=(logs, worked))
    assert [difference.what for difference in found.differences] == ["weights", "loss"]
