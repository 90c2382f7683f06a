"""The live view: a thread that reads the state of a training and shows it."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from types import TracebackType

from evener.report.live.screen import Screen
from evener.report.live.state import LiveState

_REFRESH_SECONDS = 0.5
_shown: list[LiveView] = []


def is_shown() -> bool:
    """Return whether this process shows a live view already."""
    return bool(_shown)


class LiveView:
    """Shows the state of a training twice a second, in a context.

    Args:
        screen: Place where it appears.
        state: Function that returns the state, called by a thread; None to show nothing new.
        refresh_seconds: Time between two updates, above 0.
    """

    def __init__(
        self,
        screen: Screen,
        state: Callable[[], LiveState | None],
        *,
        refresh_seconds: float = _REFRESH_SECONDS,
    ) -> None:
        self._screen = screen
        self._state = state
        self._refresh_seconds = refresh_seconds
        self._process = os.getpid()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="evener live view", daemon=True)

    def __enter__(self) -> LiveView:
        """Begin to show."""
        _shown.append(self)
        self._screen.open()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Show the last state, which stays, and restore the terminal."""
        # A fork of the program has no thread, and shows nothing.
        if os.getpid() != self._process:
            return
        try:
            self._stop.set()
            self._thread.join()
            with contextlib.suppress(Exception):
                self._update()
        finally:
            _shown.remove(self)
            self._screen.close()

    def _run(self) -> None:
        while not self._stop.wait(self._refresh_seconds):
            try:
                self._update()
            except Exception as error:
                # The view never ends the run.
                with contextlib.suppress(Exception):
                    self._screen.say(f"evener: no live view: {type(error).__name__}: {error}")
                return

    def _update(self) -> None:
        state = self._state()
        if state is not None:
            self._screen.show(state)
