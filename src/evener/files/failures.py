"""Errors of the worker that writes, which the other workers raise too.

The program may catch an error of a write, so all workers raise errors of the same class where that
is one of Python or TensorFlow.
"""

from __future__ import annotations

import builtins
from typing import Any

import tensorflow as tf

from evener.errors import RunError

Told = dict[str, Any]
"""Error as JSON has it."""


def error_to_json(error: Exception) -> Told:
    """Return an error as a JSON object, without its traceback."""
    told: Told = {"type": type(error).__name__, "text": str(error)}
    if isinstance(error, OSError) and error.errno is not None:
        name = None if error.filename is None else str(error.filename)
        told["os"] = [error.errno, error.strerror, name]
    elif isinstance(error, tf.errors.OpError):
        failed: Any = error
        told["op"] = [failed.error_code, failed.message]
    return told


def error_from_json(told: Told, worker: int) -> Exception:
    """Return the error that another worker raised, as `error_to_json` described it."""
    if "os" in told:
        return OSError(*told["os"])
    if "op" in told:
        code, message = told["op"]
        return tf.compat.v1.errors.exception_type_from_error_code(code)(None, None, message)
    kind = getattr(builtins, told["type"], None)
    if isinstance(kind, type) and issubclass(kind, Exception) and _takes_a_text(kind):
        return kind(told["text"])
    return RunError(
        "RUN-097",
        f"Worker {worker} cannot write a file: {told['type']}: {told['text']}",
        why="With several workers, one of them writes each file, and the others wait for it.",
        fix=f"See the output of worker {worker}.",
    )


def _takes_a_text(kind: type[Exception]) -> bool:
    return not issubclass(kind, UnicodeError | ImportError | SyntaxError | ExceptionGroup)
