"""Processes that live as long as the benchmark and work only when it is their turn.

      driver ──► worker 0: prepare, run 40 steps ──► seconds
             ──► worker 1:           run 40 steps ──► seconds
             ──► worker 0: ...

TensorFlow fixes its devices and threads once per process, so every contender has a process.
They take turns, because a machine that is slower for a minute must be slower for all.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_SPAWN = multiprocessing.get_context("spawn")
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "1", "CUDA_VISIBLE_DEVICES": "-1"}


class WorkerError(RuntimeError):
    """A worker raised; the message is its traceback."""


def barrier(num_parties: int) -> Any:
    """Return a barrier that workers can be given, to begin at the same moment."""
    return _SPAWN.Barrier(num_parties)


class Worker:
    """One contender in its own process.

    Args:
        make: A function of a module; called in the process, it returns the contender.
        environment: Variables set in the process before TensorFlow is imported.
        cores: The cores the process may use; None for all.
        **settings: Given to ``make``.
    """

    def __init__(
        self,
        make: Callable[..., Any],
        *,
        environment: Mapping[str, str] | None = None,
        cores: set[int] | None = None,
        **settings: Any,
    ) -> None:
        # A barrier among the settings must outlive the start of the process.
        self._settings = settings
        self._pipe, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(
            target=_serve,
            args=(theirs, make, {**_QUIET, **(environment or {})}, cores, settings),
            daemon=True,
        )
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid or 0

    def send(self, method: str, *args: Any, **kwargs: Any) -> None:
        """Ask for a call of one of the contender's methods, without waiting for it."""
        self._pipe.send((method, args, kwargs))

    def receive(self) -> Any:
        """Wait for the result of the call that was sent.

        Raises:
            WorkerError: If the call raised, or the process is gone.
        """
        try:
            fine, result = self._pipe.recv()
        except (EOFError, OSError) as gone:
            self._process.join()
            raise WorkerError(f"the process ended with {self._process.exitcode}") from gone
        if not fine:
            raise WorkerError(result)
        return result

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call one of the contender's methods and wait for its result."""
        self.send(method, *args, **kwargs)
        return self.receive()

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(OSError):
            self._pipe.send(None)
        self._process.join(10)
        if self._process.is_alive():
            self._process.terminate()


@contextlib.contextmanager
def closing(*workers: Worker) -> Iterator[None]:
    """End the workers when the block is left, however it is left."""
    try:
        yield
    finally:
        for worker in workers:
            worker.close()


@contextlib.contextmanager
def _without_import_log() -> Iterator[None]:
    """Hold back what TensorFlow 2.21 writes before it reads its log level."""
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)


def _serve(
    pipe: Any,
    make: Callable[..., Any],
    environment: Mapping[str, str],
    cores: set[int] | None,
    settings: Mapping[str, Any],
) -> None:
    os.environ.update(environment)
    if cores is not None:
        os.sched_setaffinity(0, cores)
    warnings.filterwarnings("ignore", message="`shuffle=True` was passed")
    with _without_import_log():
        import tensorflow  # noqa: F401
    contender = None
    while (request := pipe.recv()) is not None:
        method, args, kwargs = request
        try:
            if contender is None:
                contender = make(**settings)
            pipe.send((True, getattr(contender, method)(*args, **kwargs)))
        except Exception:
            pipe.send((False, traceback.format_exc()))
