"""`evener.audit`: the placement of one step, and its copies between devices."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from evener.auditing import device_names, kernels
from evener.auditing.drawn_batch import draw_batches
from evener.auditing.dry_run import StoppedCall, place, stop_at
from evener.auditing.gathered import read_gathered
from evener.auditing.graph_reader import GraphReader
from evener.auditing.keras_step import stopped_fit
from evener.auditing.result import Audit
from evener.auditing.tracing import traced, unchanged_random_state
from evener.errors import PlacementError


def audit(fn: Any, *args: Any, assume_gpus: bool = False, **kwargs: Any) -> Audit:
    """Return the device of every operation of one step, and the copies between devices.

    TensorFlow traces, optimizes and places the step for the call ``fn(*args, **kwargs)``, but does
    not run it: variables, optimizer slots, random states and data do not change. Variables that a
    function creates in its first call are created, with their initial values.

    Args:
        fn: A `tf.function`, any function that can be traced, or a compiled Keras model: then
            ``audit(model, x, y)`` audits one step of ``fit``.
        *args: Arguments of the call: tensors, arrays or datasets of any shape and dtype, as the
            function takes them.
        assume_gpus: Whether operations that request no device count as requesting a GPU. The audit
            then lists all operations that cannot run on one, on a machine without a GPU too.
        **kwargs: Keyword arguments of the call.

    Returns:
        The audit.

    Raises:
        PlacementError: PLACE-030 if ``fn`` cannot be audited, PLACE-031 if it cannot be traced,
            PLACE-032 if `tf.config.run_functions_eagerly` is on, PLACE-033 if a model is not
            compiled, PLACE-044 inside of a `tf.function` or another graph.

    >>> import evener, tensorflow as tf
    >>> weights = tf.Variable(tf.ones([3, 2]))
    >>> def step(x):
    ...     with tf.GradientTape() as tape:
    ...         loss = tf.reduce_mean(x @ weights)
    ...     weights.assign_sub(0.1 * tape.gradient(loss, weights))
    ...     return loss
    >>> audit = evener.audit(step, tf.ones([8, 3]))
    >>> sorted((op.kind, op.device) for op in audit.operations if op.type == "MatMul")
    [('forward', 'cpu:0'), ('gradient', 'cpu:0')]
    """
    with unchanged_random_state():
        stopped = _stopped(fn, args, kwargs)
        return audit_of(stopped, step=_name(fn), assume_gpus=assume_gpus)


def audit_of(
    stopped: StoppedCall,
    *,
    step: str,
    assume_gpus: bool = False,
    draw: bool = False,
) -> Audit:
    """Return the audit of a call that was stopped before it ran.

    Args:
        stopped: The function and its inputs.
        step: The name of the step in the audit.
        assume_gpus: See `audit`.
        draw: Whether to draw a batch from the iterators among the inputs, so that sizes are
            known. The iterators lose the batch.
    """
    placed = place(stopped)
    reader = GraphReader(placed, assume_gpus, draw_batches(placed) if draw else {})
    return Audit(
        step=step,
        devices=device_names.present(),
        assume_gpus=assume_gpus,
        kernels_from=kernels.kernel_source(),
        operations=reader.operations(),
        copies=reader.copies(),
        collectives=reader.collectives(),
        fallbacks=reader.fallbacks(),
        gathered=read_gathered(placed.functions.values()),
    )


def _stopped(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> StoppedCall:
    if tf.config.functions_run_eagerly():
        raise PlacementError(
            "PLACE-032",
            "tf.config.run_functions_eagerly(True) is in effect.",
            why="An audit reads the graph of a step, and an eager step has none.",
            fix="Call tf.config.run_functions_eagerly(False) before the audit.",
        )
    if not tf.executing_eagerly():
        raise PlacementError(
            "PLACE-044",
            "evener.audit was called inside of a tf.function or another graph.",
            why="There, Python code runs only once, while it is traced, and no step is called.",
            fix="Call evener.audit outside, on the function itself.",
        )
    if isinstance(fn, keras.Model):
        return stopped_fit(fn, args, kwargs)
    if not callable(fn):
        raise PlacementError(
            "PLACE-030",
            f"{fn!r} cannot be audited.",
            why="It is neither a function nor a compiled Keras model.",
            fix="Pass the function of a training step and its arguments: "
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
