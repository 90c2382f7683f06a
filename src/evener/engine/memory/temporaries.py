"""Temporaries: tensors that are in memory only while a task runs, and are not handed over.

The peak of a task is the node at which they have most bytes. It may be one node for few samples and
another for many: both are found.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from evener.engine.flops.sizes import shape_of
from evener.engine.partition.tasks import Task
from evener.graph.dims import BATCH, PartSymbol, Size, evaluate, symbols_of
from evener.graph.nodes import Tensor
from evener.ops.registry import IN_PLACE, VIEW, has_trait
from evener.ops.states import State

_FEW_AND_MANY = (1, 2**10)


class Temporary(NamedTuple):
    """Tensor that is only in memory during a task.

    Attributes:
        begin: Index in the task of the node that makes it.
        end: Index in the task of the last node that needs its memory.
        shape: Shape in the symbols of the step; ``b`` is the samples of the part.
        num_bytes: Bytes of one element.
    """

    begin: int
    end: int
    shape: tuple[Size, ...]
    num_bytes: int


def buffer_of(tensor: Tensor) -> Tensor:
    """Return the tensor whose memory a tensor shares: reshaping copies nothing."""
    while has_trait(tensor.node, VIEW) and tensor.dtype == tensor.node.inputs[0].dtype:
        tensor = tensor.node.inputs[0]
    return tensor


def temporaries(task: Task, states: Mapping[Tensor, State]) -> Iterator[tuple[int, Temporary]]:
    """Yield the indices of the nodes at the peaks of a task, each with all temporaries there.

    Args:
        task: Task of the parts.
        states: States of the tensors of the step.
    """
    found = list(_living(task, states))
    peaks = {_peak(found, samples) for samples in _FEW_AND_MANY} if found else set()
    for peak in sorted(peaks):
        for temporary in found:
            if temporary.begin <= peak <= temporary.end:
                yield peak, temporary


def _living(task: Task, states: Mapping[Tensor, State]) -> Iterator[Temporary]:
    handed_over = {buffer_of(tensor) for tensor in task.fetches}
    last: dict[Tensor, int] = {}
    for index, node in enumerate(task.nodes):
        for tensor in node.inputs:
            # The result reuses its memory.
            last[buffer_of(tensor)] = index - has_trait(node, IN_PLACE)
    for index, node in enumerate(task.nodes):
        for tensor in node.outputs:
            is_new = buffer_of(tensor) is tensor and tensor not in handed_over
            if not is_new or tensor.is_sizes or tensor.shape is None:
                continue
            if tensor.dtype == tf.variant:
                continue
            end = max(index, last.get(tensor, index))
            shape = shape_of(tensor, states.get(tensor)) or ()
            yield Temporary(index, end, shape, tensor.dtype.size)


def numbers_of(shape: Sequence[Size], samples: int, num_samples: int) -> dict[str, int]:
    """Return the numbers of the symbols in a shape; a size that the data alone decides is 1.

    Args:
        shape: Sizes, in the symbols of the step and of the parts.
        samples: Samples of the part.
        num_samples: Samples of the global batch.
    """
    values: dict[str, int] = {}
    for name in (name for size in shape for name in symbols_of(size)):
        if not isinstance(name, PartSymbol):
            values[name] = num_samples if name == "B" else 1
        elif name.rows == BATCH:
            values[name] = samples
        else:
            inner = numbers_of([name.rows], samples, num_samples)
            rows = int(evaluate(name.rows, inner))
            values[name] = -(-rows * samples // max(1, num_samples))
    return values


def _peak(found: list[Temporary], samples: int) -> int:
    """Return the index of the node at which temporaries have most bytes."""
    changes: list[tuple[int, int]] = []
    for temporary in found:
        shape = temporary.shape
        values = numbers_of(shape, samples, samples)
        num_bytes = temporary.num_bytes * math.prod(int(evaluate(size, values)) for size in shape)
        changes += [(temporary.begin, num_bytes), (temporary.end + 1, -num_bytes)]
    # At one node, ends come before begins.
    changes.sort()
    sums = itertools.accumulate(change for _, change in changes)
    return max(zip(sums, (index for index, _ in changes), strict=True))[1]
