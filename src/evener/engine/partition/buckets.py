"""Buckets of partial tensors, each combined across workers in one exchange."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from evener.graph.nodes import Graph, Node, Tensor

_BUCKET_BYTES = 4 << 20
"""Least bytes of partial tensors that are combined across workers in one exchange, if as many
are waited for together."""


def depths_of(graph: Graph) -> dict[Node, int]:
    """Return the numbers of operations that each node waits for, each after another."""
    depths: dict[Node, int] = {}
    for node in graph:
        before = (depths.get(tensor.node, 0) for tensor in node.inputs)
        depths[node] = 1 + max(before, default=0)
    return depths


def buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield tensors in buckets; each is exchanged as soon as its tensors are there."""
    bucket: list[Tensor] = []
    num_bytes = 0
    for tensor in tensors:
        bucket.append(tensor)
        sizes = tensor.shape or ()
        count = math.prod(size for size in sizes if isinstance(size, int))
        num_bytes += count * (tensor.dtype.size or 0)
        if num_bytes >= _BUCKET_BYTES:
            yield bucket
            bucket, num_bytes = [], 0
    if bucket:
        yield bucket
