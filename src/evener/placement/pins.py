"""`evener.pin`: layers, models, functions and blocks on a device, with all that follows them."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import keras
import tensorflow as tf

from evener import _tf_private, locality
from evener.errors import PlacementError
from evener.placement import layers, losses, optimizers
from evener.placement.names import short_name, tf_name
from evener.placement.scope import on_device

T = TypeVar("T")


class _Entered(threading.local):
    def __init__(self) -> None:
        self.blocks: list[tuple[str, contextlib.ExitStack]] = []


_entered = _Entered()


@tf.autograph.experimental.do_not_convert
def pin(device: str | tf.config.LogicalDevice) -> Pin:
    """Keep work on a device: a block, a function, a Keras layer, a model.

    What is pinned computes on the device, forward and backward. Its variables live there, also
    those that are built later; so do their optimizer slots and their updates. All of that holds
    in graphs and eagerly, in Keras's ``fit``, with `tf.GradientTape`, and under
    `evener.Strategy`.

    - ``with evener.pin("gpu:1"):`` pins what runs inside, and layers that are made inside.
    - ``@evener.pin("gpu:1")`` pins a function, wherever it is called.
    - ``evener.pin("gpu:1")(layer)`` pins a Keras layer or model, and returns it. Its sublayers
      follow it, unless they are pinned themselves.

    An inner pin wins over an outer one.

    Args:
        device: ``"gpu:1"``, ``"cpu:0"``, TensorFlow's names (``"/GPU:1"``,
            ``"/device:GPU:1"``), or a `tf.config.LogicalDevice`.

    Returns:
        What pins; it can be used again, and in several threads at once.

    Raises:
        PlacementError: PLACE-001 if this is no name of a device, PLACE-002 if it is one of
            hardware, PLACE-003 if there is no such device.

    Example:
        >>> import evener, keras
        >>> first = evener.pin("cpu:0")(keras.layers.Dense(64, activation="relu"))
        >>> with evener.pin("cpu:0"):
        ...     second = keras.layers.Dense(4)
        >>> model = keras.Sequential([keras.Input((8,)), first, second])
        >>> first.kernel.value.device
        '/job:localhost/replica:0/task:0/device:CPU:0'
    """
    locality.install()
    layers.install(innermost)
    losses.install()
    optimizers.install()
    return Pin(tf_name(device))


def innermost() -> str:
    """Return the device of the innermost pinned block of this thread, or an empty string."""
    return _entered.blocks[-1][0] if _entered.blocks else ""


class Pin:
    """Keeps work on one device. Made by `pin`.

    Args:
        tf_device: TensorFlow's name of the device.
    """

    def __init__(self, tf_device: str) -> None:
        self._device = tf_device

    @property
    def device(self) -> str:
        """The device, such as ``"gpu:1"``."""
        return short_name(self._device)

    def __repr__(self) -> str:
        return f"evener.pin({self.device!r})"

    def __enter__(self) -> Pin:
        stack = contextlib.ExitStack()
        stack.enter_context(on_device(self._device))
        _entered.blocks.append((self._device, stack))
        return self

    def __exit__(self, *exception: Any) -> None:
        device, stack = _entered.blocks.pop()
        stack.__exit__(*exception)
        if device != self._device:
            raise PlacementError(
                "PLACE-010",
                f"A block pinned to {self.device} was left before one inside, pinned to "
                f"{short_name(device)}.",
                why="Blocks of one thread are one inside the other, and work went to the device "
                "of the innermost. Tasks of asyncio, and generators that stop inside a block, "
                "mix theirs.",
                fix="Put no `await` and no `yield` inside of a pinned block.",
            )

    def __call__(self, what: T) -> T:
        """Pin a function, a Keras layer or a model.

        Raises:
            PlacementError: PLACE-004 if it is something else, PLACE-005 if a layer has
                variables elsewhere that are in use already.
        """
        if isinstance(what, keras.Layer):
            layers.pin_layer(what, self._device)
            return what
        given: Any = what
        if _runs_later(given):
            raise _cannot(given)
        if inspect.isroutine(given) or isinstance(given, functools.partial):
            return self._function(given)
        if _tf_private.is_traced_function(given):
            return self._function(given)
        raise _cannot(given)

    def _function(self, function: Any) -> Any:
        def pinned(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        # What a `tf.function` carries with it is not for another one.
        return _named_as(pinned, function)


def _named_as(pinned: Callable[..., Any], function: Any) -> Callable[..., Any]:
    return functools.update_wrapper(pinned, function, updated=())


def _runs_later(what: Any) -> bool:
    """Return whether a call of a function only begins it: the pin would have ended."""
    checks = (
        inspect.isgeneratorfunction,
        inspect.iscoroutinefunction,
        inspect.isasyncgenfunction,
    )
    return any(check(what) for check in checks)


def _cannot(what: Any) -> PlacementError:
    kind = type(what).__name__
    name = f"the class {what.__name__}" if isinstance(what, type) else f"a {kind}"
    why, fix = "Layers, models, functions and blocks can be.", "Pin a function that calls it."
    if isinstance(what, type):
        fix = f"Pin an object of it: evener.pin(device)({what.__name__}(...))."
    elif _runs_later(what):
        name = f"{getattr(what, '__qualname__', 'a function')!r}, a generator or a coroutine,"
        why = "Its body runs after the call has returned, when the pin has ended."
        fix = "Pin what computes inside it: with evener.pin(device): ..., around no yield or await."
    elif isinstance(what, keras.optimizers.Optimizer):
        why = "Its slots and updates follow the variables that it trains."
        fix = "Pin the layers whose variables it trains."
    elif isinstance(what, tf.Variable | tf.Tensor | keras.Variable):
        why = "It is on a device already."
        fix = "Make it inside `with evener.pin(device):`."
    return PlacementError("PLACE-004", f"{name} cannot be pinned.", why=why, fix=fix)
