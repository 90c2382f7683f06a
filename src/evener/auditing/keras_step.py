"""One step of a compiled Keras model's ``fit``, stopped before it runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from evener.auditing.dry_run import StoppedCall, stop_at
from evener.auditing.training import trains, writes
from evener.errors import PlacementError

_MANY_BATCHES = (tf.data.Dataset, tf.distribute.DistributedDataset, keras.utils.PyDataset)


def stopped_fit(model: keras.Model, args: tuple[Any, ...], kwargs: dict[str, Any]) -> StoppedCall:
    """Call ``model.fit(*args, **kwargs)`` on one batch and stop it before its first step.

    Args:
        model: A compiled model.
        args: ``x, y, sample_weight``: one batch of arrays or tensors, with the batch as axis 0, in
            the shapes and dtypes that ``fit`` takes; or a dataset.
        kwargs: ``sample_weight`` or ``class_weight``, as for ``fit``.

    Raises:
        PlacementError: PLACE-033 if the model is not compiled, or without data, or steps
            eagerly, or has nothing to train.
    """
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
        stopped = stop_at(lambda: model.fit(**given, epochs=1, verbose=0), writes)
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
    if isinstance(named["x"], _MANY_BATCHES) or not _is_arrays(named["x"]):
        return {**named, "steps_per_epoch": named.get("steps_per_epoch", 1)}
    parts = [named.pop(name, None) for name in ("x", "y", "sample_weight")]
    while parts[-1] is None:
        parts.pop()
    return {**named, "x": tf.data.Dataset.from_tensors(tuple(parts)), "shuffle": False}


def _is_arrays(x: Any) -> bool:
    return all(hasattr(leaf, "shape") for leaf in tf.nest.flatten(x))


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
