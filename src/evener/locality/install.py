"""Puts gradients on the devices of their forward operations, for every tape and every thread.

Nothing changes for operations that nobody asked a device for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from evener import _tf_private
from evener.locality import backward, later, record
from evener.locality.around import around

_lock = threading.Lock()
_KNOWS = "_evener_knows_devices"


def install() -> None:
    """Let gradients run where their forward operations ran. Safe to call again."""
    with _lock:
        if getattr(tf.GradientTape, _KNOWS, False):
            return
        setattr(tf.GradientTape, _KNOWS, True)
        _tf_private.replace_recording(
            record_gradient=around(record.record_gradient),
            record_operation=around(record.record_operation),
            execute_fast=around(record.execute_fast),
            begin_tape=around(_begin),
        )
        _tf_private.replace_backward(
            gradient_function=around(backward.gradient_function),
            tape_gradient=around(backward.tape_gradient),
            symbolic=around(backward.symbolic_gradient),
            zeros_like=around(backward.zeros_like),
        )
        _tf_private.replace_tape_arithmetic(
            aggregate=around(later.aggregate),
            fill=around(later.filled),
            num_elements=around(later.num_elements),
        )


def records_devices(tape: tf.GradientTape) -> bool:
    """Return whether a tape was begun after `install`, so that it knows all devices."""
    return getattr(tape, "_evener_records_devices", False)


def _begin(original: Callable[..., Any], tape: Any) -> Any:
    tape._evener_records_devices = True
    return original(tape)
