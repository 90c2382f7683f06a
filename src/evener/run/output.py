"""Output of workers that are started one by one: the chief's appears, others' goes to files.

Workers of `evener launch` are left alone: the launcher keeps and shows their output.
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from evener.errors import RunError

_LOG = "EVENER_WORKER_LOG"
_LAUNCHED = ("EVENER_JOB", "EVENER_LAUNCHED")


class _Workers(Protocol):
    @property
    def index(self) -> int: ...

    @property
    def count(self) -> int: ...

    @property
    def is_chief(self) -> bool: ...

    def exchange(self, name: str, value: Any) -> list[Any]: ...


class WorkerLog:
    """Log file that has the standard output and error of this process.

    Args:
        path: Path of the file, to which is added.

    Raises:
        RunError: RUN-014 if it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise RunError(
                "RUN-014",
                f"The log file of this worker cannot be written: {path}: {error.strerror}.",
                why="With several workers, the output of all but the first goes to log files.",
                fix=f"Set {_LOG} to a file in a folder that exists.",
            ) from error
        self.path = path
        sys.stdout.flush()
        sys.stderr.flush()
        self._terminal = os.dup(2)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.close(file)

    def show_failure(self) -> None:
        """Let the exception that ends the program appear on the terminal too."""
        show = sys.excepthook

        def hook(
            kind: type[BaseException], error: BaseException, found: TracebackType | None
        ) -> object:
            show(kind, error, found)
            sys.stderr.flush()
            os.dup2(self._terminal, 2)
            return show(kind, error, found)

        sys.excepthook = hook


def divert_output(
    workers: _Workers | None, tell: Callable[[str], object], environ: Mapping[str, str]
) -> WorkerLog | None:
    """Write the output of this process to a file, unless it is the chief or alone.

    Args:
        workers: Workers of the job; None if this process trains alone.
        tell: Function that is told, on the chief, where the output of the others is.
        environ: Environment variables; ``EVENER_WORKER_LOG`` names the file.

    Returns:
        The log file; None if the output appears.

    Raises:
        RunError: RUN-014 if the file cannot be written.
    """
    if workers is None or _LAUNCHED[0] in environ:
        return None
    log = None
    if not workers.is_chief and _LAUNCHED[1] not in environ:
        log = WorkerLog(_path(workers.index, environ))
    told = workers.exchange("logs", None if log is None else f"{socket.gethostname()}:{log.path}")
    logs = [path for path in told if path is not None]
    if workers.is_chief and logs:
        tell(f"the output of the other workers is in {', '.join(logs)}")
    return log


def _path(index: int, environ: Mapping[str, str]) -> Path:
    given = environ.get(_LOG)
    if given:
        return Path(given).absolute()
    return Path(tempfile.mkdtemp(prefix="evener-worker-")) / f"worker-{index}.log"
