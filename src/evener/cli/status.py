"""A spinner on standard error while a command waits for more than a second, on a terminal only."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

_DELAY_SECONDS = 1.0


@contextlib.contextmanager
def status(text: str, *, delay_seconds: float = _DELAY_SECONDS) -> Iterator[None]:
    """Show a spinner with a text on standard error while the code inside runs.

    Nothing is shown if standard error is not a terminal, or if the code ends before the delay.

    Args:
        text: Text for what the command does, such as ``"Importing TensorFlow"``.
        delay_seconds: Seconds until the spinner appears, 0 or more.
    """
    if not sys.stderr.isatty():
        yield
        return
    # A copy of the terminal: `quiet_tensorflow` redirects the descriptor of standard error.
    with os.fdopen(os.dup(sys.stderr.fileno()), "w", encoding="utf-8") as terminal:
        shown = _Delayed(text, terminal)
        timer = threading.Timer(delay_seconds, shown.start)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            shown.stop()


class _Delayed:
    """A spinner that is started by another thread than the one that stops it.

    Args:
        text: Text beside the spinner.
        terminal: The stream of a terminal.
    """

    def __init__(self, text: str, terminal: Any) -> None:
        self._text = text
        self._terminal = terminal
        self._lock = threading.Lock()
        self._is_over = False
        self._spinner: Any = None

    def start(self) -> None:
        """Show the spinner, unless it was stopped before."""
        # Only now: a command that is quick does not need it.
        from rich.console import Console
        from rich.live import Live
        from rich.spinner import Spinner

        with self._lock:
            if not self._is_over:
                # `rich.status.Status` would redirect standard output to the terminal too.
                self._spinner = Live(
                    Spinner("dots", self._text),
                    console=Console(file=self._terminal),
                    transient=True,
                    redirect_stdout=False,
                    redirect_stderr=False,
                )
                self._spinner.start(refresh=True)

    def stop(self) -> None:
        """Remove the spinner from the terminal."""
        with self._lock:
            self._is_over = True
            if self._spinner is not None:
                self._spinner.stop()
