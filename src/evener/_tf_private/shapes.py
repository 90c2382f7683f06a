"""Reads of dimensions that are unknown while a program is traced."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

import tensorflow as tf

from evener.own_code import is_own, is_rewritten

_CALLS_OF_REWRITTEN = "tensorflow/python/autograph/impl/api.py"
_METHODS = ("__getitem__", "__iter__", "as_list", "num_elements")
_OF_KERAS = frozenset({("elastic_transform", "keras/src/backend/tensorflow/image.py")})
"""Functions of Keras, with their files, that compute something else for an unknown batch size.

Why: other functions of libraries that read None give what they give for a number, so they do not
count. This one distorts all images by the numbers that it draws for one.
If it changes: steps with such a layer, called with tensors, differ from one device.
"""
_lock = threading.Lock()
_here = threading.local()
_watched = 0
_originals: dict[str, Any] = {}


@dataclass(slots=True)
class AskedSizes:
    """Whether an unknown dimension was read.

    Attributes:
        is_asked: Whether user code has read an unknown dimension.
    """

    is_asked: bool = False


@contextlib.contextmanager
def noticing_unknown_sizes() -> Iterator[AskedSizes]:
    """Detect that user code of this thread gets None for a dimension.

    Why: a step that is traced for batches of any size gets None from ``x.shape[0]``, but a number
    if it is traced for a fixed size. It may then compute something else without an error. There is
    no public hook.
    If it changes: such steps silently compute with None.
    """
    global _watched
    found = AskedSizes()
    before, _here.found = getattr(_here, "found", None), found
    with _lock:
        _watched += 1
        if _watched == 1:
            for name in _METHODS:
                _originals[name] = getattr(tf.TensorShape, name)
                setattr(tf.TensorShape, name, _noticing(_originals[name]))
    try:
        yield found
    finally:
        _here.found = before
        with _lock:
            _watched -= 1
            if _watched == 0:
                for name, original in _originals.items():
                    setattr(tf.TensorShape, name, original)


def _noticing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(shape: tf.TensorShape, *args: Any) -> Any:
        found = getattr(_here, "found", None)
        if found is not None and not found.is_asked and not shape.is_fully_defined():
            found.is_asked = _counts(sys._getframe(1)) and _is_unknown(original(shape, *args))
        return original(shape, *args)

    return method


def _counts(frame: FrameType | None) -> bool:
    """Return whether a person's code asks, which AutoGraph may have rewritten, or the like.

    Code without a file is a person's too: of ``python -c``, of the prompt, of `exec`.
    """
    while frame is not None and frame.f_code.co_filename.endswith(_CALLS_OF_REWRITTEN):
        frame = frame.f_back
    name, file = ("", "") if frame is None else (frame.f_code.co_name, frame.f_code.co_filename)
    if any(name == known and file.endswith(path) for known, path in _OF_KERAS):
        return True
    return is_own(file) or is_rewritten(file) or file.startswith("<")


def _is_unknown(value: Any) -> bool:
    if isinstance(value, tf.TensorShape):
        return False  # a part of a shape: what is taken of it is noticed then
    return value is None or (not isinstance(value, int) and None in list(value))
