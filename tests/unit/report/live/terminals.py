"""A terminal of a given size, which shows what is written to it."""

from __future__ import annotations

import io

import pyte
from rich.console import Console


class Terminal(io.StringIO):
    """Stream of a terminal.

    Args:
        width: Columns.
        height: Lines.
    """

    def __init__(self, width: int = 80, height: int = 24) -> None:
        super().__init__()
        self.screen = pyte.Screen(width, height)
        self.screen.set_mode(pyte.modes.LNM)
        self._stream = pyte.Stream(self.screen)
        self.console = Console(
            file=self,
            width=width,
            height=height,
            force_terminal=True,
            force_jupyter=False,
            color_system=None,
            _environ={},
        )

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._stream.feed(text)
        return super().write(text)

    @property
    def lines(self) -> list[str]:
        """The lines up to the last one that is not empty."""
        return "\n".join(line.rstrip() for line in self.screen.display).rstrip("\n").split("\n")
