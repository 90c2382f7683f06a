"""Gradients, gradient sums and updates on the device of the tensor or variable they belong to.

device_lookup.py   the device of an operation, a tensor, a gradient
largest_input.py   operations on the device of their largest input, as optimizers need it
tape_recording.py  a tape records the requested device of every forward operation
backward.py        the gradient of an operation runs on that device
deferred.py        gradients that a tape makes before their device is known
pinned_layers.py   the device that a Keras layer is pinned to
wrapping.py        wraps a function of TensorFlow or Keras
install.py         installs the wrappers, once per process
"""

from evener.pinning.colocation.install import install, records_devices
from evener.pinning.colocation.largest_input import colocate_with_largest_input, no_colocation

__all__ = ["colocate_with_largest_input", "install", "no_colocation", "records_devices"]
