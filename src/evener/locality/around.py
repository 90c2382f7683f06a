"""Putting a function of ours around one of TensorFlow's or Keras's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def around(inside: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return what wraps a function: ``inside`` is given the function, and what it is called with.

    Example:
        >>> double = around(lambda original, x: original(x) * 2)
        >>> double(abs)(-3)
        6
    """

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            return inside(original, *args, **kwargs)

        return call

    return wrap
