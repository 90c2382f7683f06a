"""The `Audit`: operations, copies, fallbacks, and their totals."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

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
from evener.auditing.serialise import read_fields, write_audit
from evener.tf_compat.gathered import GatheredOperation


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """Placement of the operations of one step, and the copies between devices.

    Args:
        step: Name of the step, such as ``"train_step"``.
        devices: Logical devices of TensorFlow, such as ``"gpu:0"``.
        assume_gpus: Whether operations that request no device count as requesting a GPU.
        kernels_from: Source of the GPU kernels: ``"TensorFlow"``, the installed one, or
            ``"table"``, the table that evener ships.
        operations: All operations of the step.
        copies: All copies between devices.
        collectives: Collective operations, one for each participating device.
        fallbacks: Operations that do not run on their requested GPU, each with its reason.
        gathered: Operations of a step partitioned by evener that are computed once, on one
            device, for the global batch.
        version: Version of the JSON form.
    """

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

    def to_json(self) -> str:
        """Return the audit as one JSON object; `from_json` restores it."""
        return write_audit(self)

    @classmethod
    def from_json(cls, text: str) -> Audit:
        """Return the audit that `to_json` wrote.

        Raises:
            PlacementError: PLACE-034 if the text is not an audit.
        """
        return cls(**read_fields(text))

    def __str__(self) -> str:
        """Return the audit as plain text tables."""
        from evener.auditing.table import print_audit
        from evener.terminal import text_of

        return text_of(lambda console: print_audit(self, console))

    def _repr_html_(self) -> str:
        """Return the tables as HTML, for notebooks."""
        from evener.terminal import html_of

        return html_of(str(self))


def _traffic(copies: tuple[Copy, ...], source: str, target: str) -> Traffic:
    sizes = [copy.num_bytes for copy in copies if (copy.source, copy.target) == (source, target)]
    return Traffic(
        source=source,
        target=target,
        num_copies=len(sizes),
        num_bytes=sum(size or 0 for size in sizes),
        num_unknown=sizes.count(None),
    )
