"""Where operations run: pins to devices, and audits of what one step does on which.

    pins       evener.pin: layers, models, functions, blocks; layers, losses, optimizers, moving,
               names and scope are parts of it
    gradients  evener.pinned_gradients
    auditing   evener.audit: from a call to an Audit
    tracing    tracing what a person calls, with nothing changed by it
    keras_step one step of fit
    dry_run    the step as TensorFlow would run it, without running it
    reading    the placed graph: operations, copies, fallbacks
    flow       what flows between nodes, and what they work for
    origins    the operation in Python, and the line, behind a node
    sizes      bytes of tensors
    kernels    which operations have a GPU kernel
    record     the Audit, a value; parts are what it is made of           no TensorFlow

Importing this package does not import TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evener.placement.auditing import audit
    from evener.placement.gradients import pinned_gradients
    from evener.placement.parts import Collective, Copy, Fallback, Line, Operation, Total, Traffic
    from evener.placement.pins import Pin, pin
    from evener.placement.record import Audit

_PARTS = "evener.placement.parts"
_HOMES = {
    "Audit": "evener.placement.record",
    "Collective": _PARTS,
    "Copy": _PARTS,
    "Fallback": _PARTS,
    "Line": _PARTS,
    "Operation": _PARTS,
    "Pin": "evener.placement.pins",
    "Total": _PARTS,
    "Traffic": _PARTS,
    "audit": "evener.placement.auditing",
    "pin": "evener.placement.pins",
    "pinned_gradients": "evener.placement.gradients",
}

__all__ = [
    "Audit",
    "Collective",
    "Copy",
    "Fallback",
    "Line",
    "Operation",
    "Pin",
    "Total",
    "Traffic",
    "audit",
    "pin",
    "pinned_gradients",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'evener.placement' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
