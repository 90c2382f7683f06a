"""The device that the code around asks for, and lists of devices."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.client import device_lib
from tensorflow.python.eager import context as eager_context
from tensorflow.python.ops import (
    control_flow_util,
)

from evener._tf_private.patches import Wrap


def explicit_device() -> str:
    """Return the device that an enclosing `tf.device` asks for, or an empty string.

    Why: a variable that is made under an explicit device (a pinned layer, or an optimizer's
    slot beside its variable) must stay there, and there is no public getter.
    If it changes: such variables are placed by the owner rule instead.
    """
    if not tf.executing_eagerly():
        return ""
    return eager_context.context().device_name or ""


def current_device() -> str:
    """Return the device that a `tf.device` around asks for, in a graph too, or an empty string.

    Why: Keras makes variables after the call that asked for them, when `tf.device` has ended,
    and there is no public getter. If it changes: variables built in a model's first call are
    made on the first device.
    """
    if not tf.executing_eagerly():
        graph: Any = tf.compat.v1.get_default_graph()
        for spec in graph._device_function_stack.peek_objs():
            if spec.raw_string:
                return spec.raw_string
    return eager_context.context().device_name or ""


def in_xla(graph: Any) -> bool:
    """Return whether a graph, or one around it, is compiled by XLA.

    Why: XLA knows one device, and ignores or refuses others. While a function with
    ``jit_compile=True`` is traced, this context alone tells.
    If it changes: a pinned layer in such a function silently runs on another device.
    """
    return control_flow_util.GraphOrParentsInXlaContext(graph)


def replace_local_devices(wrap: Wrap) -> None:
    """Replace the function by which programs list devices without ``tf.config``.

    Why: many programs count their GPUs by ``device_lib.list_local_devices``, which never had a
    public name. If it changes: such programs do not find stand-ins as GPUs.
    """
    vars(device_lib)["list_local_devices"] = wrap(device_lib.list_local_devices)
