"""A recursion-safe memo: results that may depend on each other are each computed once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


class RecursionSafeMemo(Generic[Key, Result]):
    """Memoizes results, and ends recursion.

    A result that depends on one being computed uses the empty result instead, since the outermost
    computation collects all of them. Such a provisional result is kept only until the outermost
    computation ends.

    Args:
        empty: The result in a recursion, and beyond the greatest depth.
        deepest: Largest number of nested computations.
    """

    def __init__(self, empty: Result, *, deepest: int) -> None:
        self._empty = empty
        self._deepest = deepest
        self._done: dict[Key, Result] = {}
        self._provisional: dict[Key, tuple[Result, int]] = {}
        self._open: dict[Key, int] = {}
        # The depth of the outermost open computation that an inner one has asked for.
        self._outermost = deepest + 1

    def get(self, key: Key, compute: Callable[[], Result]) -> Result:
        """Return the result of a key, computed only if it is not known.

        Args:
            key: The key.
            compute: Computes the result; it may call this method.
        """
        if key in self._done:
            return self._done[key]
        if key in self._provisional:
            result, reaches = self._provisional[key]
            self._outermost = min(self._outermost, reaches)
            return result
        if key in self._open:
            self._outermost = min(self._outermost, self._open[key])
            return self._empty
        depth = len(self._open)
        if depth >= self._deepest:
            return self._empty
        self._open[key] = depth
        before, self._outermost = self._outermost, self._deepest + 1
        try:
            result = compute()
        finally:
            del self._open[key]
            reaches, self._outermost = self._outermost, min(before, self._outermost)
        if reaches >= depth:
            self._done[key] = result
            # Provisional results that waited for this one are computed again.
            self._provisional = {k: v for k, v in self._provisional.items() if v[1] < depth}
            self._outermost = before
        else:
            self._provisional[key] = (result, reaches)
        return result
