"""Installs the wrappers by which gradients run on the devices of their forward operations.

They hold for every tape and every thread. Operations without a requested device are not changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from evener import _tf_private
from evener.pinning.colocation import backward, deferred, tape_recording
from evener.pinning.colocation.wrapping import wrap_with

_RECORDS_DEVICES = "_evener_records_devices"


def install() -> None:
    """Let gradients run on the devices of their forward operations. Safe to call again."""
    tapes = _tf_private.tapes
    tapes.RECORD_GRADIENT.apply(wrap_with(tape_recording.record_gradient))
    tapes.RECORD_OPERATION.apply(wrap_with(tape_recording.record_operation))
    tapes.EXECUTE_FAST.apply(wrap_with(tape_recording.execute_fast))
    tapes.BEGIN_TAPE.apply(wrap_with(_begin_tape))
    tapes.GRADIENT_FUNCTION.apply(wrap_with(backward.gradient_function))
    tapes.TAPE_GRADIENT.apply(wrap_with(backward.tape_gradient))
    tapes.SYMBOLIC_GRADIENT.apply(wrap_with(backward.symbolic_gradient))
    tapes.ZEROS_LIKE.apply(wrap_with(backward.zeros_like))
    tapes.replace_tape_arithmetic(
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
