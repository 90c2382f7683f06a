"""The `Audit` as a value: operations, copies, collectives, fallbacks, their totals, and JSON.

Does not import TensorFlow.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from evener.base.text import format_bytes
from evener.base.user_code import short_path
from evener.errors import PlacementError

if TYPE_CHECKING:
    import tensorflow as tf


# The records of an audit: operations, copies, collectives, fallbacks, and their totals.

Kind = Literal["forward", "gradient", "optimizer", "input"]
KINDS: tuple[Kind, ...] = ("forward", "gradient", "optimizer", "input")

Reason = Literal["no_gpu_kernel", "no_kernel_for_dtype", "host_memory", "no_such_device", "beside"]
# TensorFlow places these on the host on purpose: shapes and counters, and operations that it
# colocates with a variable.
_NO_FINDINGS = ("host_memory", "beside")

VERSION = 1
"""The version of the JSON form of audits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of user code.

    Args:
        path: Absolute path of the file.
        number: Line number, from 1.
    """

    path: str
    number: int

    def __str__(self) -> str:
        return f"{short_path(self.path)}:{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation of the step, as TensorFlow placed it.

    Args:
        name: Name in the placed graph.
        type: Type of the operation, such as ``"MatMul"``.
        requested: Device that the program requests; None if it requests none.
        device: Device on which it runs.
        kind: Kind of work.
        line: Line of user code that made it, or None.
        within: Operation that calls its function, if that function is not inlined: XLA compiles it,
            or `tf.data` runs it.
    """

    name: str
    type: str
    requested: str | None
    device: str
    kind: Kind
    line: Line | None
    within: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A tensor that is copied from one device to another in the step.

    Args:
        tensor: Name, such as ``"dense/MatMul"``.
        num_bytes: Size in bytes; None if its shape is unknown before the step runs.
        source: Device that sends it.
        target: Device that receives it.
        kind: Kind of work of the operation that made it.
        line: Line of user code that made it, or None.
        needed_by: Line of an operation on the target device that reads it, or None.
        in_loop: Whether it is copied in every iteration of a loop in the graph.
    """

    tensor: str
    num_bytes: int | None
    source: str
    target: str
    kind: Kind
    line: Line | None
    needed_by: Line | None
    in_loop: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """A collective operation, such as an all-reduce, on one of its devices.

    Collectives are not counted as copies: the library that runs them (NCCL, or TensorFlow's ring)
    decides how data is transferred.

    Args:
        operation: Name of the operation.
        type: Type of the operation, such as ``"CollectiveReduceV2"``.
        device: Device on which it runs.
        num_bytes: Size of its result in bytes; None if unknown.
        line: Line of user code that made it, or None.
    """

    operation: str
    type: str
    device: str
    num_bytes: int | None
    line: Line | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """An operation that does not run on its requested GPU, or would not run on an assumed one.

    Args:
        operation: Name of the operation.
        type: Type of the operation.
        requested: Device that the program requests; None if it requests none.
        device: Device on which it runs.
        reason: ``"no_gpu_kernel"``, ``"no_kernel_for_dtype"``, ``"host_memory"``,
            ``"no_such_device"`` or ``"beside"``.
        why: Reason as a sentence, with the dtypes.
        line: Line of user code that made it, or None.
    """

    operation: str
    type: str
    requested: str | None
    device: str
    reason: Reason
    why: str
    line: Line | None

    @property
    def is_finding(self) -> bool:
        """Whether it is unexpected, and not what TensorFlow does on purpose."""
        return self.reason not in _NO_FINDINGS


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """The number of operations of one kind of work on one device.

    Args:
        device: Device.
        kind: Kind of work.
        num_operations: Number of operations.
    """

    device: str
    kind: Kind
    num_operations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The total of all copies from one device to another in the step.

    Args:
        source: Device that sends.
        target: Device that receives.
        num_copies: Number of tensors.
        num_bytes: Sum of their known sizes in bytes.
        num_unknown: Number of tensors of unknown size.
    """

    source: str
    target: str
    num_copies: int
    num_bytes: int
    num_unknown: int


# The gathered operations of a partitioned step, stored in its graph for audits.

_COLLECTION = "evener_gathered"


@dataclass(frozen=True, slots=True, kw_only=True)
class GatheredOperation:
    """An operation that is computed once, for the global batch, instead of in parts."""

    operation: str  # The type of operation, such as ``"Sort"``
    name: str  # Its name in the traced step
    line: str  # The line of the program that made it, as ``"file.py:12"``, or an empty string
    num_bytes: int | None  # Bytes per sample that are copied to one device for it; None if unknown

    def __str__(self) -> str:
        where = f" at {self.line}" if self.line else ""
        size = "" if self.num_bytes is None else f": {format_bytes(self.num_bytes)} per sample"
        return f"{self.operation}{where}{size}"


def write_gathered(operations: Iterable[GatheredOperation]) -> None:
    """Store the gathered operations of a step in the current graph."""
    # Reading an audit does not import TensorFlow.
    import tensorflow as tf

    graph = tf.compat.v1.get_default_graph()
    for operation in operations:
        graph.add_to_collection(_COLLECTION, operation)


def read_gathered(graphs: Iterable[tf.Graph]) -> tuple[GatheredOperation, ...]:
    """Return the operations stored in graphs, each once: functions of a graph share its store."""
    found = (stored for graph in graphs for stored in graph.get_collection(_COLLECTION))
    return tuple(dict.fromkeys(found))


# Fields of an audit, and their totals; the parts that show and write an audit read them.


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


# Audits to and from JSON, in version 1.

T = TypeVar("T")


def write_audit(audit: AuditFields) -> str:
    """Return an audit as JSON, with its totals, which other readers need not compute."""
    fields = dataclasses.asdict(audit)
    fields = {"version": fields.pop("version"), **fields}
    fields["totals"] = [dataclasses.asdict(total) for total in audit.totals]
    fields["traffic"] = [dataclasses.asdict(total) for total in audit.traffic]
    return json.dumps(fields, indent=1, ensure_ascii=False, allow_nan=False)


def read_fields(text: str) -> dict[str, Any]:
    """Return the arguments of the `Audit` in a JSON text; its totals are computed again."""
    try:
        fields = json.loads(text)
        if fields["version"] != VERSION:
            raise ValueError(f"it is of version {fields['version']}, not {VERSION}")
        return dict(
            step=fields["step"],
            devices=tuple(fields["devices"]),
            assume_gpus=fields["assume_gpus"],
            kernels_from=fields["kernels_from"],
            operations=_read(Operation, fields["operations"]),
            copies=_read(Copy, fields["copies"]),
            collectives=_read(Collective, fields["collectives"]),
            fallbacks=_read(Fallback, fields["fallbacks"]),
            gathered=tuple(GatheredOperation(**operation) for operation in fields["gathered"]),
        )
    except (ValueError, TypeError, KeyError) as error:
        raise PlacementError(
            "PLACE-034",
            "The text is not an audit.",
            why=f"{type(error).__name__}: {error}.",
            fix="Pass the output of Audit.to_json or `evener audit --json`, of the same version of "
            "evener.",
        ) from error


def _read(kind: Callable[..., T], entries: list[Mapping[str, Any]]) -> tuple[T, ...]:
    return tuple(kind(**{**entry, **_lines(entry)}) for entry in entries)


def _lines(entry: Mapping[str, Any]) -> dict[str, Line | None]:
    given = {name: entry[name] for name in ("line", "needed_by") if name in entry}
    return {name: None if line is None else Line(**line) for name, line in given.items()}


# The `Audit`, and its forms: JSON, and tables.


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
        from evener.base.terminal import text_of

        return text_of(lambda console: print_audit(self, console))

    def _repr_html_(self) -> str:
        """Return the tables as HTML, for notebooks."""
        from evener.base.terminal import html_of

        return html_of(str(self))
