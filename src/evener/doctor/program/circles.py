"""Answers that may ask for each other in circles, each computed once where that is right."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Answer = TypeVar("Answer")


class Circles(Generic[Key, Answer]):
    """Keeps answers, and ends circles.

    An answer that needs one that is being looked for gets nothing of it: who asked first
    collects all. Such an answer holds only until then, and is not kept for good.

    Args:
        nothing: What is answered in a circle, and too deep.
        deepest: How many questions may be open at once.
    """

    def __init__(self, nothing: Answer, *, deepest: int) -> None:
        self._nothing = nothing
        self._deepest = deepest
        self._known: dict[Key, Answer] = {}
        self._for_now: dict[Key, tuple[Answer, int]] = {}
        self._open: dict[Key, int] = {}
        # The outermost open question that somebody inside has asked for again.
        self._outermost = deepest + 1

    def answer(self, key: Key, look: Callable[[], Answer]) -> Answer:
        """Return the answer to a question, looked for only if it is not known.

        Args:
            key: The question.
            look: Finds the answer; it may ask here again.
        """
        if key in self._known:
            return self._known[key]
        if key in self._for_now:
            answer, reaches = self._for_now[key]
            self._outermost = min(self._outermost, reaches)
            return answer
        if key in self._open:
            self._outermost = min(self._outermost, self._open[key])
            return self._nothing
        depth = len(self._open)
        if depth >= self._deepest:
            return self._nothing
        self._open[key] = depth
        before, self._outermost = self._outermost, self._deepest + 1
        try:
            answer = look()
        finally:
            del self._open[key]
            reaches, self._outermost = self._outermost, min(before, self._outermost)
        if reaches >= depth:
            self._known[key] = answer
            # What waited for this answer alone is looked for anew when it is asked for.
            self._for_now = {k: v for k, v in self._for_now.items() if v[1] < depth}
            self._outermost = before
        else:
            self._for_now[key] = (answer, reaches)
        return answer
