"""Lines about the epochs of a fit, which stay above the live view."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from evener.report.progress import FollowedFit


@pytest.mark.parametrize(("verbose", "num_lines"), [(0, 2), (1, 2), (2, 0)])
def test_a_line_for_each_epoch_that_keras_does_not_write(verbose: int, num_lines: int) -> None:
    lines: list[str] = []
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x, y = np.ones((8, 3), np.float32), np.ones((8, 1), np.float32)
    progress = FollowedFit(lines.append, [])
    model.fit(x, y, batch_size=4, epochs=2, verbose=verbose, callbacks=[progress])
    assert len(lines) == num_lines
    assert all(line.startswith(f"epoch {k + 1}/2  ") for k, line in enumerate(lines))
    assert (progress.epoch, progress.step, progress.num_steps) == (1, 2, 2)
    assert "loss" in progress.losses
