"""Functions that stand in for those of TensorFlow and Keras."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf


def instead_of(
    original: Callable[..., Any],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator for what is put in the place of a function.

    It gets its name and its signature, which Keras reads of every ``__init__`` to write
    configurations, and AutoGraph leaves it as it is: rewritten, it would be read wrong.

    Args:
        original: The function whose place it takes.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        wrapped = functools.wraps(original)(function)
        replacement: Any = tf.autograph.experimental.do_not_convert(wrapped)
        replacement.__signature__ = inspect.signature(original)
        return replacement

    return decorate
