"""Gradient tapes: what they record, and how they compute gradients."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import backprop, imperative_grad, record
from tensorflow.python.eager import core as eager_core
from tensorflow.python.eager import execute as eager_execute
from tensorflow.python.ops import (
    default_gradient,
    gradients_util,
    while_v2,
)

from evener._tf_private.patches import Wrap

# Why: raised in place of an eager operation's fast way, it makes TensorFlow take the slower one,
# which records in Python. If it changes: eager operations under a tape and a device fail.
FallBack = eager_core._FallbackException


def tape_is_recording() -> bool:
    """Return whether any tape of this thread records now.

    Why: eager operations take their slower way only where a tape has to know their device.
    If it changes: eager gradients run on the first device.
    """
    return not pywrap_tfe.TFE_Py_TapeSetIsEmpty()


def replace_recording(
    *, record_gradient: Wrap, record_operation: Wrap, execute_fast: Wrap, begin_tape: Wrap
) -> None:
    """Replace the functions by which operations are recorded on tapes.

    Args:
        record_gradient: Wraps ``(op_name, inputs, attrs, outputs)``.
        record_operation: Wraps ``(op_type, output_tensors, input_tensors, backward_function)``.
        execute_fast: Wraps ``(context, op_name, name, *arguments)``, the fast way of eager
            operations, in C++.
        begin_tape: Wraps ``(tape)``, with which a `tf.GradientTape` begins to record.

    Why: a tape does not keep the device of an operation, and there is no public place to add it.
    If it changes: gradients run on the first device.
    """
    eager_execute.record_gradient = record_gradient(eager_execute.record_gradient)
    for name in ("record_operation", "record_operation_backprop_only"):
        setattr(record, name, record_operation(getattr(record, name)))
    kind: Any = tf.GradientTape
    kind._push_tape = begin_tape(kind._push_tape)
    pywrap_tfe.TFE_Py_FastPathExecute = execute_fast(pywrap_tfe.TFE_Py_FastPathExecute)


def replace_backward(
    *, gradient_function: Wrap, tape_gradient: Wrap, symbolic: Wrap, zeros_like: Wrap
) -> None:
    """Replace the functions that make gradients of recorded operations.

    Args:
        gradient_function: Wraps the one that tapes call for every operation.
        tape_gradient: Wraps ``(tape, target, sources, ...)``, a whole backward pass.
        symbolic: Wraps the context in which a graph's operation gets its gradient,
            ``(operation, gradient_uid, colocate)``: in `tf.gradients`, functions, branches, loops.
        zeros_like: Wraps ``(tensor, ...)``, with which the gradient of a variable in a loop begins.

    Why: as for `replace_recording`. If it changes: gradients run on the first device.
    """
    backprop._gradient_function = gradient_function(backprop._gradient_function)
    pywrap_tfe.TFE_Py_RegisterGradientFunction(backprop._gradient_function)
    imperative_grad.imperative_grad = tape_gradient(imperative_grad.imperative_grad)
    gradients_util._maybe_colocate_with = symbolic(gradients_util._maybe_colocate_with)
    default_gradient.zeros_like = zeros_like(default_gradient.zeros_like)
    while_v2._zeros_like = zeros_like(while_v2._zeros_like)


def replace_tape_arithmetic(*, aggregate: Wrap, fill: Wrap, num_elements: Wrap) -> None:
    """Replace how tapes sum gradients, and the zeros and ones that they fill in.

    Args:
        aggregate: Wraps ``(gradients)``, the sum of one tensor's gradients.
        fill: Wraps the functions that create zeros and ones.
        num_elements: Wraps ``(gradient)``, the number of its elements.

    Why: a tape does not say for which operation it adds and fills, and all of it would run on
    the first device. If it changes: the sums do.
    """
    space = backprop._default_vspace
    makers = ("zeros_fn", "ones_fn", "zeros_like_fn", "ones_like_fn")
    backprop._default_vspace = space._replace(
        aggregate_fn=aggregate(space.aggregate_fn),
        num_elements_fn=num_elements(space.num_elements_fn),
        **{name: fill(getattr(space, name)) for name in makers},
    )
    pywrap_tfe.TFE_Py_RegisterVSpace(backprop._default_vspace)
