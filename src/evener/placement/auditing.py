"""`evener.audit`: where one step would run, and what it would move."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal

import keras
import tensorflow as tf

from evener.errors import PlacementError
from evener.placement import devices, kernels
from evener.placement.dry_run import Stopped, place, stop_at
from evener.placement.elements import drawn_from
from evener.placement.keras_step import stopped_fit
from evener.placement.reading import Reading
from evener.placement.record import Audit
from evener.placement.tracing import traced, unchanged_random_state
from evener.tf_compat.gathered import read_gathered


def audit(fn: Any, *args: Any, meant_for: Literal["gpu"] | None = None, **kwargs: Any) -> Audit:
    """Return where each operation of one step runs, and what moves between devices.

    The step is traced, optimized and placed as TensorFlow would for the call
    ``fn(*args, **kwargs)``, and not run: variables, optimizer slots, random states and data
    are as before. What is created when a function is first called is created, and has its
    first values.

    Args:
        fn: A `tf.function`, any function that can be traced, or a compiled Keras model: then
            ``audit(model, x, y)`` audits one step of ``fit``.
        *args: What it is called with.
        meant_for: ``"gpu"`` if what asks for no device is meant to run on GPUs: then the audit
            names all operations that could not, on a machine without a GPU too.
        **kwargs: What it is called with.

    Returns:
        The audit.

    Raises:
        PlacementError: PLACE-030 if this cannot be audited, PLACE-031 if it works eagerly only,
            PLACE-032 if functions are told to run eagerly, PLACE-033 if a model is not
            compiled, PLACE-044 if this is called inside of a graph.

    >>> import evener, tensorflow as tf
    >>> weights = tf.Variable(tf.ones([3, 2]))
    >>> def step(x):
    ...     with tf.GradientTape() as tape:
    ...         loss = tf.reduce_mean(x @ weights)
    ...     weights.assign_sub(0.1 * tape.gradient(loss, weights))
    ...     return loss
    >>> audit = evener.audit(step, tf.ones([8, 3]))
    >>> sorted((op.kind, op.used) for op in audit.operations if op.type == "MatMul")
    [('forward', 'cpu:0'), ('gradient', 'cpu:0')]
    """
    if meant_for not in (None, "gpu"):
        raise ValueError(f"meant_for is None or 'gpu', not {meant_for!r}")
    with unchanged_random_state():
        stopped = _stopped(fn, args, kwargs)
        return audit_of(stopped, step=_name(fn), meant_for=meant_for)


def audit_of(
    stopped: Stopped,
    *,
    step: str,
    meant_for: Literal["gpu"] | None = None,
    draw: bool = False,
) -> Audit:
    """Return the audit of a function that was about to run.

    Args:
        stopped: The function and its inputs.
        step: What it is called in the audit.
        meant_for: See `audit`.
        draw: Whether to draw a batch from the iterators that it takes, for the sizes. They
            have lost it then.
    """
    placed = place(stopped)
    reading = Reading(placed, meant_for, drawn_from(placed) if draw else {})
    return Audit(
        step=step,
        devices=devices.present(),
        meant_for=meant_for,
        kernels_from=kernels.source(),
        operations=reading.operations(),
        copies=reading.copies(),
        collectives=reading.collectives(),
        fallbacks=reading.fallbacks(),
        gathered=read_gathered(placed.functions.values()),
    )


def _stopped(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Stopped:
    if tf.config.functions_run_eagerly():
        raise PlacementError(
            "PLACE-032",
            "TensorFlow is told to run functions eagerly.",
            why="an audit reads the graph of a step, and eagerly there is none.",
            fix="call tf.config.run_functions_eagerly(False) before the audit.",
        )
    if not tf.executing_eagerly():
        raise PlacementError(
            "PLACE-044",
            "An audit was asked for inside of a tf.function, or of another graph.",
            why="there the Python code runs once, to be traced, and no step is called.",
            fix="call evener.audit outside, on the function itself.",
        )
    if isinstance(fn, keras.Model):
        return stopped_fit(fn, args, kwargs)
    if not callable(fn):
        raise PlacementError(
            "PLACE-030",
            f"{fn!r} cannot be audited.",
            why="it is neither a function nor a compiled Keras model.",
            fix="give the function of a training step and its arguments: "
            "evener.audit(train_step, x, y).",
        )
    call = traced(fn, args, kwargs)
    stopped = stop_at(call, lambda function: True)
    assert stopped is not None, "a traced function was called and none ran"
    return stopped


def _name(fn: Any) -> str:
    if isinstance(fn, keras.Model):
        return f"{fn.name}.fit"
    while isinstance(fn, functools.partial):
        fn = fn.func
    python_function: Callable[..., Any] = getattr(fn, "python_function", fn)
    return getattr(python_function, "__qualname__", None) or type(fn).__name__
