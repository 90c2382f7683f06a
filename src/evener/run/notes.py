"""Notes about a script while it runs: printed to standard error once, with the script's line."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from evener.run.user_line import UserLine


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A note about a script.

    Args:
        text: The text; continuation lines are indented.
        line: The script's line it refers to, or None.
    """

    text: str
    line: UserLine | None = None

    def __str__(self) -> str:
        return ": ".join(str(part) for part in ("evener", self.line, self.text) if part)


class Notes:
    """Prints notes to standard error; standard output is the script's."""

    def __init__(self) -> None:
        # A dict keeps the order.
        self._printed: dict[Note, None] = {}

    def add(self, text: str, line: UserLine | None = None) -> None:
        """Print a note, unless it was printed for the same line before."""
        note = Note(text=text, line=line)
        if note not in self._printed:
            self._printed[note] = None
            print(note, file=sys.stderr, flush=True)

    @property
    def printed(self) -> tuple[Note, ...]:
        """All printed notes, in order."""
        return tuple(self._printed)
