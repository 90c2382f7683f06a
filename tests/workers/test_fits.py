"""Keras's `fit` on several workers of unlike devices, against one device."""

from __future__ import annotations

from pathlib import Path

import pytest

from workers.fits import FITS
from workers.test_exactness import hold, run

PROGRAM = Path(__file__).with_name("fits.py")
TOLERANCES = {"half_precision": 2e-2}


def check(names: list[str], shares: list[float], per_worker: list[int], folder: Path) -> None:
    """Compare each fit on workers with one device, and the workers with each other, to the bit."""
    for name, (expected, first, *others) in zip(
        names, run(names, shares, per_worker, folder, PROGRAM), strict=True
    ):
        hold(name, expected, first, TOLERANCES.get(name, 2e-5))
        for other in others:
            for mine, theirs in zip(first, other, strict=True):
                assert mine.tobytes() == theirs.tobytes(), name


def test_some_fits(tmp_path: Path) -> None:
    check(["images_in_a_pipeline", "words"], [5, 3, 8], [1, 2], tmp_path)


@pytest.mark.long
def test_all_fits(tmp_path: Path) -> None:
    """A worker without samples in small batches, and one with two devices."""
    check(sorted(FITS), [5, 3, 0.3], [2, 1], tmp_path)
