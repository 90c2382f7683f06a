"""Audits: the device of every operation of one training step, copies, and fallbacks.

    step_audit      evener.audit: from a call to an Audit
    tracing         traces a function and restores the random state
    keras_step      one step of fit
    dry_run         the placed graph of a step, which is not run
    training        whether a traced function is a training step
    drawn_batch     a batch from the iterators of a step, for its sizes
    graph_reader    reads a placed graph: operations, copies, fallbacks
    flow            the dataflow between nodes, and their kind of work
    origins         the Python operation, and its source line, behind a node
    tensor_sizes    bytes of tensors
    device_names    devices that exist, and that operations request
    kernels         which operations have a GPU kernel
    result          the Audit, as a value; does not import TensorFlow
    records         the operations, copies and fallbacks in it; does not import TensorFlow
    serialise       audits to and from JSON
    table           audits as tables for the terminal

Importing this package does not import TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evener.auditing.records import (
        Audit,
        Collective,
        Copy,
        Fallback,
        Line,
        Operation,
        Total,
        Traffic,
    )
    from evener.strategy.step_audit import audit

_RECORDS = "evener.auditing.records"
_HOMES = {
    "Audit": "evener.auditing.records",
    "Collective": _RECORDS,
    "Copy": _RECORDS,
    "Fallback": _RECORDS,
    "Line": _RECORDS,
    "Operation": _RECORDS,
    "Total": _RECORDS,
    "Traffic": _RECORDS,
    "audit": "evener.strategy.step_audit",
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
        raise AttributeError(f"module 'evener.auditing' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
