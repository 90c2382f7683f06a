"""Conditions on sizes whose answer is the same in every step."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from evener.graph.nodes import Tensor, constant_array

_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "Equal": operator.eq,
    "NotEqual": operator.ne,
    "Greater": operator.gt,
    "GreaterEqual": operator.ge,
    "Less": operator.lt,
    "LessEqual": operator.le,
}


def truth_of(tensor: Tensor) -> bool | None:
    """Return whether a condition holds, or None if it is not known before the step runs."""
    if tensor.node.op in ("Identity", "StopGradient"):
        return truth_of(tensor.node.inputs[0])
    if tensor.node.op == "Const":
        array = constant_array(tensor)
        return bool(array) if array is not None and array.shape == () else None
    if tensor.node.op in ("LogicalAnd", "LogicalOr", "LogicalNot"):
        return _combined(tensor.node.op, [truth_of(t) for t in tensor.node.inputs])
    compared = _COMPARED.get(tensor.node.op)
    if compared is None:
        return None
    values = [t.value for t in tensor.node.inputs]
    if any(v is None or len(v) != 1 or not isinstance(v[0], int) for v in values):
        return None
    (a,), (b,) = (v for v in values if v is not None)
    return compared(a, b)


def _combined(op: str, parts: list[bool | None]) -> bool | None:
    if op == "LogicalNot":
        return None if parts[0] is None else not parts[0]
    # One answer decides, whatever the other is.
    decides = op == "LogicalOr"
    if decides in parts:
        return decides
    return None if None in parts else not decides
