"""Replacement functions for those of TensorFlow and Keras."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from evener._tf_private.functions import leave_to_autograph


def instead_of(
    original: Callable[..., Any],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator for the replacement of a function.

    The replacement gets the name and the signature of the original: Keras writes configurations
    from the signature of ``__init__``. AutoGraph treats it as a function of TensorFlow: it does not
    convert it, and converts the program's functions that it calls as it did.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        wrapped: Any = functools.wraps(original)(function)
        wrapped.__signature__ = inspect.signature(original)
        leave_to_autograph(wrapped)
        return wrapped

    return decorate
