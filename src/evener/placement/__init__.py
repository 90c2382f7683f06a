"""Where operations run: pins to devices, and audits of what one step does on which."""

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
