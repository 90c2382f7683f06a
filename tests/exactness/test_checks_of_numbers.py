"""`tf.debugging.check_numerics` in parts: every part checks its own rows, read or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import evener

Step = Callable[[Any], Any]


def read(x: Any) -> Any:
    return tf.debugging.check_numerics(tf.sqrt(x), "a bad root") * 2.0


def not_read(x: Any) -> Any:
    tf.debugging.check_numerics(tf.sqrt(x), "a bad root")
    return x * 2.0


def of_the_whole_batch(x: Any) -> Any:
    """Parts hold terms of a sum, which may be finite where the sum is not."""
    return tf.debugging.check_numerics(tf.reduce_sum(tf.sqrt(x) * 1e38), "a bad root")


@pytest.mark.parametrize("step", [read, not_read, of_the_whole_batch])
def test_a_bad_row_of_any_part_fails(step: Step) -> None:
    distributed = evener.distribute(step, devices="cpu:3", shares=[4, 0, 3])
    x = np.full([9, 2], 1e-6, "float32")
    np.testing.assert_allclose(distributed(x), step(x), rtol=1e-6)
    assert not distributed.report().gathered
    for row in (0, 8):
        bad = x.copy()
        bad[row] = -1.0
        with pytest.raises(tf.errors.InvalidArgumentError, match="a bad root"):
            distributed(bad)
    if step is of_the_whole_batch:
        with pytest.raises(tf.errors.InvalidArgumentError, match="Inf"):
            distributed(np.ones_like(x))
