"""SIGINT and SIGTERM, which people and clusters send to end a process."""

from __future__ import annotations

import signal
import threading
from typing import Any

_EXIT_CODE = 128 + int(signal.SIGTERM)
"""Exit code of a program that ends after SIGTERM: 143. Launchers start it again."""


class Termination:
    """Notes SIGINT and SIGTERM within its ``with`` block, and lets them act later.

    Only the main thread may do so; in others, nothing changes. A second signal acts at once.
    """

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._noted: tuple[int, Any] | None = None

    def __enter__(self) -> None:
        """Note signals, but not those that are ignored, as under ``nohup``."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN:
                self._before[number] = before
                signal.signal(number, self._note)

    def __exit__(self, *error: object) -> None:
        """Handle signals as before, and let one that was noted act."""
        self._put_back()
        if self.is_requested:
            self.act()
            self._put_back()

    @property
    def is_requested(self) -> bool:
        """Whether a signal was noted that has not acted yet."""
        return self._noted is not None

    def act(self) -> None:
        """Do what the signal does without this object; end as by SIGTERM if there was none."""
        number, handler = self._noted or (int(signal.SIGTERM), None)
        self._noted = None
        if not callable(handler):
            raise SystemExit(128 + number)
        handler(number, None)
        # It has returned, so the program goes on.
        self.__enter__()

    def _note(self, number: int, frame: Any) -> None:
        del frame
        self._noted = number, self._before[number]
        self._put_back()

    def _put_back(self) -> None:
        for number, handler in [*self._before.items()]:
            # Otherwise the program has set another one meanwhile.
            if signal.getsignal(number) == self._note:
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before.clear()
