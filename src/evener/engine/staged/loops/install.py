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
from evener.engine.staged.loops import losses, metrics, updates
from evener.engine.staged.loops import run as runs
from evener.engine.staged.loops.scaled import note_term
from evener.engine.staged.model_checks import warn_of_statistics


def install() -> None:
    """Let losses, metrics, optimizers and tapes work in replicas. Safe to call again."""
    if getattr(keras.losses.Loss, "_evener_installed", False):
        return
    keras.losses.Loss._evener_installed = True
    _put(keras.losses.Loss, "__call__", losses.call_in_replica)
    for kind in (keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer):
        _put(kind, "apply", updates.apply_in_replica)
    _put(keras.metrics.Mean, "update_state", metrics.mean_in_replica)
    _put(keras.layers.BatchNormalization, "call", _batch_norm)
    _put(keras.Model, "_aggregate_additional_loss", losses.additional)
    _put(tf.GradientTape, "gradient", updates.gradient_in_replica)
    keras.Layer.losses = _losses(keras.Layer.losses)
    _tf_private.replace_loss_scaling(_around(losses.scale), _around(losses.unscale))
    _tf_private.replace_average_loss(_around(losses.average_loss))


def install_stages() -> None:
    """Let layers and traced functions know their stages. Safe to call again.

    Apart from the rest, because every call of any layer and function passes here from then on.
    """
    if getattr(keras.Layer, "_evener_knows_stages", False):
        return
    keras.Layer._evener_knows_stages = True
    _put(keras.Layer, "__call__", runs.call_layer_in_replica)
    _tf_private.replace_traced_call(_around(runs.call_function_in_replica))


def _put(kind: type, name: str, inside: Callable[..., Any]) -> None:
    """Let a method call ``inside`` with itself as it was, and what it was called with."""
    original = kind.__dict__.get(name) or getattr(kind, name)
    setattr(kind, name, _around(inside)(original))


def _around(inside: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        @tf.autograph.experimental.do_not_convert
        def call(*args: Any, **kwargs: Any) -> Any:
            return inside(original, *args, **kwargs)

        return call

    return wrap


def _batch_norm(original: Callable[..., Any], layer: Any, *args: Any, **kwargs: Any) -> Any:
    here = runs.current()
    if here is not None:
        state, plan = here[0].strategy.loop_state, here[0].strategy.plan
        state.note_batch_norm(layer)
        is_cut = not here[0].is_alone
        training = kwargs.get("training", args[1] if len(args) > 1 else None)
        if is_cut and training and layer.trainable and not layer.synchronized:
            warn_of_statistics([layer.name], plan, state.say_once)
    return original(layer, *args, **kwargs)


def _losses(original: property) -> property:
    def get(self: keras.Layer) -> list[Any]:
        terms = original.__get__(self)
        if runs.current() is None:
            return terms
        return [term if losses.is_added_sum(self, term) else note_term(term) for term in terms]

    return property(get, original.fset, original.fdel, original.__doc__)
