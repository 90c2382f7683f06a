"""Puts the meaning that things have in a replica where Keras and TensorFlow look for it.

Everywhere but in a replica of an evener strategy, all of it does what it did before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from evener import _tf_private
from evener.engine.loops import losses, metrics, updates
from evener.engine.loops import run as runs
from evener.engine.loops.scaled import note_term


def install() -> None:
    """Let losses, metrics, optimizers and tapes work in replicas. Safe to call again."""
    if getattr(keras.losses.Loss, "_evener_installed", False):
        return
    keras.losses.Loss._evener_installed = True
    _put(keras.losses.Loss, "__call__", _loss)
    for kind in (keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer):
        _put(kind, "apply", _apply)
    _put(keras.metrics.Mean, "update_state", _mean)
    _put(keras.layers.BatchNormalization, "call", _batch_norm)
    _put(keras.Model, "_aggregate_additional_loss", _additional)
    _put(tf.GradientTape, "gradient", _gradient)
    keras.Layer.losses = _losses(keras.Layer.losses)
    _tf_private.replace_loss_scaling(losses.scale, losses.unscale)
    _tf_private.replace_average_loss(functools.partial(_wrapped, losses.average_loss))


def _wrapped(inside: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    @tf.autograph.experimental.do_not_convert
    def call(*args: Any, **kwargs: Any) -> Any:
        return inside(original, *args, **kwargs)

    return call


def _put(kind: type, name: str, make: Callable[..., Any]) -> None:
    original = kind.__dict__.get(name) or getattr(kind, name)
    replaced = functools.wraps(original)(tf.autograph.experimental.do_not_convert(make(original)))
    setattr(kind, name, replaced)


def _loss(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return losses.call_in_replica(original, self, y_true, y_pred, sample_weight)

    return call


def _apply(original: Callable[..., Any]) -> Callable[..., Any]:
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        return updates.apply_in_replica(original, self, grads, trainable_variables)

    return apply


def _mean(original: Callable[..., Any]) -> Callable[..., Any]:
    def update_state(self: Any, values: Any, sample_weight: Any = None) -> Any:
        return metrics.mean_in_replica(original, self, values, sample_weight)

    return update_state


def _batch_norm(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        here = runs.current()
        if here is not None:
            here[0].strategy.loop_state.note_batch_norm(self)
        return original(self, *args, **kwargs)

    return call


def _additional(original: Callable[..., Any]) -> Callable[..., Any]:
    def aggregate(self: Any, loss: Any) -> Any:
        return losses.additional(original, self, loss)

    return aggregate


def _losses(original: property) -> property:
    def get(self: keras.Layer) -> list[Any]:
        terms = original.__get__(self)
        if runs.current() is None:
            return terms
        return [term if losses.is_added_sum(self, term) else note_term(term) for term in terms]

    return property(get, original.fset, original.fdel, original.__doc__)


def _gradient(original: Callable[..., Any]) -> Callable[..., Any]:
    def gradient(self: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        return updates.gradient_in_replica(original, self, target, sources, *args, **kwargs)

    return gradient
