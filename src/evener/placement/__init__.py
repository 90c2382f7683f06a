"""Device placement: pins to devices, and audits of the placement of one step.

    pins            evener.pin: layers, models, functions, blocks
    layers, losses, optimizers   what a pin changes in Keras
    variable_moves  variables of built layers that are pinned
    names, scope    device names, and `tf.device` with checks
    gradients       evener.pinned_gradients

    auditing        evener.audit: from a call to an Audit
    tracing         traces a function and restores the random state
    keras_step      one step of fit
    dry_run         the placed graph of a step, which is not run
    training        whether a traced function is a training step
    drawn_batch     a batch from the iterators of a step, for its sizes
    graph_reader    reads a placed graph: operations, copies, fallbacks
    flow            the dataflow between nodes, and their kind of work
    origins         the Python operation, and its source line, behind a node
    tensor_sizes    bytes of tensors
    devices         device names in graphs
    kernels         which operations have a GPU kernel
    audit_result    the Audit, as a value; does not import TensorFlow
    audit_records   the operations, copies and fallbacks in it; does not import TensorFlow
    serialise       audits to and from JSON
    table           audits as tables for the terminal

Importing this package does not import TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evener.placement.audit_records import (
        Collective,
        Copy,
        Fallback,
        Line,
        Operation,
        Total,
        Traffic,
    )
    from evener.placement.audit_result import Audit
    from evener.placement.auditing import audit
    from evener.placement.gradients import pinned_gradients
    from evener.placement.pins import Pin, pin

_RECORDS = "evener.placement.audit_records"
_HOMES = {
    "Audit": "evener.placement.audit_result",
    "Collective": _RECORDS,
    "Copy": _RECORDS,
    "Fallback": _RECORDS,
    "Line": _RECORDS,
    "Operation": _RECORDS,
    "Pin": "evener.placement.pins",
    "Total": _RECORDS,
    "Traffic": _RECORDS,
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
