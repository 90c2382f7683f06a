"""Pinned Keras layers: where they compute, and where their variables are made.

      layer(x)  -->  with tf.device(...):  build, call  -->  gradients: `evener.locality`

Keras makes the variables of a layer in three ways: at once, when a functional model is put
together; in the first call; or, in the first call of a subclassed model, after everything was
called on symbols. The last ones would be made when `tf.device` has ended, so every variable
that has to wait keeps the device that was asked for.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any

import keras

from evener import _tf_private
from evener.locality.marks import mark, pinned_to
from evener.placement.moving import move
from evener.placement.scope import on_device

_lock = threading.Lock()


def install(innermost: Callable[[], str]) -> None:
    """Let Keras's layers run where they are pinned. Safe to call again.

    Args:
        innermost: Returns the device of the pinned block around, or an empty string.
    """
    with _lock:
        if getattr(keras.Layer, "_evener_can_be_pinned", False):
            return
        keras.Layer._evener_can_be_pinned = True
        for kind in (keras.Operation, keras.Layer):
            kind.__call__ = _called_on_its_device(kind.__call__)
        for kind in (keras.Operation, keras.Layer):
            kind.__init__ = _made_in_a_block(kind.__init__, innermost)
        keras.Layer.add_weight = _made_on_its_device(keras.Layer.add_weight)
        _tf_private.keep_devices_of_waiting_variables()


def pin_layer(layer: keras.Layer, device: str) -> None:
    """Pin a layer, and all its sublayers that are not pinned themselves.

    Variables that it has already are moved, if nothing uses them yet.

    Raises:
        PlacementError: PLACE-005 if something does.
    """
    followers = _followers(layer)
    move([v for one in followers for v in _tf_private.own_variables(one)], device, layer)
    _mark(layer, device)


def _mark(layer: Any, device: str) -> None:
    mark(layer, device)
    # XLA compiles for one device: `jit_compile="auto"` must not choose it.
    vars(layer)["supports_jit"] = False


def _followers(layer: keras.Layer) -> list[keras.Layer]:
    found = [layer]
    for one in _tf_private.sublayers(layer):
        if not pinned_to(one):
            found.extend(_followers(one))
    return found


def _called_on_its_device(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        device = pinned_to(self)
        if not device:
            return original(self, *args, **kwargs)
        with on_device(device):
            return original(self, *args, **kwargs)

    return call


def _made_on_its_device(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make weights that are added outside of a call, such as those of LoRA, there too."""

    @functools.wraps(original)
    def add_weight(self: Any, *args: Any, **kwargs: Any) -> Any:
        device = pinned_to(self)
        if not device or _tf_private.current_device():
            return original(self, *args, **kwargs)
        with on_device(device):
            return original(self, *args, **kwargs)

    return add_weight


def _made_in_a_block(
    original: Callable[..., Any], innermost: Callable[[], str]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        device = innermost()
        if device:
            _mark(self, device)

    # Keras makes a layer's config from its `__init__`, and does not look behind a wrapper.
    vars(init)["__signature__"] = inspect.signature(original)
    return init
