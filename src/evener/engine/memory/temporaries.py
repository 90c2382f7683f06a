"""What is in memory only while a task runs: made in it, and not handed over.

The worst moment of a task is where most of it is there. For few samples and for many that may be
different moments: both are found.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from evener.engine.partition.tasks import Task
from evener.graph.dims import BATCH, PartSymbol, Size, evaluate, symbols_of
from evener.graph.nodes import Tensor
from evener.ops.registry import IN_PLACE, VIEW, has_trait
from evener.ops.states import Sharded, State, part_sizes

_FEW_AND_MANY = (1, 2**10)


class Temporary(NamedTuple):
    """A tensor that is only in memory during a task.

    Attributes:
        begin: The place of the node that makes it.
        end: The place of the last node that needs its memory.
        shape: With the symbols of the step; ``b`` is the samples of the part.
        num_bytes: Of one element.
    """

    begin: int
    end: int
    shape: tuple[Size, ...]
    num_bytes: int


def buffer_of(tensor: Tensor) -> Tensor:
    """Return the tensor whose memory a tensor is: what is only reshaped is not copied."""
    while has_trait(tensor.node, VIEW) and tensor.dtype == tensor.node.inputs[0].dtype:
        tensor = tensor.node.inputs[0]
    return tensor


def temporaries(task: Task, states: Mapping[Tensor, State]) -> Iterator[tuple[int, Temporary]]:
    """Yield the worst moments of a task, each with everything that is there then.

    Args:
        task: On every part.
        states: Of the tensors of the step.
    """
    found = list(_living(task, states))
    moments = {_worst(found, samples) for samples in _FEW_AND_MANY} if found else set()
    for moment in sorted(moments):
        for one in found:
            if one.begin <= moment <= one.end:
                yield moment, one


def _living(task: Task, states: Mapping[Tensor, State]) -> Iterator[Temporary]:
    handed_over = {buffer_of(tensor) for tensor in task.fetches}
    last: dict[Tensor, int] = {}
    for place, node in enumerate(task.nodes):
        for tensor in node.inputs:
            # The result takes its place.
            last[buffer_of(tensor)] = place - has_trait(node, IN_PLACE)
    for place, node in enumerate(task.nodes):
        for tensor in node.outputs:
            is_new = buffer_of(tensor) is tensor and tensor not in handed_over
            if not is_new or tensor.is_sizes or tensor.shape is None:
                continue
            if tensor.dtype == tf.variant:
                continue
            end = max(place, last.get(tensor, place))
            shape = shape_in_part(tensor, states.get(tensor))
            yield Temporary(place, end, shape, tensor.dtype.size)


def shape_in_part(tensor: Tensor, state: State | None) -> tuple[Size, ...]:
    """Return the shape that a tensor has in a part."""
    shape = tensor.shape or ()
    return part_sizes(shape, state) if isinstance(state, Sharded) else shape


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


def _worst(found: list[Temporary], samples: int) -> int:
    """Return the moment when most is there."""
    changes: list[tuple[int, int]] = []
    for one in found:
        values = numbers_of(one.shape, samples, samples)
        num_bytes = one.num_bytes * math.prod(int(evaluate(size, values)) for size in one.shape)
        changes += [(one.begin, num_bytes), (one.end + 1, -num_bytes)]
    # Of one moment, what ends comes first.
    changes.sort()
    sums = itertools.accumulate(change for _, change in changes)
    return max(zip(sums, (moment for moment, _ in changes), strict=True))[1]
