"""SIGTERM, which clusters send before they end a process."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

EXIT_CODE = 128 + int(signal.SIGTERM)
"""Exit code of a program that wrote a checkpoint after SIGTERM: 143. Launchers start it again."""


class Termination:
    """Flag that says whether SIGTERM came.

    Attributes:
        is_requested: Whether it came.
    """

    def __init__(self) -> None:
        self.is_requested = False

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Notice SIGTERM instead of ending, until the end of the block.

        Python lets only the main thread do so; in other threads nothing changes.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGTERM, self._request)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)

    def _request(self, number: int, frame: Any) -> None:
        del number, frame
        self.is_requested = True
