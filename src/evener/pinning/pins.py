"""`evener.pin`: pins layers, models, functions and blocks to a device.

    pin(device)(layer)      stored on the layer, which `evener.pinning.layers` runs there
    with pin(device):       `tf.device`, and the device of the layers that are created inside
    @pin(device)            such a block around every call

Their gradients follow in `evener.pinning.gradients`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from typing import Any, TypeVar

import keras
import tensorflow as tf

from evener._tf_private.functions import is_traced_function
from evener.devices.names import device_name
from evener.errors import PlacementError
from evener.pinning import gradients, layers, placement

T = TypeVar("T")


@tf.autograph.experimental.do_not_convert
def pin(device: str | tf.config.LogicalDevice) -> Pin:
    """Pin a block, a function, a Keras layer or a model to a device.

    Pinned work runs on the device, forward and backward. Its variables are placed there, including
    those that are built later, with their optimizer slots and updates. This holds in graphs and in
    eager execution, in Keras's ``fit``, with `tf.GradientTape`, and under `evener.Strategy`.

    - ``with evener.pin("gpu:1"):`` pins the operations inside, and layers that are created inside.
    - ``@evener.pin("gpu:1")`` pins a function, wherever it is called.
    - ``evener.pin("gpu:1")(layer)`` pins a Keras layer or model, and returns it. Its sublayers
      are pinned too, unless they are pinned themselves.

    An inner pin takes precedence over an outer one.

    Args:
        device: ``"gpu:1"``, ``"cpu:0"``, TensorFlow's names (``"/GPU:1"``,
            ``"/device:GPU:1"``), or a `tf.config.LogicalDevice`.

    Returns:
        A context manager and decorator. It is reusable, also in several threads at once.

    Raises:
        PlacementError: PLACE-001 if this is not a device name, PLACE-002 if it names a physical
            device, PLACE-003 if there is no such device.

    Example:
        >>> import evener, keras
        >>> first = evener.pin("cpu:0")(keras.layers.Dense(64, activation="relu"))
        >>> with evener.pin("cpu:0"):
        ...     second = keras.layers.Dense(4)
        >>> model = keras.Sequential([keras.Input((8,)), first, second])
        >>> first.kernel.value.device
        '/job:localhost/replica:0/task:0/device:CPU:0'
    """
    gradients.install()
    layers.install()
    return Pin(placement.tf_name(device))


class Pin:
    """Pins work to one device. Created by `pin`.

    Args:
        tf_device: TensorFlow's name of the device.
    """

    def __init__(self, tf_device: str) -> None:
        self._device = tf_device

    @property
    def device(self) -> str:
        """The device, such as ``"gpu:1"``."""
        return device_name(self._device)

    def __repr__(self) -> str:
        return f"evener.pin({self.device!r})"

    def __enter__(self) -> Pin:
        stack = contextlib.ExitStack()
        stack.enter_context(placement.on_device(self._device))
        placement.this_thread.pinned_blocks.append((self._device, stack))
        return self

    def __exit__(self, *exception: Any) -> None:
        device, stack = placement.this_thread.pinned_blocks.pop()
        stack.__exit__(*exception)
        if device != self._device:
            raise PlacementError(
                "PLACE-010",
                f"A block pinned to {self.device} ended before the inner block pinned to "
                f"{device_name(device)}.",
                why="Pinned blocks of a thread must be nested; operations run on the device of the "
                "innermost one. asyncio tasks, and generators suspended inside a block, interleave "
                "their blocks.",
                fix="Do not use `await` or `yield` inside of a pinned block.",
            )

    def __call__(self, what: T) -> T:
        """Pin a function, a Keras layer or a model."""
        if isinstance(what, keras.Layer):
            layers.pin_layer(what, self._device)
            return what
        function: Any = what
        is_function = (
            inspect.isroutine(function)
            or isinstance(function, functools.partial)
            or is_traced_function(function)
        )
        if not is_function or _runs_later(function):
            raise _not_pinnable(function)

        def pinned(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        # The attributes of a `tf.function` must not be copied to another function.
        named: Any = functools.update_wrapper(pinned, function, updated=())
        return named


def _runs_later(what: Any) -> bool:
    """Return whether the body of a function runs after its call returned, outside of the pin."""
    return (
        inspect.isgeneratorfunction(what)
        or inspect.iscoroutinefunction(what)
        or inspect.isasyncgenfunction(what)
    )


def _not_pinnable(what: Any) -> PlacementError:
    name = f"a {type(what).__name__}"
    why = "Only Keras layers, models, functions and blocks can be pinned."
    fix = "Pin a function that calls it."
    if isinstance(what, type):
        name = f"the class {what.__name__}"
        fix = f"Pin an instance of it: evener.pin(device)({what.__name__}(...))."
    elif _runs_later(what):
        name = f"{getattr(what, '__qualname__', 'a function')!r}, a generator or a coroutine,"
        why = "Its body runs after the call has returned, outside of the pin."
        fix = "Pin a block inside it, without yield or await: with evener.pin(device): ..."
    elif isinstance(what, keras.optimizers.Optimizer):
        why = "Its slots and updates are placed on the devices of the variables it trains."
        fix = "Pin the layers of these variables."
    elif isinstance(what, tf.Variable | tf.Tensor | keras.Variable):
        why = "It is already placed on a device."
        fix = "Create it inside `with evener.pin(device):`."
    return PlacementError("PLACE-004", f"{name} cannot be pinned.", why=why, fix=fix)
