"""evener: train TensorFlow and Keras models on every device you have, exactly.

The public names are loaded when they are first used, so that ``import evener`` costs
nothing and does not import TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evener import auditing, clusters, feedback, plan, planner, profile, report, schedule  # noqa: F401
    from evener.auditing import Audit
    from evener.checkpoint import Checkpoint, CheckpointCallback
    from evener.devices import Inventory, UsedDevice, inventory, use_devices
    from evener.doctor import Diagnosis, Finding, diagnose
    from evener.errors import (
        CheckpointError,
        DataError,
        DeviceError,
        EngineError,
        EvenerError,
        EvenerWarning,
        PlacementError,
        PlanError,
        ProfileError,
        RunError,
    )
    from evener.pinning import pin, pinned_gradients
    from evener.plan import Plan
    from evener.profiler.make_plan import make_plan
    from evener.recording.record import record
    from evener.strategy import Strategy
    from evener.strategy.distribute import distribute
    from evener.strategy.step_audit import audit

__version__ = "0.1.0"

_HOMES = {
    "Audit": "evener.auditing",
    "Checkpoint": "evener.checkpoint",
    "CheckpointCallback": "evener.checkpoint",
    "CheckpointError": "evener.errors",
    "DataError": "evener.errors",
    "DeviceError": "evener.errors",
    "Diagnosis": "evener.doctor",
    "EngineError": "evener.errors",
    "EvenerError": "evener.errors",
    "EvenerWarning": "evener.errors",
    "Finding": "evener.doctor",
    "Inventory": "evener.devices",
    "PlacementError": "evener.errors",
    "Plan": "evener.plan",
    "PlanError": "evener.errors",
    "ProfileError": "evener.errors",
    "RunError": "evener.errors",
    "Strategy": "evener.strategy",
    "UsedDevice": "evener.devices",
    "audit": "evener.strategy.step_audit",
    "diagnose": "evener.doctor",
    "distribute": "evener.strategy.distribute",
    "inventory": "evener.devices",
    "make_plan": "evener.profiler.make_plan",
    "pin": "evener.pinning",
    "pinned_gradients": "evener.pinning",
    "record": "evener.recording.record",
    "use_devices": "evener.devices",
}

# Packages with public names, which are attributes without an import of their own too.
_PACKAGES = (
    "auditing",
    "clusters",
    "feedback",
    "plan",
    "planner",
    "profile",
    "report",
    "schedule",
)

# These work with some versions of TensorFlow and Keras alone.
_NEEDS_TENSORFLOW = (
    "evener.auditing",
    "evener.checkpoint",
    "evener.pinning",
    "evener.recording",
    "evener.strategy",
)

__all__ = [
    "Audit",
    "Checkpoint",
    "CheckpointCallback",
    "CheckpointError",
    "DataError",
    "DeviceError",
    "Diagnosis",
    "EngineError",
    "EvenerError",
    "EvenerWarning",
    "Finding",
    "Inventory",
    "PlacementError",
    "Plan",
    "PlanError",
    "ProfileError",
    "RunError",
    "Strategy",
    "UsedDevice",
    "audit",
    "diagnose",
    "distribute",
    "inventory",
    "make_plan",
    "pin",
    "pinned_gradients",
    "record",
    "use_devices",
]


# Not for type checkers: to them, every misspelled name would be there.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in _PACKAGES:
            return importlib.import_module(f"evener.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module 'evener' has no attribute {name!r}")
        if _HOMES[name].startswith(_NEEDS_TENSORFLOW):
            importlib.import_module("evener.base.libraries").check_installed()
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})
