"""Where operations run: what one step does on which device, and what it moves.

    audit      evener.audit: from a call to an Audit
    tracing    tracing what a person calls, with nothing changed by it
    keras_step one step of fit
    dry_run    the step as TensorFlow would run it, without running it
    reading    the placed graph: operations, copies, fallbacks
    flow       what flows between nodes, and what they work for
    origins    the operation in Python, and the line, behind a node
    sizes      bytes of tensors
    kernels    which operations have a GPU kernel
    record     the Audit, a value                                        no TensorFlow

Importing this package does not import TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evener.placement.audit import audit
    from evener.placement.record import (
        Audit,
        Collective,
        Copy,
        Fallback,
        Line,
        Operation,
        Total,
        Traffic,
    )

_RECORD = "evener.placement.record"
_HOMES = {
    "Audit": _RECORD,
    "Collective": _RECORD,
    "Copy": _RECORD,
    "Fallback": _RECORD,
    "Line": _RECORD,
    "Operation": _RECORD,
    "Total": _RECORD,
    "Traffic": _RECORD,
    "audit": "evener.placement.audit",
}

__all__ = [
    "Audit",
    "Collective",
    "Copy",
    "Fallback",
    "Line",
    "Operation",
    "Total",
    "Traffic",
    "audit",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'evener.placement' has no attribute {name!r}")
    # The function hides the module of its name.
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
