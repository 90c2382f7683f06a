"""The device of a name, of a block, of a tensor and of an operation.

Pins, layers and gradients ask here. In eager execution the device is known at once: it is that of
the enclosing `tf.device`, or that of an eager tensor. In a graph an operation often names none, and
its device is read from its variable, or from the outer graph.

An empty string means that no device was requested. TensorFlow then chooses one, the same for an
operation and its gradient.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from evener._tf_private.graphs import outer_tensor
from evener._tf_private.tensors import in_xla, is_eager_tensor
from evener.devices.machine import runtime_initialised
from evener.devices.names import device_name, tf_device
from evener.errors import PlacementError, did_you_mean

_NAME = re.compile(r"(?:/job:localhost/replica:0/task:0)?/?(?:device:)?([A-Za-z_]+):(\d+)")
# Their variables may live on several devices, and the operations inside have their own devices.
_CALLS = frozenset(
    {
        "Case",
        "If",
        "PartitionedCall",
        "StatefulPartitionedCall",
        "StatelessCase",
        "StatelessIf",
        "StatelessWhile",
        "While",
        "XlaLaunch",
    }
)
# A variable's handle outweighs every value: the update runs on the device of the variable.
_HANDLE_SIZE = 2**62

_existing: set[str] = set()


class _ThisThread(threading.local):
    def __init__(self) -> None:
        # Pinned blocks, the innermost one last: the device, and the context that its end leaves.
        self.pinned_blocks: list[tuple[str, contextlib.ExitStack]] = []
        # Whether eager operations are placed by their largest input.
        self.is_colocating = False
        # Whether a step is traced whose operations are placed elsewhere.
        self.is_paused = False


this_thread = _ThisThread()


# Names, and blocks.


def tf_name(device: Any) -> str:
    """Return TensorFlow's name of a device, ``"/device:GPU:1"``; see `evener.pin` for errors."""
    text = getattr(device, "name", device)
    if isinstance(text, str) and "physical_device" in text:
        raise PlacementError(
            "PLACE-002",
            f"{text!r} names a physical device; operations are placed on logical devices.",
            why="TensorFlow can split a physical device into several logical devices.",
            fix="Use the name of a logical device from tf.config.list_logical_devices(): "
            f"{device_name(text.replace('physical_device', 'device'))!r}.",
        )
    match = _NAME.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise PlacementError(
            "PLACE-001",
            f"{device!r} is not the name of one device.",
            why="A device name consists of a type and a number.",
            fix="Write for example 'gpu:1' or 'cpu:0', or give a tf.config.LogicalDevice.",
        )
    name = tf_device(f"{match[1]}:{int(match[2])}")
    if runtime_initialised(tf):
        check_device_exists(name)
    return name


def check_device_exists(name: str) -> None:
    """Raise PLACE-003 for a device that does not exist; TensorFlow would silently use another."""
    existing = [device_name(device.name) for device in tf.config.list_logical_devices()]
    if device_name(name) not in existing:
        raise PlacementError(
            "PLACE-003",
            f"There is no device {device_name(name)!r}.{did_you_mean(device_name(name), existing)}",
            why=f"TensorFlow has {', '.join(existing)}.",
            fix="Use one of these. `evener devices` shows why a GPU is not among them.",
        )


def on_device(device: str) -> Any:
    """Return `tf.device` after checks that it will be used; for an empty string, no change."""
    if not device:
        return contextlib.nullcontext()
    if device not in _existing:
        check_device_exists(device)
        _existing.add(device)
    if is_tracing_for_xla():
        raise PlacementError(
            "PLACE-006",
            f"A layer or block is pinned to {device_name(device)} in a function that XLA compiles.",
            why="XLA compiles a function for one device, and ignores or rejects others inside.",
            fix="Remove jit_compile=True from this tf.function or from `compile`, or pin the whole "
            "compiled function from outside.",
        )
    return tf.device(device)


def device_scope(device: str) -> contextlib.AbstractContextManager[Any]:
    """Return `tf.device` without checks; for an empty string, no change."""
    return tf.device(device) if device else contextlib.nullcontext()


def is_tracing_for_xla() -> bool:
    if tf.executing_eagerly():
        return False
    return in_xla(tf.compat.v1.get_default_graph())


# Tensors and operations.


def device_of_tensor(tensor: Any) -> str:
    if tensor.device:
        return tensor.device  # An eager tensor always has one.
    if tensor.op.type == "ReadVariableOp":
        # The value of a variable is on its device, even if the read names none.
        return device_of_tensor(tensor.op.inputs[0])
    if tensor.op.type not in ("Const", "Placeholder"):
        return ""
    # A captured tensor is on its device in the outer graph.
    outer = outer_tensor(tensor)
    return "" if outer is None else device_of_tensor(outer)


def device_of_operation(operation: tf.Operation) -> str:
    device = operation.device
    if not device and operation.type == "Placeholder":
        # The gradient of a captured variable in a loop is summed on the variable's device.
        device = device_of_tensor(operation.outputs[0])
    elif not device and not calls_functions(operation):
        # An operation on a variable runs on the device of the variable.
        handles = [tensor for tensor in operation.inputs if tensor.dtype == tf.resource]
        device = device_of_tensor(handles[0]) if handles else ""
    # XLA compiles a function for a single device.
    return "" if device and in_xla(operation.graph) else device


def calls_functions(operation: tf.Operation) -> bool:
    return operation.type in _CALLS


# The largest input. An optimizer clips, unscales, averages and accumulates without naming a device,
# and TensorFlow would place all of these operations on the first one.


@contextlib.contextmanager
def colocate_with_largest_input() -> Iterator[None]:
    """Place operations on the device of their largest input, where no device is requested."""
    if this_thread.is_paused:
        yield
    elif tf.executing_eagerly():
        # `eager_device` is asked before each operation.
        before, this_thread.is_colocating = this_thread.is_colocating, True
        try:
            yield
        finally:
            this_thread.is_colocating = before
    else:
        # `tf.device` takes no function; its predecessor does, in graphs. An inner `tf.device` is
        # applied first.
        with tf.compat.v1.device(lambda op: op.device or _device_of_largest(op.inputs)):
            yield


@contextlib.contextmanager
def no_colocation() -> Iterator[None]:
    """Let `colocate_with_largest_input` do nothing: a partitioned step places its operations."""
    before, this_thread.is_paused = this_thread.is_paused, True
    try:
        yield
    finally:
        this_thread.is_paused = before


def eager_device(arguments: Iterable[Any]) -> str:
    """Return the device for an eager operation of these inputs and attributes, or ``""``."""
    if not this_thread.is_colocating:
        return ""
    tensors: list[Any] = []
    for argument in arguments:
        for value in argument if isinstance(argument, list | tuple) else [argument]:
            tensor = value.handle if isinstance(value, tf.Variable) else value
            if is_eager_tensor(tensor):
                tensors.append(tensor)
    return _device_of_largest(tensors)


def _device_of_largest(tensors: Iterable[Any]) -> str:
    largest, result = -1, ""
    for tensor in tensors:
        device = device_of_tensor(tensor)
        if not device:
            continue
        size = _HANDLE_SIZE if tensor.dtype == tf.resource else (tensor.shape.num_elements() or 0)
        if size > largest:
            largest, result = size, device
    return result
