"""Values of constants of a traced step."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from evener.graph.nodes import Tensor


def constant_array(tensor: Tensor) -> np.ndarray | None:
    """Return the value of a constant, or of a slice of one; None for other tensors.

    The gradient of `tf.pad` cuts a column out of the paddings, which are a matrix.
    """
    node = tensor.node
    while node.op in ("Identity", "StopGradient"):
        node = node.inputs[0].node
    if node.op == "Slice":
        array = constant_array(node.inputs[0])
        begin, size = node.inputs[1].value, node.inputs[2].value
        numbers = [*(begin or ("",)), *(size or ("",))]
        if array is None or not all(isinstance(n, int) and n >= 0 for n in numbers):
            return None
        pairs = zip(begin or (), size or (), strict=True)
        return array[tuple(slice(first, first + count) for first, count in pairs)]
    return tf.make_ndarray(node.attrs["value"].tensor) if node.op == "Const" else None
