"""Devices of the gradient operations of a step, and those that their names ask for."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_callbacks  # noqa: TID251

import evener
from evener.auditing import Audit

# They hand on what others computed, ask for shapes, count the rounds of a loop, or keep what a
# loop or a branch has made.
_NO_WORK = re.compile(
    r"Const|Identity(N)?|NoOp|Shape(N)?|VariableShape|Switch|Merge|Enter|Exit|NextIteration|"
    r"LoopCond|_Arg|_Retval|Placeholder|ReadVariableOp|Less|LogicalAnd|EmptyTensorList|"
    r"TensorList\w*|Optional\w*|BroadcastGradientArgs|Reshape|StridedSlice|Rank|Range|Squeeze|"
    r"ExpandDims|ControlTrigger|Pack|__inference.*"
)
_PLACE = re.compile(r"at([12])")


@contextlib.contextmanager
def at(number: int) -> Iterator[None]:
    """Run on a device, in a name scope that tells which."""
    with tf.device(f"/CPU:{number}"), tf.name_scope(f"at{number}"):
        yield


def strayed(audit: Audit) -> list[str]:
    """Return the gradient operations that run elsewhere than the operations they belong to."""
    found = []
    for operation in working_gradients(audit):
        places = _PLACE.findall(operation.name)
        if places and operation.device != f"cpu:{places[-1]}":
            found.append(f"{operation.name} ({operation.type}) on {operation.device}")
    return found


def unnamed(audit: Audit, *, elsewhere: tuple[str, ...] = ("cpu:1", "cpu:2")) -> list[str]:
    """Return the gradient operations without a place in their name that are on no such device."""
    return [
        f"{o.name} ({o.type}) on {o.device}"
        for o in working_gradients(audit)
        if not _PLACE.search(o.name) and o.device not in elsewhere
    ]


def working_gradients(audit: Audit) -> list[evener.auditing.Operation]:
    return [
        o
        for o in audit.operations
        if ("gradient" in o.name or o.kind == "gradient")
        and not _NO_WORK.fullmatch(o.type)
        and not (o.type == "AddV2" and not _PLACE.search(o.name))
    ]


def eager_devices(call: Callable[[], Any]) -> tuple[Any, set[str]]:
    """Return what a call returns, and the devices on which its eager operations computed."""
    devices: set[str] = set()

    def watch(
        op_type: str, inputs: Any, attrs: Any, outputs: Any, op_name: Any = None, graph: Any = None
    ) -> None:
        del inputs, attrs, op_name
        if graph is None and not _NO_WORK.fullmatch(tf.compat.as_str(op_type)):
            devices.update(o.device[-5:].lower() for o in outputs if o.dtype.is_floating)

    op_callbacks.add_op_callback(watch)
    try:
        result = call()
    finally:
        op_callbacks.remove_op_callback(watch)
    return result, devices


def values(gradients: Any) -> list[Any]:
    return [None if g is None else tf.convert_to_tensor(g).numpy() for g in gradients]
