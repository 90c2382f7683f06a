"""Where operations run: what one step does on which device, and what it moves."""

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
