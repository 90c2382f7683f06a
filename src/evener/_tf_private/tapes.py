"""Gradient tapes: what they record, and how they compute gradients; custom gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import backprop
from tensorflow.python.eager import core as eager_core

from evener._tf_private.patches import Patch, wrap_with

# Why: raised in place of an eager operation's fast way, it makes TensorFlow take the slower one,
# which records in Python. If it changes: eager operations under a tape and a device fail.
FallBack = eager_core._FallbackException


def tape_is_recording() -> bool:
    """Return whether any tape of this thread records now.

    Why: eager operations take their slower way only where a tape has to know their device.
    If it changes: eager gradients run on the first device.
    """
    return not pywrap_tfe.TFE_Py_TapeSetIsEmpty()


def _register_with_tapes() -> None:
    pywrap_tfe.TFE_Py_RegisterGradientFunction(backprop._gradient_function)
    pywrap_tfe.TFE_Py_RegisterVSpace(backprop._default_vspace)


_DEVICES = Patch(
    "devices of gradients",
    "tensorflow:GradientTape._push_tape",
    # (context, op_name, name, *arguments), in C++
    "tensorflow.python.pywrap_tfe:TFE_Py_FastPathExecute",
    # (op_name, inputs, attrs, outputs)
    "tensorflow.python.eager.execute:record_gradient",
    # (op_type, output_tensors, input_tensors, backward_function)
    "tensorflow.python.eager.record:record_operation",
    "tensorflow.python.eager.record:record_operation_backprop_only",
    # (tape, target, sources, ...)
    "tensorflow.python.eager.imperative_grad:imperative_grad",
    "tensorflow.python.eager.backprop:_gradient_function",
    "tensorflow.python.eager.backprop:_default_vspace",
    # The context in which an operation gets its gradient, in `tf.gradients`, functions, branches
    # and loops: (operation, gradient_uid, colocate)
    "tensorflow.python.ops.gradients_util:_maybe_colocate_with",
    "tensorflow.python.ops.default_gradient:zeros_like",
    "tensorflow.python.ops.while_v2:_zeros_like",
    why="A tape keeps no device of an operation, and does not say for which it adds and fills; "
    "there is no public place to add it.",
    if_it_changes="Gradients and their sums run on the first device.",
    changed=_register_with_tapes,
)


def place_gradients(
    replacements: Mapping[str, Callable[..., Any]], arithmetic: Mapping[str, Callable[..., Any]]
) -> None:
    """Replace what records and computes gradients. Safe to call again."""

    def wrap(original: Any, name: str) -> Any:
        if name != "_default_vspace":
            return wrap_with(replacements[name])(original)
        fields = {
            field: wrap_with(replacement)(getattr(original, field))
            for field, replacement in arithmetic.items()
        }
        return original._replace(**fields)

    _DEVICES.apply_by_name(wrap)


_VARIABLES = Patch(
    "variables of custom gradients",
    "tensorflow.python.ops.custom_gradient:frozenset",
    "tensorflow.python.ops.custom_gradient:sorted",
    why="`tf.custom_gradient` keeps the variables of a function in a set in the order of their "
    "addresses and sorts them by name, `dense_10` before `dense_9`: another order on every worker.",
    if_it_changes="Workers refuse steps with `tf.recompute_grad` or `keras.RematScope` (RUN-090).",
    is_new=True,
)


class _Ordered:
    """Set in the order in which its elements were added, with what `tf.custom_gradient` calls."""

    def __init__(self, elements: Iterable[Any] = ()) -> None:
        self._elements = dict.fromkeys(elements)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._elements)

    def union(self, other: Iterable[Any]) -> _Ordered:
        return _Ordered([*self, *other])


def keep_order_of_variables() -> None:
    """Let custom gradients take variables in the order in which they were made."""
    new = {"frozenset": _Ordered, "sorted": lambda elements, key: list(elements)}
    _VARIABLES.apply_by_name(lambda _, name: new[name])
