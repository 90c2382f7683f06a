"""Watching a program for a few steps, in a process of its own."""

from __future__ import annotations

from evener.doctor.watch.child import WatchLimits
from evener.doctor.watch.watch import watch

__all__ = ["WatchLimits", "watch"]
