"""Keras's `fit` on several workers of unlike devices, against one device."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from workers.fits import FITS
from workers.test_exactness import run

PROGRAM = Path(__file__).with_name("fits.py")
TOLERANCES = {"half_precision": 2e-2}
# Muon multiplies matrices in its updates. On workers with unlike numbers of devices, TensorFlow
# optimizes other graphs around them, and the last bits of the weights may be others.
ROUNDED = {"muon"}


def check(names: list[str], shares: list[float], per_worker: list[int], folder: Path) -> None:
    """Compare each fit on workers with one device, and the workers with each other, to the bit."""
    for name, (expected, first, *others) in zip(
        names, run(names, shares, per_worker, folder, PROGRAM), strict=True
    ):
        assert len(expected) == len(first), name
        tolerance = TOLERANCES.get(name, 2e-5)
        for one_device, worker in zip(expected, first, strict=True):
            scale = max(1.0, float(np.abs(one_device).max(initial=0.0)))
            np.testing.assert_allclose(
                worker, one_device, rtol=0, atol=tolerance * scale, err_msg=name
            )
        for other in others:
            for mine, theirs in zip(first, other, strict=True):
                if name in ROUNDED:
                    np.testing.assert_allclose(theirs, mine, rtol=0, atol=1e-6, err_msg=name)
                else:
                    assert mine.tobytes() == theirs.tobytes(), name


def test_some_fits(tmp_path: Path) -> None:
    check(["images_in_a_pipeline", "words"], [5, 3, 8], [1, 2], tmp_path)


@pytest.mark.long
def test_all_fits(tmp_path: Path) -> None:
    """A worker without samples in small batches, and one with two devices."""
    check(sorted(FITS), [5, 3, 0.3], [2, 1], tmp_path)
