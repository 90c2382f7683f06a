"""Keras's `fit` on several workers of unlike devices, against one device."""

from __future__ import annotations

from pathlib import Path

import pytest

from workers.fits import FITS
from workers.test_exactness import hold, run

PROGRAM = Path(__file__).with_name("fits.py")
TOLERANCES = {"half_precision": 2e-2}


@pytest.mark.long
@pytest.mark.parametrize(("exchange", "first"), [("mesh", 0), ("tensorflow", 1)])
def test_fits(exchange: str, first: int, tmp_path: Path) -> None:
    """A worker without samples in small batches, and one with two devices."""
    names = sorted(FITS)[first::2]
    runs = run(names, [5, 3, 0.3], [2, 1], tmp_path, PROGRAM, exchange)
    for name, (expected, first, *others) in zip(names, runs, strict=True):
        hold(name, expected, first, TOLERANCES.get(name, 2e-5))
        for other in others:
            for mine, theirs in zip(first, other, strict=True):
                assert mine.tobytes() == theirs.tobytes(), name
