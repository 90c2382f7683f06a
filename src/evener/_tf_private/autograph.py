"""Conversion of functions by AutoGraph."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.eager.polymorphic_function import autograph_util


def autographed(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function as AutoGraph converts it, if it converts the code around.

    Why: loops and conditions on tensors in a function given to `strategy.run` must work as they
    do under `MirroredStrategy`. If it changes: they raise in a graph.
    """
    autograph = tf.__internal__.autograph
    return autograph.tf_convert(fn, autograph.control_status_ctx(), convert_by_default=False)


def converted_as_by(fn: Any, body: Callable[..., Any]) -> Callable[..., Any]:
    """Return the body of a `tf.function`, or of what is to become one, as its traces call it.

    Why: a person's `tf.function` is taken apart, and what was inside of it has to be converted
    by its own options, in the context that a trace of it begins, but not the engine around it.
    If it changes: loops and conditions on tensors in a traced function given to `strategy.run`,
    or in the functions that it gives to `strategy.run`, raise.
    """
    if hasattr(body, "autograph_info__"):
        return body  # It is converted, or must not be: its errors would be rewritten twice.
    if not getattr(fn, "_autograph", True):
        return tf.autograph.experimental.do_not_convert(body)
    features = getattr(fn, "_experimental_autograph_options", None)
    converted = autograph_util.py_func_from_autograph(body, features)

    @functools.wraps(body, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        with ag_ctx.ControlStatusCtx(status=ag_ctx.Status.ENABLED, options=features):
            return converted(*args, **kwargs)

    leave_to_autograph(call)
    return call


def before_autograph_rewrites(error: Exception) -> Callable[[], Exception]:
    """Return what gives an error back as it is now.

    Why: AutoGraph marks an error in each converted function that it leaves, and makes another error
    of a marked one: of a KeyError that it has made itself, a StagingError.
    If it changes: errors of a person's code have another type than without evener.
    """
    name = "ag_error_metadata"
    found = vars(error).get(name)

    def as_it_was() -> Exception:
        if found is not None:
            vars(error)[name] = found
        else:
            vars(error).pop(name, None)
        return error

    return as_it_was


def leave_to_autograph(function: Callable[..., Any]) -> None:
    """Let AutoGraph call a function unconverted, but convert the functions that it calls.

    Why: replacements of `strategy.run` or `tape.gradient` must not be converted, and the public
    `do_not_convert` would exclude the program's step too.
    If it changes: loops and conditions on tensors fail in programs that are watched.
    """
    function.autograph_info__ = {"artifact": True}  # pyright: ignore[reportFunctionMemberAccess]
