"""Conversion by AutoGraph."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from evener._tf_private.functions import autographed, leave_to_autograph


def test_a_function_is_converted_where_the_code_around_it_is() -> None:
    def positive(x: tf.Tensor) -> tf.Tensor:
        if x > 0:
            return x
        return -x

    @tf.function
    def around(x: tf.Tensor) -> tf.Tensor:
        return autographed(positive)(x)

    assert float(around(tf.constant(-2.0))) == 2.0


def test_autograph_converts_what_a_function_left_to_it_calls() -> None:
    def choose(x: tf.Tensor) -> tf.Tensor:
        if x > 0:
            return x
        return -x

    def watched(fn: Callable[..., Any], x: tf.Tensor) -> Any:
        # Rewritten, it would be a copy without these lines.
        lines.append(sys._getframe().f_code.co_filename)
        return tf.__internal__.autograph.tf_convert(
            fn, tf.__internal__.autograph.control_status_ctx(), convert_by_default=False
        )(x)

    lines: list[str] = []
    leave_to_autograph(watched)

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        return watched(choose, x)

    assert int(step(tf.constant(-3))) == 3
    assert lines == [__file__]
