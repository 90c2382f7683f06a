"""Record of a run of a script."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from evener.recording.record import Recording
from evener.run.session import Session
from evener.workers.process import group_of_process


def record_session(
    session: Session,
    folder: Path,
    diagnose: Callable[[str, int], Mapping[str, Any]] | None = None,
) -> Recording:
    """Return the record of a session that has not run yet.

    With several workers, each has a folder of its own in the given one: ``worker-0``, and
    ``worker-0.1`` for its first replacement.
    """
    group = group_of_process()
    if group is not None:
        incarnation = f".{group.incarnation}" if group.incarnation else ""
        folder = folder / f"worker-{group.index}{incarnation}"
    diagnosis = None
    if diagnose is not None and (group is None or group.index == 0):
        diagnosis = diagnose(session.script.path, len(session.strategy.plan.device_names))
    return Recording(
        folder,
        session.strategy,
        command=["evener", *sys.argv[1:]],
        notes=lambda: [str(note) for note in session.notes.printed],
        diagnosis=diagnosis,
    )
