"""Work behind something that was gathered goes back to the parts.

What is computed once, of all samples, has its result on one device: a sort of the batch, a batch of
another data set joined to it, noise of 64 rows. A cheap operation that reads it is cheap there as
well. Where a costly one does, its rows are split over the parts::

    gathered, drawn, given     cheap        costly: split here      all behind it: on the parts
    [64, 100] on gpu:0     ->  ...      ->  matrix product       -> ...

Which tensors are split is a matter of speed: whatever is split is joined again where it is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import tensorflow as tf

from evener.graph.dims import Size, divide
from evener.graph.nodes import Node, Tensor
from evener.ops.registry import Trait, has_trait
from evener.ops.states import REPLICATED, Sharded, State, is_shardable

FEWEST_ROWS = 8
"""A known number of rows that is smaller is not split: there is next to nothing to compute."""
_LIST = "TensorListFromTensor"
"""Recurrent layers begin with a list of time steps, of which each has the samples."""
_DRAWS = ("Random", "StatelessRandom", "StatelessTruncated", "TruncatedNormal")


@dataclass(slots=True)
class Rows:
    """Finds which tensors that are computed once have rows to split.

    Attributes:
        sources: Sizes of the rows that a tensor may have come from.
    """

    sources: dict[Tensor, frozenset[Size]] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Iterable[Tensor]) -> Rows:
        """Return what is known before the first node: the rows of the arguments of a step."""
        rows = cls()
        for tensor in given:
            if tensor.shape and tensor.dtype not in (tf.resource, tf.variant):
                rows.sources[tensor] = frozenset({tensor.shape[0]})
        return rows

    def follow(self, node: Node) -> None:
        """Learn from which rows the results of a node come."""
        found: set[Size] = set()
        for tensor in node.inputs:
            found |= self.sources.get(tensor, frozenset())
        if node.op.startswith(_DRAWS):
            found |= {tensor.shape[0] for tensor in node.outputs if tensor.shape}
        if has_trait(node, Trait.OTHER_ROWS):
            found |= {tensor.shape[0] for tensor in node.outputs if found and tensor.shape}
        if found:
            self.sources |= dict.fromkeys(node.outputs, frozenset(found))

    def splits(self, node: Node, states: Sequence[State]) -> Iterator[list[State]]:
        """Yield states of the inputs of a costly node in which one is split."""
        if not has_trait(node, Trait.COSTLY):
            return
        for index, (tensor, state) in enumerate(zip(node.inputs, states, strict=True)):
            if state != REPLICATED or tensor.is_sizes or not tensor.dtype.is_floating:
                continue
            split = self._split(tensor, axis=int(node.op == _LIST))
            if split is not None:
                yield [split if k == index else given for k, given in enumerate(states)]

    def _split(self, tensor: Tensor, axis: int) -> Sharded | None:
        sources = self.sources.get(tensor)
        if sources is None or tensor.shape is None or len(tensor.shape) <= axis:
            return None
        size = tensor.shape[axis]
        if is_shardable(tensor.shape, Sharded(axis)):
            return Sharded(axis)
        # Nothing tells a number of rows from another number but where it comes from.
        if isinstance(size, int):
            is_of_rows = any(divide(size, rows) is not None for rows in sources)
            if size < FEWEST_ROWS or not is_of_rows:
                return None
        return Sharded(axis, 1, size)
