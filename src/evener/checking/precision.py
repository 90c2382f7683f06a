"""Rounding of dtypes, and of the least precise dtype of a step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import tensorflow as tf

from evener.engine.trace.step import TracedStep
from evener.graph.nodes import Graph

ROUNDINGS = {
    tf.float64: 2.0**-53,
    tf.complex128: 2.0**-53,
    tf.float32: 2.0**-24,
    tf.complex64: 2.0**-24,
    tf.float16: 2.0**-11,
    tf.bfloat16: 2.0**-8,
}
"""Half the distance of two numbers near 1."""
_TENSOR_FLOAT_32 = 2.0**-11


def rounding_of(traced: TracedStep, devices: Iterable[str] = ()) -> float:
    """Return the rounding of the least precise arithmetic of a step.

    Args:
        traced: Step.
        devices: Devices of the step. GPUs multiply float32 matrices in TensorFloat-32, unless
            that is turned off.
    """
    found = set(_dtypes(traced.graph))
    halves = [ROUNDINGS[dtype] for dtype in (tf.bfloat16, tf.float16) if dtype in found]
    if any("GPU" in name.upper() for name in devices):
        if tf.config.experimental.tensor_float_32_execution_enabled():
            halves.append(_TENSOR_FLOAT_32)
    return max(halves, default=ROUNDINGS[tf.float32])


def _dtypes(graph: Graph) -> Iterator[tf.DType]:
    for node in graph:
        yield from (tensor.dtype for tensor in node.outputs)
        for body in node.bodies.values():
            yield from _dtypes(body)
