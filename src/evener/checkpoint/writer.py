"""Thread that writes while training goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable


class BackgroundWriter:
    """Runs one task at a time in a thread.

    The thread is no daemon: when the interpreter exits, it waits for the last task.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, task: Callable[[], None]) -> None:
        """Run a task in the background; `wait` must have been called since the last one.

        Args:
            task: Function to call.
        """
        assert self._thread is None, "the writer still runs"
        self._thread = threading.Thread(
            target=self._run, args=(task,), name="evener-checkpoint", daemon=False
        )
        self._thread.start()

    def wait(self) -> BaseException | None:
        """Wait for the task; return its error once, or None."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        return error

    @property
    def is_busy(self) -> bool:
        """Whether a task runs."""
        return self._thread is not None and self._thread.is_alive()

    def _run(self, task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as error:
            # `wait` hands it over.
            self._error = error
