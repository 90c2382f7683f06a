"""Notes about a script while it runs: printed to standard error once, with the script's line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evener.devices.names import qualified_name, without_worker
from evener.run.user_line import UserLine

if TYPE_CHECKING:
    from evener.strategy import Strategy


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
        # How often the script, eagerly, has asked for another device than the first by itself.
        self.num_placed = 0
        # A dict keeps the order.
        self._printed: dict[Note, None] = {}

    def add(self, text: str, line: UserLine | None = None) -> None:
        """Print a note, unless it was printed for the same line before."""
        note = Note(text=text, line=line)
        if note not in self._printed:
            self._printed[note] = None
            print(note, file=sys.stderr, flush=True)

    def add_unpartitioned(self, devices: Sequence[str], reason: str, line: UserLine) -> None:
        """Print that a training step runs as it is written, if there are several devices."""
        first, *idle = devices
        has = "have" if len(idle) > 1 else "has"
        where = f"computes every batch on {first}; {', '.join(idle)} {has} nothing to do"
        if self.num_placed:
            where = "runs as it is written, on the devices that tf.device names"
        if idle:
            self.add(f"this training step {where}\n  {reason}", line)

    @property
    def printed(self) -> tuple[Note, ...]:
        """All printed notes, in order."""
        return tuple(self._printed)


def is_other(device: Any, strategy: Strategy) -> bool:
    """Return whether a device, as TensorFlow names it, is one of the run, but not its first."""
    first, *others = map(without_worker, strategy.plan.device_names)
    name = qualified_name(str(getattr(device, "name", device) or ""))
    return name != first and name in others
