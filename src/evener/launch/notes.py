"""What is said about a script while it runs: each thing once, with the line it is about."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from evener.launch.place import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One thing that was said.

    Args:
        text: What; further lines are indented already.
        place: The script's line it is about; None if it is about no line.
    """

    text: str
    place: Place | None = None

    def __str__(self) -> str:
        return ": ".join(str(part) for part in ("evener", self.place, self.text) if part)


class Notes:
    """Tells notes on standard error, which the script does not write its results to."""

    def __init__(self) -> None:
        # A dict for its order.
        self._told: dict[Note, None] = {}

    def tell(self, text: str, place: Place | None = None) -> None:
        """Say something, unless it was said about the same line before."""
        note = Note(text=text, place=place)
        if note not in self._told:
            self._told[note] = None
            print(note, file=sys.stderr, flush=True)

    @property
    def told(self) -> tuple[Note, ...]:
        """All that was said, in order."""
        return tuple(self._told)
