"""The `Audit`, and its forms: JSON, and tables."""

from __future__ import annotations

from dataclasses import dataclass

from evener.auditing.fields import AuditFields
from evener.auditing.serialise import read_fields, write_audit


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit(AuditFields):
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
