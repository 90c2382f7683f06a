"""Installs the wrappers by which gradients run on the devices of their forward operations.

They hold for every tape and every thread. Operations without a requested device are not changed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from evener import _tf_private
from evener.pinning.colocation import backward, deferred, tape_recording
from evener.pinning.colocation.wrapping import wrap_with

_lock = threading.Lock()
_INSTALLED = "_evener_colocation_installed"
_RECORDS_DEVICES = "_evener_records_devices"


def install() -> None:
    """Let gradients run on the devices of their forward operations. Safe to call again."""
    with _lock:
        if getattr(tf.GradientTape, _INSTALLED, False):
            return
        setattr(tf.GradientTape, _INSTALLED, True)
        _tf_private.tapes.replace_recording(
            record_gradient=wrap_with(tape_recording.record_gradient),
            record_operation=wrap_with(tape_recording.record_operation),
            execute_fast=wrap_with(tape_recording.execute_fast),
            begin_tape=wrap_with(_begin_tape),
        )
        _tf_private.tapes.replace_backward(
            gradient_function=wrap_with(backward.gradient_function),
            tape_gradient=wrap_with(backward.tape_gradient),
            symbolic=wrap_with(backward.symbolic_gradient),
            zeros_like=wrap_with(backward.zeros_like),
        )
        _tf_private.tapes.replace_tape_arithmetic(
            aggregate=wrap_with(deferred.aggregate),
            fill=wrap_with(deferred.fill),
            num_elements=wrap_with(deferred.num_elements),
        )


def records_devices(tape: tf.GradientTape) -> bool:
    """Return whether a tape was started after `install`, and so records devices."""
    return getattr(tape, _RECORDS_DEVICES, False)


def _begin_tape(original: Callable[..., Any], tape: Any) -> Any:
    setattr(tape, _RECORDS_DEVICES, True)
    return original(tape)
