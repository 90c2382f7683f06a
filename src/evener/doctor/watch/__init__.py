"""Watching a program for a few steps, in a process of its own."""

from __future__ import annotations

from evener.doctor.watch.observation import (
    HostRead,
    Line,
    Observation,
    Outcome,
    Raised,
    Steps,
    Traced,
)
from evener.doctor.watch.watch import WatchLimits, watch

__all__ = [
    "HostRead",
    "Line",
    "Observation",
    "Outcome",
    "Raised",
    "Steps",
    "Traced",
    "WatchLimits",
    "watch",
]
