"""Moves the variables of a built layer to the device that the layer is pinned to.

A `tf.Variable` cannot change its device, so the Keras variable gets a new one with the same value.
That is safe only while nothing else refers to the old one: a traced function would go on training
it, and an optimizer would not know the new one.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from evener import _tf_private
from evener.devices.names import device_name
from evener.errors import PlacementError


def move_variables(variables: Sequence[Any], device: str, layer: keras.Layer) -> None:
    """Move Keras variables to a device; variables without a value will be created there.

    Args:
        variables: Keras variables of any shape and dtype; some may be on the device already.
        device: TensorFlow's name of the device.
        layer: The layer to pin, for messages.

    Raises:
        PlacementError: PLACE-005 if a variable is in use, PLACE-009 if it has copies on
            several devices; then no variable is moved.
    """
    made = [v for v in variables if not _tf_private.variables.waits_for(v, device)]
    if any(isinstance(v.value, tf.distribute.DistributedValues) for v in made):
        raise PlacementError(
            "PLACE-009",
            f"The layer {layer.name!r} has variables on several devices.",
            why="A strategy such as MirroredStrategy keeps a copy of each variable for every "
            "replica, and a pinned layer has a single one.",
            fix="Create the model under evener.Strategy, or remove the pin.",
        )
    elsewhere = [v for v in made if device_name(v.value.device) != device_name(device)]
    if not elsewhere:
        return
    user = _user_of(elsewhere)
    if user:
        raise PlacementError(
            "PLACE-005",
            f"The layer {layer.name!r} has variables on {device_name(elsewhere[0].value.device)}, "
            f"and {user}.",
            why="A tf.Variable cannot change its device. A new variable would replace it, and its "
            "current user would keep the old one.",
            fix="Pin layers before the model is trained, called in a tf.function, or passed to an "
            "optimizer; or create the model again, pin it, and copy the weights: "
            "new.set_weights(old.get_weights()).",
        )
    for variable in elsewhere:
        with tf.device(device):
            old = _tf_private.variables.renew_variable(variable)
        registry = getattr(getattr(old, "_distribute_strategy", None), "owner_registry", None)
        if registry is not None:
            registry.forget(old)


def _user_of(variables: Sequence[Any]) -> str:
    """Return what uses these variables, as the end of a sentence, or an empty string."""
    wanted = {id(v) for v in variables}
    # The graphs in which Keras inferred shapes are garbage, in reference cycles.
    gc.collect()
    for found in gc.get_objects():
        if issubclass(type(found), keras.optimizers.Optimizer) and found.built:
            if any(id(v) in wanted for v in found._trainable_variables):
                return f"the optimizer {found.name!r} has slots for them"
    for variable in variables:
        holders = _holders(variable.value.handle, variable.value)
        if holders:
            return f"{variable.path!r} is used in a traced function or by an open tape"
    return ""


def _holders(handle: Any, variable: tf.Variable) -> list[Any]:
    internal = {id(variable), id(vars(variable))}
    return [
        referrer
        for referrer in gc.get_referrers(handle)
        if id(referrer) not in internal and not _is_frame(referrer) and not _is_deleter(referrer)
    ]


def _is_frame(referrer: Any) -> bool:
    return type(referrer).__name__ == "frame"


def _is_deleter(referrer: Any) -> bool:
    return "Deleter" in type(referrer).__name__
