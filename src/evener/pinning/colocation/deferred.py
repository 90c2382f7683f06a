"""Deferred gradients: sums and zeros that a tape makes before their device is known.

TensorFlow's tape adds up the gradients of a tensor, and fills in zeros for unused outputs, just
before it calls the gradient function of the operation that made the tensor. Only that function
knows the device. So a sum of terms from several devices, and zeros, are deferred until a gradient
function takes them:

    device 1   term, term --> partial sum --\
                                             DeferredGradient --> sum, on the device of the tensor
    device 2   term ------------------------/

Terms from one device are summed there at once: one tensor has to be copied instead of several.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from evener.pinning.colocation.device_lookup import device_of_gradient, device_scope


class DeferredGradient:
    """A gradient that is computed on the device of the code that takes it.

    Args:
        compute: Computes the gradient, a `tf.Tensor` or `tf.IndexedSlices` of the shape and dtype
            of the differentiated tensor, on the current device.
        num_elements: Number of elements of the gradient; 0 if unknown.
    """

    def __init__(self, compute: Callable[[], Any], num_elements: int = 0) -> None:
        self._compute = compute
        self.num_elements = num_elements

    def materialize(self) -> Any:
        """Compute the gradient on the current device."""
        return self._compute()

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> Any:
        """Convert to a tensor, for gradient functions that were recorded before `install`."""
        return tf.convert_to_tensor(self._compute(), dtype=dtype, name=name)


class BackwardPass(threading.local):
    """Whether the tape of this thread runs, outside of gradient functions."""

    is_running = False


backward_pass = BackwardPass()


def materialized(gradient: Any) -> Any:
    """Return a gradient, computed on the current device if it was deferred.

    Args:
        gradient: A `DeferredGradient`, a `tf.Tensor`, a `tf.IndexedSlices`, or None.
    """
    return gradient.materialize() if isinstance(gradient, DeferredGradient) else gradient


def aggregate(original: Callable[..., Any], gradients: Sequence[Any]) -> Any:
    """Sum the gradients of one tensor: those of each device on that device, the rest deferred.

    Args:
        original: TensorFlow's function.
        gradients: The terms, of one shape and dtype.

    Returns:
        The sum, of the shape and dtype of the terms, or a `DeferredGradient` of it.
    """
    if not backward_pass.is_running:
        return original([materialized(gradient) for gradient in gradients])
    size = max(num_elements_of(gradient) for gradient in gradients)
    terms = [materialized(gradient) for gradient in gradients]
    if any(isinstance(term, tf.IndexedSlices) for term in terms):
        # Slices are concatenated, not added: partial sums would save nothing.
        return DeferredGradient(lambda: original(terms), size)
    by_device: dict[str, list[Any]] = {}
    for term in terms:
        by_device.setdefault(device_of_gradient(term), []).append(term)
    # Terms of unknown device are added where the sum is computed.
    partial_sums = by_device.pop("", [])
    for device, local_terms in by_device.items():
        with device_scope(device):
            partial_sums.append(original(local_terms))
    if len(partial_sums) == 1:
        return partial_sums[0]
    return DeferredGradient(lambda: original(partial_sums), size)


def fill(original: Callable[..., Any], *args: Any) -> Any:
    """Defer the zeros or ones that a tape fills in for an output.

    Args:
        original: TensorFlow's function.
        *args: Its arguments: a tensor, or a shape and a dtype.
    """
    if not backward_pass.is_running:
        return original(*args)
    return DeferredGradient(lambda: original(*args))


def num_elements(original: Callable[..., Any], gradient: Any) -> int:
    """Return the number of elements of a gradient; TensorFlow sums large gradients early."""
    if isinstance(gradient, DeferredGradient):
        return gradient.num_elements
    return original(gradient)


def num_elements_of(gradient: Any) -> int:
    """Return the number of elements of a gradient, 0 if unknown."""
    if isinstance(gradient, DeferredGradient):
        return gradient.num_elements
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    return values.shape.num_elements() or 0
