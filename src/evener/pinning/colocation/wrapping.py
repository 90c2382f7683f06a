"""Wraps a function of TensorFlow or Keras."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def wrap_with(wrapper: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that calls ``wrapper`` instead of the decorated function.

    Args:
        wrapper: Called as ``wrapper(original, *args, **kwargs)``.

    Example:
        >>> double = wrap_with(lambda original, x: original(x) * 2)
        >>> double(abs)(-3)
        6
    """

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            return wrapper(original, *args, **kwargs)

        return call

    return wrap
