"""The other workers of a job: the chief alone writes, and all restore and stop alike.

The only place of this package that knows of other workers.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable
from typing import Any, Protocol


class Workers(Protocol):
    """The workers of a job, seen by one of them."""

    @property
    def is_chief(self) -> bool:
        """Whether this worker writes."""
        ...

    @property
    def is_late(self) -> bool:
        """Whether this worker is a replacement that does not stand with the others yet."""
        ...

    def agree(self, name: str, value: Callable[[], Any]) -> Any:
        """Return the chief's JSON value, on every worker."""
        ...

    def stops(self, *, is_requested: bool) -> bool:
        """Return whether all workers stop behind this step, because one of them was asked to."""
        ...


_workers: Workers | None = None
_job: str | None = None


def work_with(workers: Workers | None) -> None:
    """Work with other workers from now on; None for a process without others."""
    global _workers, _job
    if workers is not _workers:
        _workers, _job = workers, None
        # All workers come here; later, one of them writes alone.
        _job = None if workers is None else workers.agree("job", job)


def job() -> str:
    """Return a text that tells the job of this process from all others."""
    global _job
    if _job is None:
        _job = f"process {os.getpid()} of {socket.gethostname()} ({secrets.token_hex(8)})"
    return _job


def are_there() -> bool:
    """Return whether this process works with others."""
    return _workers is not None


def writes() -> bool:
    """Return whether this process writes checkpoints; all processes restore them."""
    return _workers is None or (_workers.is_chief and not _workers.is_late)


def agree(name: str, value: Callable[[], Any]) -> Any:
    """Return the value of the chief, which is that of a process without others."""
    return value() if _workers is None else _workers.agree(name, value)


def stops(*, is_requested: bool) -> bool:
    """Return whether the program stops behind this step."""
    return is_requested if _workers is None else _workers.stops(is_requested=is_requested)
