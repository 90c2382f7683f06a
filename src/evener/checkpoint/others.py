"""The other workers of a job: the chief alone writes, and all restore and stop alike.

The only place of this package that knows of other workers.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable
from typing import Any

_workers: Any = None
"""An `evener.workers.group.Group`: ``is_chief``, ``is_late``, ``agree`` and ``stops``."""
_job: str | None = None


def work_with(workers: Any) -> None:
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
    return _workers is not None


def writes() -> bool:
    """Return whether this process writes checkpoints; all processes restore them."""
    return _workers is None or (_workers.is_chief and not _workers.is_late)


def agree(name: str, value: Callable[[], Any]) -> Any:
    """Return the value of the chief, which is that of a process without others."""
    return value() if _workers is None else _workers.agree(name, value)


def stops(*, is_requested: bool) -> bool:
    return is_requested if _workers is None else _workers.stops(is_requested=is_requested)
