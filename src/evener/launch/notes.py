"""Notes about a script while it runs: printed to standard error once, with the script's line."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from evener.launch.place import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A note about a script.

    Args:
        text: The text; continuation lines are indented.
        place: The script's line it refers to, or None.
    """

    text: str
    place: Place | None = None

    def __str__(self) -> str:
        return ": ".join(str(part) for part in ("evener", self.place, self.text) if part)


class Notes:
    """Prints notes to standard error; standard output is the script's."""

    def __init__(self) -> None:
        # A dict keeps the order.
        self._told: dict[Note, None] = {}

    def tell(self, text: str, place: Place | None = None) -> None:
        """Print a note, unless it was printed for the same line before."""
        note = Note(text=text, place=place)
        if note not in self._told:
            self._told[note] = None
            print(note, file=sys.stderr, flush=True)

    @property
    def told(self) -> tuple[Note, ...]:
        """All printed notes, in order."""
        return tuple(self._told)
