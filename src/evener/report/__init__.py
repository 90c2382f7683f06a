"""Reports for people: progress while training, comparisons, runs of scripts."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evener.recording.measured import DeviceWork
    from evener.report.comparison import Comparison, compare
    from evener.report.progress import Progress

# Imported when first used: the page of a record does not need Keras.
_HOMES = {
    "Comparison": "evener.report.comparison",
    "DeviceWork": "evener.recording.measured",
    "Progress": "evener.report.progress",
    "compare": "evener.report.comparison",
}

__all__ = ["Comparison", "DeviceWork", "Progress", "compare"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'evener.report' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
