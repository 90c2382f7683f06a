"""Watching a program for a few steps, in a process of its own."""

from __future__ import annotations

from evener.doctor.watch.seen import (
    Copied,
    HostRead,
    Line,
    Misplaced,
    Outcome,
    Raised,
    Seen,
    Steps,
    Traced,
    Warned,
    Work,
)
from evener.doctor.watch.watch import watch

__all__ = [
    "Copied",
    "HostRead",
    "Line",
    "Misplaced",
    "Outcome",
    "Raised",
    "Seen",
    "Steps",
    "Traced",
    "Warned",
    "Work",
    "watch",
]
