"""Puts gradients on the devices of their forward operations, for every tape and every thread.

Nothing changes for operations that nobody asked a device for.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from evener import _tf_private
from evener.locality import backward, later, record

_lock = threading.Lock()
_KNOWS = "_evener_knows_devices"


def install() -> None:
    """Let gradients run where their forward operations ran. Safe to call again."""
    with _lock:
        if getattr(tf.GradientTape, _KNOWS, False):
            return
        setattr(tf.GradientTape, _KNOWS, True)
        _tf_private.replace_recording(
            record_gradient=_around(record.record_gradient),
            record_operation=_around(record.record_operation),
            execute_fast=_around(record.execute_fast),
            begin_tape=_around(_begin),
        )
        _tf_private.replace_backward(
            gradient_function=_around(backward.gradient_function),
            tape_gradient=_around(backward.tape_gradient),
            symbolic=_around(backward.symbolic_gradient),
            zeros_like=_around(backward.zeros_like),
        )
        _tf_private.replace_tape_arithmetic(
            aggregate=_around(later.aggregate),
            fill=_around(later.filled),
            num_elements=_around(later.num_elements),
        )


def records_devices(tape: tf.GradientTape) -> bool:
    """Return whether a tape was begun after `install`, so that it knows all devices."""
    return getattr(tape, "_evener_records_devices", False)


def _begin(original: Callable[..., Any], tape: Any) -> Any:
    tape._evener_records_devices = True
    return original(tape)


def _around(inside: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            return inside(original, *args, **kwargs)

        return call

    return wrap
