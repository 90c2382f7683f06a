"""Tracebacks of errors in a person's step: without the frames of evener, as without Keras's own.

Keras and TensorFlow leave their frames out of tracebacks. Their ``disable_traceback_filtering``
shows all frames again, those of evener too. An error of evener's own code keeps them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

import keras
import tensorflow as tf
from tensorflow.python.util import traceback_utils

from evener._tf_private.patches import Patch
from evener.own_code import without_evener

E = TypeVar("E", bound=BaseException)

_MARK = "_evener_error_of_step"
_FILTERS = Patch(
    "filters of tracebacks",
    "keras.src.utils.traceback_utils:_process_traceback_frames",
    "tensorflow.python.util.traceback_utils:_process_traceback_frames",
    why="Fourteen frames of evener stand between a person's line and the message of TensorFlow.",
    if_it_changes="Tracebacks of wrong steps are long.",
)


def mark_as_error_of_step(error: E) -> E:
    """Mark an error that the step of a person has raised, and return it."""
    setattr(error, _MARK, True)
    return error


def is_error_of_step(error: BaseException | None) -> bool:
    """Return whether a person's step raised an error, while it was traced or executed."""
    return isinstance(error, tf.errors.OpError) or getattr(error, _MARK, False)


def shorten(error: BaseException) -> None:
    """Leave the frames of evener and TensorFlow out of the traceback of an error of a step."""
    error.__traceback__ = shortened(error, error.__traceback__)


def shortened(error: BaseException | None, found: TracebackType | None) -> TracebackType | None:
    """Return the traceback of an error of a step without the frames of evener and TensorFlow.

    Nothing is left out for other errors, nor if TensorFlow or Keras is told to show all frames.
    """
    is_short = tf.debugging.is_traceback_filtering_enabled()
    if is_short and keras.config.is_traceback_filtering_enabled() and is_error_of_step(error):
        return traceback_utils._process_traceback_frames(without_evener(found))
    return found


def shorten_tracebacks() -> None:
    """Let the filters of Keras and TensorFlow leave out evener's frames. Safe to call again."""
    _FILTERS.apply(_shortening)


def _shortening(original: Callable[..., Any]) -> Callable[..., Any]:
    def process(found: TracebackType | None) -> Any:
        # The filters are called where they have caught the error.
        if is_error_of_step(sys.exception()):
            found = without_evener(found)
        return original(found)

    return process
