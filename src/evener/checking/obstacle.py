"""Reasons why a step cannot be checked, whatever its batches are."""

from __future__ import annotations

import tensorflow as tf

from evener.engine.partition.emit import PartitionedStep
from evener.engine.partition.xla import draws_numbers
from evener.engine.trace.step import TracedStep

LARGEST_VARIABLES = 1 << 30
"""Most bytes of variables that are copied to the host for a check."""


def find_obstacle(step: PartitionedStep, traced: TracedStep) -> str:
    """Return why a step cannot be checked, or an empty text."""
    layout = step.partition.layout
    if num_parts(step) < 2:
        return "the step has one part"
    if all(axis is None for axis in traced.batch_axes):
        return "the step has no batch"
    if traced.inference.num_samples is not None:
        return "the step was traced for batches of one size"
    if layout.batch_norm == "per_device":
        return "BatchNormalization by device is not that of one device"
    compiled = [function for function in step.functions if function.by_xla]
    if any(draws_numbers(node) for function in compiled for node in function.task.nodes):
        return "XLA draws other random numbers"
    if num_bytes(traced) > LARGEST_VARIABLES:
        return f"the variables of the step have {num_bytes(traced)} bytes"
    arguments = traced.graph.inputs[: len(traced.batch_axes)]
    if any(tensor.dtype in (tf.resource, tf.variant) for tensor in arguments):
        return "the step is given a resource"
    return ""


def num_parts(step: PartitionedStep) -> int:
    """Return the number of parts of a step."""
    return len(step.partition.layout.micro_batches)


def num_bytes(traced: TracedStep) -> int:
    """Return the bytes of all variables that a step uses."""
    variables = traced.concrete.graph.variables
    return sum((v.shape.num_elements() or 0) * v.dtype.size for v in variables)
