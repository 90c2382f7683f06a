from __future__ import annotations

import pytest

from evener.devices.reasons import match_gpus, shown_by_cuda
from unit.devices.machines import EIGHT, ONE_LOST, SMALL, TWO_EQUAL, UNEQUAL, seen


def indices(visible: str | None) -> list[int]:
    return [gpu.index for gpu in shown_by_cuda(EIGHT.gpus, visible)]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, list(range(8))),
        ("", []),
        ("-1", []),
        ("2", [2]),
        ("3,1", [3, 1]),
        ("0,-1,2", [0]),
        ("0, 9,2", [0]),
        ("GPU-4000,GPU-1", [4, 1]),
        ("MIG-GPU-4000/1/0", []),
        ("NoDevFiles", []),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(
    visible: str | None, expected: list[int]
) -> None:
    assert indices(visible) == expected


def matched(*args: object) -> dict[int, int]:
    return {index: gpu.index for index, gpu in match_gpus(*args).items()}  # pyright: ignore


def test_equal_gpus_match_in_order() -> None:
    assert matched(seen(*TWO_EQUAL.gpus), TWO_EQUAL.gpus, None) == {0: 0, 1: 1}


def test_hidden_gpus_shift_the_numbers() -> None:
    shown = (EIGHT.gpus[5], EIGHT.gpus[2])
    assert matched(seen(*shown), EIGHT.gpus, "5,2") == {0: 5, 1: 2}


def test_unequal_gpus_match_by_product_whatever_cuda_puts_first() -> None:
    large, small = UNEQUAL.gpus
    assert matched(seen(small, large), UNEQUAL.gpus, None) == {0: 1, 1: 0}
    # CUDA's 0 is its fastest, which need not be the first on the bus.
    assert matched(seen(SMALL), UNEQUAL.gpus, "0") == {0: 1}


def test_lost_gpu_matches_nothing() -> None:
    assert matched(seen(ONE_LOST.gpus[0]), ONE_LOST.gpus, None) == {0: 0}


def test_gpu_that_the_driver_does_not_list_is_left_alone() -> None:
    assert matched(seen(SMALL), TWO_EQUAL.gpus, None) == {}
