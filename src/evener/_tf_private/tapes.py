"""Gradient tapes: what they record, and how they compute gradients; custom gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import backprop
from tensorflow.python.eager import core as eager_core

from evener._tf_private.patches import Patch, Wrap

# Custom gradients: the order of the variables that they are taken of.

_IF_IT_CHANGES = "Workers refuse steps with `tf.recompute_grad` or `keras.RematScope` (RUN-090)."
_SETS = Patch(
    "sets of variables of custom gradients",
    "tensorflow.python.ops.custom_gradient:frozenset",
    why="`tf.custom_gradient` keeps the variables of a function in a set in the order of their "
    "addresses, so variables of one name have another order on every worker.",
    if_it_changes=_IF_IT_CHANGES,
    is_new=True,
)
_SORTED = Patch(
    "order of variables of custom gradients",
    "tensorflow.python.ops.custom_gradient:sorted",
    why="`tf.custom_gradient` sorts the variables of a function by name: `dense_10` comes before "
    "`dense_9`, so a worker that has made more layers before has another order.",
    if_it_changes=_IF_IT_CHANGES,
    is_new=True,
)


class _Ordered:
    """Set in the order in which its elements were added, with what `tf.custom_gradient` calls."""

    def __init__(self, elements: Iterable[Any] = ()) -> None:
        self._elements = dict.fromkeys(elements)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._elements)

    def union(self, other: Iterable[Any]) -> _Ordered:
        """Return the elements of both."""
        return _Ordered([*self, *other])


def keep_order_of_variables() -> None:
    """Let custom gradients take variables in the order in which they were made."""
    _SETS.apply(lambda _: _Ordered)
    _SORTED.apply(lambda _: lambda elements, key: list(elements))


# Gradient tapes: what they record, and how they compute gradients.

# Why: raised in place of an eager operation's fast way, it makes TensorFlow take the slower one,
# which records in Python. If it changes: eager operations under a tape and a device fail.
FallBack = eager_core._FallbackException


def tape_is_recording() -> bool:
    """Return whether any tape of this thread records now.

    Why: eager operations take their slower way only where a tape has to know their device.
    If it changes: eager gradients run on the first device.
    """
    return not pywrap_tfe.TFE_Py_TapeSetIsEmpty()


_WHY = "A tape does not keep the device of an operation, and there is no public place to add it."
_TAPES_IF_IT_CHANGES = "Gradients run on the first device."


def _patch(name: str, *targets: str, changed: Callable[[], object] | None = None) -> Patch:
    return Patch(name, *targets, why=_WHY, if_it_changes=_TAPES_IF_IT_CHANGES, changed=changed)


# (op_name, inputs, attrs, outputs)
RECORD_GRADIENT = _patch(
    "gradients that tapes record", "tensorflow.python.eager.execute:record_gradient"
)
# (op_type, output_tensors, input_tensors, backward_function)
RECORD_OPERATION = _patch(
    "operations that tapes record",
    "tensorflow.python.eager.record:record_operation",
    "tensorflow.python.eager.record:record_operation_backprop_only",
)
BEGIN_TAPE = _patch("tapes that begin", "tensorflow:GradientTape._push_tape")
# (context, op_name, name, *arguments), in C++
EXECUTE_FAST = _patch(
    "the fast way of eager operations", "tensorflow.python.pywrap_tfe:TFE_Py_FastPathExecute"
)
GRADIENT_FUNCTION = _patch(
    "gradients of single operations",
    "tensorflow.python.eager.backprop:_gradient_function",
    changed=lambda: pywrap_tfe.TFE_Py_RegisterGradientFunction(backprop._gradient_function),
)
# (tape, target, sources, ...)
TAPE_GRADIENT = _patch(
    "backward passes of tapes", "tensorflow.python.eager.imperative_grad:imperative_grad"
)
# The context in which an operation gets its gradient, in `tf.gradients`, functions, branches and
# loops: (operation, gradient_uid, colocate).
SYMBOLIC_GRADIENT = _patch(
    "gradients in graphs", "tensorflow.python.ops.gradients_util:_maybe_colocate_with"
)
ZEROS_LIKE = _patch(
    "gradients that begin in loops",
    "tensorflow.python.ops.default_gradient:zeros_like",
    "tensorflow.python.ops.while_v2:_zeros_like",
)
_ARITHMETIC = Patch(
    "sums of gradients",
    "tensorflow.python.eager.backprop:_default_vspace",
    why="A tape does not say for which operation it adds and fills, and all of it would run on the "
    "first device.",
    if_it_changes="The sums of gradients run on the first device.",
    changed=lambda: pywrap_tfe.TFE_Py_RegisterVSpace(backprop._default_vspace),
)


def replace_tape_arithmetic(*, aggregate: Wrap, fill: Wrap, num_elements: Wrap) -> None:
    """Replace the sums of gradients on tapes, and the zeros and ones that tapes fill in."""
    makers = ("zeros_fn", "ones_fn", "zeros_like_fn", "ones_like_fn")

    def wrap(space: Any) -> Any:
        return space._replace(
            aggregate_fn=aggregate(space.aggregate_fn),
            num_elements_fn=num_elements(space.num_elements_fn),
            **{name: fill(getattr(space, name)) for name in makers},
        )

    _ARITHMETIC.apply(wrap)
