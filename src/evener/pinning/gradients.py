r"""Gradients, and their sums, on the devices of their forward operations.

A tape keeps only what the gradient of an operation needs: the inputs of a `MatMul`, the output
of a `Relu`, nothing of an `Identity`. None of these tells where the operation ran. So its device
is appended to the attributes that the tape keeps for it, and taken off when its gradient is made:

    forward     MatMul  ("T", float32, ...)  -->  ("T", float32, ..., "_evener_device", "/gpu:1")
    backward    with tf.device("/gpu:1"):  the gradient function of MatMul  <--  ("T", float32, ...)

In a graph, Python records every operation and can append it. Eagerly, TensorFlow runs and records
an operation in one C++ call; while a tape records under a `tf.device`, that call is replaced by
TensorFlow's own slower path, which records in Python.

The tape adds up the gradients of a tensor, and fills in zeros for unused outputs, just before it
calls the gradient function of the operation that made the tensor. Only that function knows the
device. So a sum of terms from several devices, and zeros, are deferred until it takes them:

    device 1   term, term --> partial sum --\
                                             DeferredGradient --> sum, on the device of the tensor
    device 2   term ------------------------/

Terms from one device are summed there at once: one tensor has to be copied instead of several.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from evener._tf_private import tapes
from evener._tf_private.tensors import explicit_device, in_xla
from evener.errors import PlacementError
from evener.pinning import placement

_DEVICE = "_evener_device"
_RECORDS_DEVICES = "_evener_records_devices"


@tf.autograph.experimental.do_not_convert
def pinned_gradients(
    target: Any,
    sources: Any,
    output_gradients: Any = None,
    *,
    tape: tf.GradientTape | None = None,
    unconnected_gradients: tf.UnconnectedGradients = tf.UnconnectedGradients.NONE,
) -> Any:
    """Return gradients, each computed on the device of its forward operation.

    After a call of `evener.pin`, every `tf.GradientTape` places gradients so by itself. This
    function is for loops that do not use it, and for graphs without a tape.

    Args:
        target: The tensor to differentiate, or a nest of tensors, of any shape and a floating or
            complex dtype.
        sources: Variables or tensors, or a nest of them, of such dtypes.
        output_gradients: A gradient for each target, of its shape and dtype; ones by default.
        tape: The tape that recorded the target. Without one, the gradients are those of
            `tf.gradients`, which works inside a `tf.function` only.
        unconnected_gradients: The value for sources that the target does not depend on: None, or
            zeros.

    Returns:
        A gradient for each source, of its shape and dtype, in the structure of the sources.

    Raises:
        PlacementError: PLACE-007 if there is no tape and no graph, PLACE-008 if the tape started
            before evener was imported.

    Example:
        >>> import evener, tensorflow as tf
        >>> with tf.device("cpu:0"):
        ...     weight = tf.Variable(2.0)
        >>> with tf.GradientTape() as tape:
        ...     with tf.device("cpu:0"):
        ...         loss = weight * weight
        >>> float(evener.pinned_gradients(loss, weight, tape=tape))
        4.0
    """
    if tape is not None:
        if not getattr(tape, _RECORDS_DEVICES, False):
            raise PlacementError(
                "PLACE-008",
                "The tape started before evener could record the devices of operations.",
                why="A tape records the device of an operation when the operation runs. This tape "
                "started before pinned_gradients was imported.",
                fix="Write `from evener import pinned_gradients` at the top of the program.",
            )
        return tape.gradient(target, sources, output_gradients, unconnected_gradients)
    if tf.executing_eagerly():
        raise PlacementError(
            "PLACE-007",
            "pinned_gradients was called eagerly without a tape.",
            why="In eager execution, only a tape records how the target was computed.",
            fix="Pass tape=..., the tf.GradientTape of the forward pass, or call this in a "
            "tf.function.",
        )
    gradients = tf.gradients(
        tf.nest.flatten(target),
        [s.value if isinstance(s, keras.Variable) else s for s in tf.nest.flatten(sources)],
        None if output_gradients is None else tf.nest.flatten(output_gradients),
        unconnected_gradients=unconnected_gradients,
    )
    return tf.nest.pack_sequence_as(sources, gradients)


def install() -> None:
    """Let every tape and graph compute gradients where it computed forward. Safe to call again."""
    tapes.place_gradients(
        {
            "_push_tape": _begin_tape,
            "TFE_Py_FastPathExecute": _execute_fast,
            "record_gradient": _record_gradient,
            "record_operation": _record_operation,
            "record_operation_backprop_only": _record_operation,
            "imperative_grad": _run_tape,
            "_gradient_function": _compute_gradient,
            "_maybe_colocate_with": _symbolic_scope,
            "zeros_like": _zeros_like,
            "_zeros_like": _zeros_like,
        },
        {
            "aggregate_fn": _aggregate,
            "num_elements_fn": _num_elements,
            **dict.fromkeys(("zeros_fn", "ones_fn", "zeros_like_fn", "ones_like_fn"), _fill),
        },
    )


# The forward pass: what a tape records.


def _begin_tape(original: Callable[..., Any], tape: Any) -> Any:
    setattr(tape, _RECORDS_DEVICES, True)
    return original(tape)


def _execute_fast(
    original: Callable[..., Any], context: Any, op_name: str, name: str | None, *arguments: Any
) -> Any:
    """Run an eager operation; on the slower path if a tape has to record its device."""
    if context.device_name is not None and tapes.tape_is_recording():
        raise tapes.FallBack
    device = "" if context.device_name is not None else placement.eager_device(arguments)
    if not device:
        # Nearly always, so not by way of an empty context.
        return original(context, op_name, name, *arguments)
    with tf.device(device):
        return original(context, op_name, name, *arguments)


def _record_gradient(
    original: Callable[..., Any], op_name: str, inputs: Any, attrs: Any, outputs: Any
) -> None:
    device = _requested_device(outputs)
    if device:
        attrs = (*(attrs or ()), _DEVICE, device)
    original(op_name, inputs, attrs, outputs)


def _record_operation(
    original: Callable[..., Any],
    op_type: str,
    output_tensors: Any,
    input_tensors: Any,
    backward_function: Callable[..., Any],
    *more: Any,
    **options: Any,
) -> None:
    """Record a call with its own gradient function: a `tf.function`, a `tf.custom_gradient`."""
    if op_type == "ReadVariableOp":
        # The gradients of all reads of a variable are summed on its device.
        device = placement.device_of_tensor(input_tensors[0])
    else:
        device = _requested_device(output_tensors)

    def run_on_device(*output_gradients: Any) -> Any:
        with _tape_runs(False), placement.device_scope(device):
            return backward_function(*[_materialize(gradient) for gradient in output_gradients])

    original(op_type, output_tensors, input_tensors, run_on_device, *more, **options)


def _requested_device(outputs: Any) -> str:
    if tf.executing_eagerly():
        return explicit_device()
    for value in outputs if isinstance(outputs, list | tuple) else [outputs]:
        operation = value if isinstance(value, tf.Operation) else getattr(value, "op", None)
        if operation is not None:
            return placement.device_of_operation(operation)
    return ""


# The backward pass of a tape. Between gradient functions it makes deferred gradients.


class _BackwardPass(threading.local):
    # Whether the tape of this thread runs, outside of gradient functions.
    is_running = False


_backward_pass = _BackwardPass()


@contextlib.contextmanager
def _tape_runs(is_running: bool) -> Iterator[None]:
    before, _backward_pass.is_running = _backward_pass.is_running, is_running
    try:
        yield
    finally:
        _backward_pass.is_running = before


@dataclass(frozen=True, slots=True, eq=False)
class DeferredGradient:
    """A gradient, a tensor or slices, that is computed on the device of the code that takes it."""

    compute: Callable[[], Any]
    num_elements: int = 0  # 0 if unknown

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> Any:
        # For gradient functions that were recorded before `install`.
        return tf.convert_to_tensor(self.compute(), dtype=dtype, name=name)


def _materialize(gradient: Any) -> Any:
    return gradient.compute() if isinstance(gradient, DeferredGradient) else gradient


def _run_tape(
    original: Callable[..., Any], tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any
) -> list[Any]:
    """Run the backward pass of a tape; the gradient of a source is summed on its device."""
    with _tape_runs(True):
        gradients = original(tape, target, sources, *args, **kwargs)
    for index, source in enumerate(sources):
        if isinstance(gradients[index], DeferredGradient):
            with placement.device_scope(placement.device_of_tensor(source)):
                gradients[index] = gradients[index].compute()
    return gradients


def _compute_gradient(original: Callable[..., Any], op_name: str, attrs: Any, *values: Any) -> Any:
    """Call the gradient function of an operation, on the device that is among its attributes."""
    device = ""
    if attrs and len(attrs) >= 2 and attrs[-2] == _DEVICE:
        device, attrs = attrs[-1], attrs[:-2]
    num_inputs, inputs, outputs, output_gradients, *more = values
    with _tape_runs(False), placement.device_scope(device):
        computed = [_materialize(gradient) for gradient in output_gradients]
        return original(op_name, attrs, num_inputs, inputs, outputs, computed, *more)


def _aggregate(original: Callable[..., Any], gradients: Sequence[Any]) -> Any:
    """Sum the gradients of one tensor: those of each device on that device, the rest deferred."""
    if not _backward_pass.is_running:
        return original([_materialize(gradient) for gradient in gradients])
    size = max(_known_size(gradient) for gradient in gradients)
    terms = [_materialize(gradient) for gradient in gradients]
    if any(isinstance(term, tf.IndexedSlices) for term in terms):
        # Slices are concatenated, not added: partial sums would save nothing.
        return DeferredGradient(lambda: original(terms), size)
    by_device: dict[str, list[Any]] = {}
    for term in terms:
        by_device.setdefault(placement.device_of_tensor(term), []).append(term)
    # Terms of unknown device are added where the sum is computed.
    partial_sums = by_device.pop("", [])
    for device, local_terms in by_device.items():
        with placement.device_scope(device):
            partial_sums.append(original(local_terms))
    if len(partial_sums) == 1:
        return partial_sums[0]
    return DeferredGradient(lambda: original(partial_sums), size)


def _known_size(gradient: Any) -> int:
    if isinstance(gradient, DeferredGradient):
        return gradient.num_elements
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    return values.shape.num_elements() or 0


def _fill(original: Callable[..., Any], *args: Any) -> Any:
    """Defer the zeros or ones that a tape fills in for an output."""
    if not _backward_pass.is_running:
        return original(*args)
    return DeferredGradient(lambda: original(*args))


def _num_elements(original: Callable[..., Any], gradient: Any) -> int:
    """Return the number of elements of a gradient; TensorFlow sums large gradients early."""
    if isinstance(gradient, DeferredGradient):
        return gradient.num_elements
    return original(gradient)


# Gradients in a graph: `tf.gradients`, functions, conditions and loops.


def _symbolic_scope(
    original: Callable[..., Any], operation: tf.Operation, uid: Any, colocate: bool
) -> Any:
    device = placement.device_of_operation(operation)
    if not device and not placement.calls_functions(operation):
        return original(operation, uid, colocate)
    # Colocation with a call would override the devices of the operations inside.
    return placement.device_scope(device)


def _zeros_like(original: Callable[..., Any], tensor: Any, *more: Any) -> Any:
    device = ""
    if not tf.executing_eagerly() and isinstance(tensor, tf.Tensor):
        device = placement.device_of_tensor(tensor)
        if device and in_xla(tensor.graph):
            device = ""
    with placement.device_scope(device):
        return original(tensor, *more)
