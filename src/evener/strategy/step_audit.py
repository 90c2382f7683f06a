"""`evener.audit`: the placement of one step, and its copies between devices."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from evener._tf_private.functions import function_graphs
from evener.auditing import Audit, read_gathered
from evener.errors import PlacementError
from evener.strategy import dry_run, kernels, placed_graph
from evener.strategy.placed_graph import GraphReader, Origins, writes_variables

# TensorFlow's function that initializes new variables.
_INITIALIZATION = "initialize_variables"


def trains(function: Any) -> bool:
    """Whether a traced function, or one it calls, computes gradients and writes variables."""
    if not writes(function):
        return False
    graphs = function_graphs(function)
    origins = Origins(graphs, "")
    operations = (operation for graph in graphs.values() for operation in graph.get_operations())
    return any(map(origins.is_made_by_tape, operations))


def writes(function: Any) -> bool:
    """Return whether a traced function writes variables, other than to initialize them."""
    if _INITIALIZATION in str(function.name):
        return False
    graphs = function_graphs(function).values()
    return any(
        writes_variables(operation.type) for graph in graphs for operation in graph.get_operations()
    )


# One step of a compiled Keras model's ``fit``, stopped before it runs.

_MANY_BATCHES = (tf.data.Dataset, tf.distribute.DistributedDataset, keras.utils.PyDataset)


def stopped_fit(
    model: keras.Model, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dry_run.StoppedCall:
    """Call ``model.fit(*args, **kwargs)`` on one batch and stop it before its first step."""
    if not getattr(model, "compiled", False):
        raise _no_step(model, "it is not compiled", "call model.compile(...) first.")
    if not args and "x" not in kwargs:
        raise _no_step(model, "there is no data", "give one batch: evener.audit(model, x, y).")
    if model.run_eagerly:
        raise _no_step(
            model, "it is compiled with run_eagerly=True", "compile it without run_eagerly."
        )
    given = _one_batch(args, kwargs)
    with _without_resets(model):
        stopped = dry_run.stop_at(lambda: model.fit(**given, epochs=1, verbose=0), writes)
    if stopped is None or not trains(stopped.function):
        raise _no_step(
            model,
            "one step of fit computed no gradients, or wrote no variables",
            "give it something to train: trainable variables, a loss, an optimizer.",
        )
    return stopped


def _one_batch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``fit`` for one batch of known size."""
    named = {**dict(zip(("x", "y", "sample_weight"), args, strict=False)), **kwargs}
    are_arrays = all(hasattr(leaf, "shape") for leaf in tf.nest.flatten(named["x"]))
    if isinstance(named["x"], _MANY_BATCHES) or not are_arrays:
        return {**named, "steps_per_epoch": named.get("steps_per_epoch", 1)}
    parts = [named.pop(name, None) for name in ("x", "y", "sample_weight")]
    while parts[-1] is None:
        parts.pop()
    return {**named, "x": tf.data.Dataset.from_tensors(tuple(parts)), "shuffle": False}


@contextlib.contextmanager
def _without_resets(model: keras.Model) -> Iterator[None]:
    """Keep ``fit`` from resetting the metrics of the model: an audit changes nothing."""
    model.__dict__["reset_metrics"] = lambda: None
    try:
        yield
    finally:
        del model.__dict__["reset_metrics"]


def _no_step(model: keras.Model, why: str, fix: str) -> PlacementError:
    return PlacementError(
        "PLACE-033",
        f"There is no training step of {model.name!r} to audit.",
        why=f"{why}.",
        fix=fix,
    )


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
    with dry_run.unchanged_random_state():
        stopped = _stopped(fn, args, kwargs)
        return audit_of(stopped, step=_name(fn), assume_gpus=assume_gpus)


def audit_of(
    stopped: dry_run.StoppedCall,
    *,
    step: str,
    assume_gpus: bool = False,
    draw: bool = False,
) -> Audit:
    placed = dry_run.place(stopped)
    reader = GraphReader(placed, assume_gpus, dry_run.draw_batches(placed) if draw else {})
    return Audit(
        step=step,
        devices=placed_graph.present(),
        assume_gpus=assume_gpus,
        kernels_from=kernels.kernel_source(),
        operations=tuple(reader.operations),
        copies=reader.copies(),
        collectives=reader.collectives(),
        fallbacks=tuple(reader.fallbacks),
        gathered=read_gathered(placed.functions.values()),
    )


def _stopped(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dry_run.StoppedCall:
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
    call = dry_run.traced(fn, args, kwargs)
    stopped = dry_run.stop_at(call, lambda function: True)
    assert stopped is not None, "a traced function was called and none ran"
    return stopped


def _name(fn: Any) -> str:
    if isinstance(fn, keras.Model):
        return f"{fn.name}.fit"
    while isinstance(fn, functools.partial):
        fn = fn.func
    python_function: Callable[..., Any] = getattr(fn, "python_function", fn)
    return getattr(python_function, "__qualname__", None) or type(fn).__name__
