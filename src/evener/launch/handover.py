"""Position in the output of a new chief that continues the output of the chief before.

All workers run the same program, so they print the same lines, but a worker may be a few lines
ahead of another. A line is printed twice rather than lost where it is not certain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """Lines of a new chief around the handover."""

    # Lines that it has printed already, and that have not been shown.
    missing: tuple[bytes, ...] = ()
    # Lines that have been shown, and that it is still going to print.
    expected: tuple[bytes, ...] = ()


def continuation(shown: Sequence[bytes], own: Sequence[bytes]) -> Continuation:
    """Return the lines around the handover.

    ``shown`` has the last lines that were shown, ``own`` those of the new chief.

    >>> continuation([b"a", b"b"], [b"a", b"b", b"c"]).missing
    (b'c',)
    >>> continuation([b"a", b"b"], [b"a"]).expected
    (b'b',)
    """
    if not shown:
        return Continuation(missing=tuple(own))
    if not own:
        return Continuation(expected=tuple(shown))
    ahead = _end_of(shown, own)
    if ahead is not None:
        return Continuation(missing=tuple(own[ahead:]))
    behind = _end_of(own, shown)
    if behind is not None:
        return Continuation(expected=tuple(shown[behind:]))
    return Continuation()


def _end_of(lines: Sequence[bytes], other: Sequence[bytes]) -> int | None:
    """Return the position behind the best match of the end of lines in other ones."""
    matches = [(_num_equal(lines, other[:end]), end) for end in range(1, len(other) + 1)]
    # The first of equally good ones: a line is rather printed twice than lost.
    longest, end = max(matches, key=lambda match: (match[0], -match[1]))
    return end if longest else None


def _num_equal(first: Sequence[bytes], second: Sequence[bytes]) -> int:
    """Return how many lines at the end of both are equal."""
    count = 0
    for line, other in zip(reversed(first), reversed(second), strict=False):
        if line != other:
            break
        count += 1
    return count
