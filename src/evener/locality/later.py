"""What the tape makes before it is known where it belongs: sums, and zeros for what is unused.

TensorFlow's tape adds up the gradients of a tensor, and fills in zeros, just before it calls the
gradient of the operation that made the tensor. Only that one knows the device. So a sum of parts
from several devices, and zeros, are made `Later`, by who takes them:

    device 1   part, part --> their sum --\
                                           Later --> sum, on the device of the tensor
    device 2   part ----------------------/

Parts from one device are summed there at once: one tensor has to move instead of several.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from evener.locality.homes import home_of_gradient, on


class Later:
    """A gradient that is made where it is taken.

    Args:
        make: Makes it, on the device of now.
        num_elements: How many numbers it has, as far as known.
    """

    def __init__(self, make: Callable[[], Any], num_elements: int = 0) -> None:
        self._make = make
        self.num_elements = num_elements

    def now(self) -> Any:
        """Make it."""
        return self._make()

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> Any:
        """Be a tensor for gradients that were recorded before `install`."""
        return tf.convert_to_tensor(self._make(), dtype=dtype, name=name)


class Backward(threading.local):
    """Whether this thread is in the tape's own part of a backward pass."""

    running = False


backward = Backward()


def taken(gradient: Any) -> Any:
    """Return a gradient, made now if it was left for later."""
    return gradient.now() if isinstance(gradient, Later) else gradient


def aggregate(original: Callable[..., Any], gradients: Sequence[Any]) -> Any:
    """Sum the gradients of one tensor: the parts of each device there, the rest later."""
    if not backward.running:
        return original([taken(one) for one in gradients])
    size = max(num_elements_of(one) for one in gradients)
    parts = [taken(one) for one in gradients]
    if any(isinstance(one, tf.IndexedSlices) for one in parts):
        # Slices are joined, not added: nothing is saved by joining them in two steps.
        return Later(lambda: original(parts), size)
    by_device: dict[str, list[Any]] = {}
    for part in parts:
        by_device.setdefault(home_of_gradient(part), []).append(part)
    # What no device is known of is added where the sum belongs.
    terms = by_device.pop("", [])
    for device, some in by_device.items():
        with on(device):
            terms.append(original(some))
    if len(terms) == 1:
        return terms[0]
    return Later(lambda: original(terms), size)


def filled(original: Callable[..., Any], *args: Any) -> Any:
    """Make zeros or ones for an output later."""
    if not backward.running:
        return original(*args)
    return Later(lambda: original(*args))


def num_elements(original: Callable[..., Any], gradient: Any) -> int:
    """Return how many numbers a gradient has; TensorFlow sums early what is large."""
    return gradient.num_elements if isinstance(gradient, Later) else original(gradient)


def num_elements_of(gradient: Any) -> int:
    """Return how many numbers a gradient has, 0 if unknown."""
    if isinstance(gradient, Later):
        return gradient.num_elements
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    return values.shape.num_elements() or 0
