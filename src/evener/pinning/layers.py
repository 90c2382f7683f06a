"""Pinned Keras layers: the device of their computation and of their variables.

      layer(x)  -->  with tf.device(...):  build, call  -->  gradients: `evener.pinning.colocation`

Keras creates the variables of a layer in three ways: at once, while a functional model is built;
in the first call; or, in the first call of a subclassed model, after a symbolic call. The last
ones would be created after `tf.device` has ended, so every variable whose creation is deferred
stores the requested device.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any

import keras

from evener import _tf_private
from evener.pinning.colocation.pinned_layers import pinned_device, set_pinned_device
from evener.pinning.scope import on_device
from evener.pinning.variable_moves import move_variables

_lock = threading.Lock()


def install(innermost: Callable[[], str]) -> None:
    """Let Keras layers run on the device they are pinned to. Safe to call again.

    Args:
        innermost: Returns the device of the innermost pinned block, or an empty string.
    """
    with _lock:
        if getattr(keras.Layer, "_evener_can_be_pinned", False):
            return
        keras.Layer._evener_can_be_pinned = True
        for kind in (keras.Operation, keras.Layer):
            kind.__call__ = _call_on_pinned_device(kind.__call__)
        for kind in (keras.Operation, keras.Layer):
            kind.__init__ = _init_in_pinned_block(kind.__init__, innermost)
        keras.Layer.add_weight = _add_weight_on_pinned_device(keras.Layer.add_weight)
        _tf_private.variables.keep_devices_of_waiting_variables()


def pin_layer(layer: keras.Layer, device: str) -> None:
    """Pin a layer, and all its sublayers that are not pinned themselves.

    Existing variables are moved, if nothing uses them yet.

    Raises:
        PlacementError: PLACE-005 if a variable is in use.
    """
    layers = _unpinned_sublayers(layer)
    move_variables(
        [v for part in layers for v in _tf_private.layers.own_variables(part)], device, layer
    )
    _set_device(layer, device)


def _set_device(layer: Any, device: str) -> None:
    set_pinned_device(layer, device)
    # XLA compiles for a single device: `jit_compile="auto"` must not enable it.
    vars(layer)["supports_jit"] = False


def _unpinned_sublayers(layer: keras.Layer) -> list[keras.Layer]:
    found = [layer]
    for sublayer in _tf_private.layers.sublayers(layer):
        if not pinned_device(sublayer):
            found.extend(_unpinned_sublayers(sublayer))
    return found


def _call_on_pinned_device(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        device = pinned_device(self)
        if not device:
            return original(self, *args, **kwargs)
        with on_device(device):
            return original(self, *args, **kwargs)

    return call


def _add_weight_on_pinned_device(original: Callable[..., Any]) -> Callable[..., Any]:
    """Create weights that are added outside of a call, such as those of LoRA, on the device too."""

    @functools.wraps(original)
    def add_weight(self: Any, *args: Any, **kwargs: Any) -> Any:
        device = pinned_device(self)
        if not device or _tf_private.devices.current_device():
            return original(self, *args, **kwargs)
        with on_device(device):
            return original(self, *args, **kwargs)

    return add_weight


def _init_in_pinned_block(
    original: Callable[..., Any], innermost: Callable[[], str]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        device = innermost()
        if device:
            _set_device(self, device)

    # Keras derives a layer's config from this signature.
    vars(init)["__signature__"] = inspect.signature(original)
    return init
