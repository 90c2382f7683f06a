"""Replacement functions for those of TensorFlow and Keras."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from evener._tf_private.functions import leave_to_autograph
from evener._tf_private.patches import Wrap


def replace_with(replacement: Callable[..., Any]) -> Wrap:
    """Return a wrap whose result calls a function of the original and its arguments.

    The result has the name and the signature of the original: Keras writes configurations from the
    signature of ``__init__``. AutoGraph treats it as a function of TensorFlow: it does not convert
    it, and converts the program's functions that it calls as it did. Its frame is one of this
    folder, which tracebacks of scripts leave out.
    """

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            return replacement(original, *args, **kwargs)

        wrapped: Any = call
        wrapped.__signature__ = inspect.signature(original)
        leave_to_autograph(wrapped)
        return wrapped

    return wrap


def attribute(module: Any, path: str) -> Any:
    return functools.reduce(getattr, filter(None, path.split(".")), module)


def public_targets(
    path: str, apis: Sequence[str] = ("", "compat.v1.", "compat.v2.")
) -> Iterator[str]:
    """Yield the targets of a patch of a name of ``tf``, there and in its versions."""
    folder, _, name = path.rpartition(".")
    for api in apis:
        if hasattr(attribute(tf, f"{api}{folder}"), name):
            yield f"tensorflow:{api}{path}"
