"""Replacement functions for those of TensorFlow and Keras."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf


def instead_of(
    original: Callable[..., Any],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator for the replacement of a function.

    The replacement gets the name and the signature of the original: Keras writes configurations
    from the signature of ``__init__``. AutoGraph does not convert it.

    Args:
        original: The function to replace.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        wrapped = functools.wraps(original)(function)
        replacement: Any = tf.autograph.experimental.do_not_convert(wrapped)
        replacement.__signature__ = inspect.signature(original)
        return replacement

    return decorate
