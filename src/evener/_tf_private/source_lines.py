"""Source lines of the program, as the person wrote them."""

from __future__ import annotations

import tensorflow as tf
from tensorflow.python.util import tf_stack


def stack() -> list[tuple[str, int]]:
    """Return file and line of all frames, the innermost last, as the person wrote them.

    Why: AutoGraph runs code of its own; TensorFlow knows which line it came from.
    If it changes: messages name lines of generated files.
    """
    return [(frame.filename, frame.lineno) for frame in tf_stack.extract_stack()]


def definition_frames(operation: tf.Operation) -> list[tuple[str, int, str]]:
    """Return file, line and function of the frames in which an operation was made.

    The innermost is the last; lines are those the person wrote, not AutoGraph's.

    Why: it shows what a tape made, and which line to change. The property is public, its form
    is undocumented. If it changes: audits know neither lines nor kinds of work.
    """
    # What TensorFlow has made of a function's definition has none.
    return [(frame.filename, frame.lineno, frame.name) for frame in operation.traceback or ()]
