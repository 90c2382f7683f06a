"""Fields of an audit, and their totals; the parts that show and write an audit read them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from evener.auditing.gathered import GatheredOperation
from evener.auditing.records import (
    KINDS,
    VERSION,
    Collective,
    Copy,
    Fallback,
    Kind,
    Operation,
    Total,
    Traffic,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFields:
    """Fields of an `Audit`, which documents them."""

    step: str
    devices: tuple[str, ...]
    assume_gpus: bool
    kernels_from: Literal["TensorFlow", "table"]
    operations: tuple[Operation, ...]
    copies: tuple[Copy, ...]
    collectives: tuple[Collective, ...]
    fallbacks: tuple[Fallback, ...]
    gathered: tuple[GatheredOperation, ...] = ()
    version: int = VERSION

    @property
    def findings(self) -> tuple[Fallback, ...]:
        """Fallbacks that the program did not intend: those of `Fallback.is_finding`."""
        return tuple(fallback for fallback in self.fallbacks if fallback.is_finding)

    @property
    def totals(self) -> tuple[Total, ...]:
        """The number of operations per device and kind of work, in a fixed order."""
        counted: Counter[tuple[str, Kind]] = Counter((op.device, op.kind) for op in self.operations)
        return tuple(
            Total(device=device, kind=kind, num_operations=counted[device, kind])
            for device, kind in sorted(counted, key=lambda key: (key[0], KINDS.index(key[1])))
        )

    @property
    def traffic(self) -> tuple[Traffic, ...]:
        """The total of the copies for each pair of devices, the most bytes first."""
        pairs = {(copy.source, copy.target) for copy in self.copies}
        found = [_traffic(self.copies, *pair) for pair in sorted(pairs)]
        return tuple(sorted(found, key=lambda total: -total.num_bytes))

    @property
    def moved_bytes(self) -> int:
        """Sum of the known sizes of all copies, in bytes."""
        return sum(copy.num_bytes or 0 for copy in self.copies)


def _traffic(copies: tuple[Copy, ...], source: str, target: str) -> Traffic:
    sizes = [copy.num_bytes for copy in copies if (copy.source, copy.target) == (source, target)]
    return Traffic(
        source=source,
        target=target,
        num_copies=len(sizes),
        num_bytes=sum(size or 0 for size in sizes),
        num_unknown=sizes.count(None),
    )
