"""Definitions of nodes in TensorFlow's graphs: an order in which they can run, and their shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def in_order(by_name: Mapping[str, Any]) -> Iterator[Any]:
    """Yield definitions of nodes after what they read.

    The gradient of a loop adds inputs to operations that were there before them, so the order in
    which a graph was made is not enough.
    """
    done: set[str] = set()
    for first in by_name:
        if first in done:
            continue
        stack = [(first, False)]
        while stack:
            name, is_ready = stack.pop()
            if is_ready:
                yield by_name[name]
                continue
            if name in done:
                continue
            done.add(name)
            stack.append((name, True))
            for text in reversed(by_name[name].input):
                before = text.removeprefix("^").partition(":")[0]
                if before not in done:
                    stack.append((before, False))


def static_shape(proto: Any) -> tuple[int | None, ...] | None:
    """Return the sizes in a shape, None for each that is not known, and if the rank is not."""
    if proto.unknown_rank:
        return None
    return tuple(None if dim.size < 0 else dim.size for dim in proto.dim)
