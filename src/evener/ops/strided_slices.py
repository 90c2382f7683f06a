"""Strided slices, read: the rows that they take of every axis."""

from __future__ import annotations

from dataclasses import dataclass

from evener.graph.dims import Dim, Size, divide, is_at_least
from evener.graph.nodes import Node
from evener.ops.registry import Shape


@dataclass(slots=True)
class TakenSlice:
    """Rows that a strided slice takes of one axis.

    Attributes:
        axis: The axis of the input.
        begin: The first row, or None if it is not known.
        stride: The step from row to row.
        length: Number of rows, or None if that is not known.
        is_index: Whether the axis vanishes.
        is_whole: Whether it takes all rows in their order.
    """

    axis: int
    begin: Size | None = None
    stride: int = 1
    length: Size | None = None
    is_index: bool = False
    is_whole: bool = False


def slices(node: Node, shape: Shape) -> list[TakenSlice | None] | None:
    """Return what a StridedSlice takes of every axis in order; None for a new axis of size 1."""
    begins, ends, strides = (t.value for t in node.inputs[1:4])
    if strides is None or (begins is None and ends is None):
        return None
    count = len(strides)
    begins = begins or (None,) * count
    ends = ends or (None,) * count
    if len(begins) != count or len(ends) != count:
        return None
    masks = {k: node.int_attr(f"{k}_mask") for k in ("begin", "end", "ellipsis", "new_axis")}
    shrink = node.int_attr("shrink_axis_mask")
    used = sum(not (masks["new_axis"] >> k & 1 or masks["ellipsis"] >> k & 1) for k in range(count))
    taken: list[TakenSlice | None] = []
    axis = 0
    for k in range(count):
        bit = 1 << k
        if masks["ellipsis"] & bit:
            for _ in range(len(shape) - used):
                taken.append(_whole(axis, shape))
                axis += 1
        elif masks["new_axis"] & bit:
            taken.append(None)
        else:
            if axis >= len(shape) or not isinstance(strides[k], int):
                return None
            taken.append(
                _taken(
                    axis,
                    shape[axis],
                    None if masks["begin"] & bit else (begins[k],),
                    None if masks["end"] & bit else (ends[k],),
                    int(strides[k]),  # pyright: ignore[reportArgumentType]
                    is_index=bool(shrink & bit),
                )
            )
            axis += 1
    while axis < len(shape):
        taken.append(_whole(axis, shape))
        axis += 1
    return taken


def _whole(axis: int, shape: Shape) -> TakenSlice:
    return TakenSlice(axis, begin=0, length=shape[axis], is_whole=True)


def _taken(
    axis: int,
    size: Size,
    begin: tuple[Size | None] | None,
    end: tuple[Size | None] | None,
    stride: int,
    *,
    is_index: bool,
) -> TakenSlice:
    found = TakenSlice(axis, stride=stride, is_index=is_index)
    if is_index:
        found.length = 1
        found.begin = None if begin is None else _from_front(begin[0], size)
        return found
    if begin is None and end is None and stride == 1:
        found.begin, found.length, found.is_whole = 0, size, True
        return found
    if stride == 1:
        start = 0 if begin is None else _from_front(begin[0], size)
        stop = size if end is None else _from_front(end[0], size)
        found.begin = start
        if start is not None and stop is not None:
            if isinstance(size, int):
                if isinstance(start, int) and isinstance(stop, int):
                    found.begin = min(max(start, 0), size)
                    found.length = max(0, min(max(stop, 0), size) - found.begin)
            elif _is_within(start, size) and _is_within(stop, size):
                length = stop - start
                # What ends before it begins has no rows.
                found.length = length if is_at_least(length, 0) else None
            found.is_whole = start == 0 and stop == size
        return found
    if isinstance(size, int):
        first = None if begin is None else begin[0]
        last = None if end is None else end[0]
        if not (first is None or isinstance(first, int)) or not (
            last is None or isinstance(last, int)
        ):
            return found
        span = range(size)[slice(first, last, stride)]
        found.length = len(span)
        found.begin = span.start
    return found


def _from_front(position: Size | None, size: Size) -> Size | None:
    if isinstance(position, int) and position < 0:
        return size + position
    return position


def _is_within(position: Size, size: Size) -> bool:
    """Return whether a position is in an axis of symbolic size for certain: not behind its end."""
    if position == 0 or position == size:
        return True
    # k*B of n*B rows.
    quotient = divide(position, size) if position != 0 else 0
    if isinstance(quotient, int):
        return 0 <= quotient <= 1
    inverse = divide(size, position)
    return (isinstance(inverse, int) and inverse >= 1) or _is_fraction(position, size)


def _is_fraction(position: Size, size: Size) -> bool:
    if not isinstance(position, Dim) or not isinstance(size, Dim):
        return False
    if len(position.terms) != 1 or len(size.terms) != 1:
        return False
    ((monomial, k),), ((other, n),) = position.terms.items(), size.terms.items()
    return monomial == other and 0 <= k <= n
