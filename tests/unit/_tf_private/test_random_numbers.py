"""Seeds and determinism."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from evener import _tf_private


def test_seeds_of_eager_operations_are_put_back() -> None:
    tf.random.set_seed(1)
    state = _tf_private.random_numbers.operation_seeds()
    first = tf.random.normal([3]).numpy().tolist()
    _tf_private.random_numbers.set_operation_seeds(state)
    # Each operation draws a seed: the same one again.
    assert _tf_private.random_numbers.operation_seeds() == state
    assert len(first) == 3


@pytest.mark.long
def test_determinism_is_seen(run_python: Callable[..., Any]) -> None:
    code = """
        import tensorflow as tf
        from evener import _tf_private
        before = _tf_private.random_numbers.is_deterministic()
        tf.config.experimental.enable_op_determinism()
        print(before, _tf_private.random_numbers.is_deterministic())
    """
    assert run_python(code).stdout.split() == ["False", "True"]
