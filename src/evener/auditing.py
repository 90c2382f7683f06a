"""Audits, as values: the device of every operation of one training step, copies, and fallbacks.

`evener.audit` makes them (`evener.strategy.step_audit`); here are their totals, JSON and tables.
Importing this module does not import TensorFlow.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from evener.base.records import from_plain
from evener.base.terminal import html_of, standard_output, text_of
from evener.base.text import format_bytes
from evener.base.user_code import short_path
from evener.devices.names import kind_of
from evener.errors import PlacementError

if TYPE_CHECKING:
    import tensorflow as tf

__all__ = [
    "Audit",
    "Collective",
    "Copy",
    "Fallback",
    "Line",
    "Operation",
    "Total",
    "Traffic",
]

_TOP_COPIES = 10
_TOP_FALLBACKS = 20
_UNKNOWN = "-"
_CALLS = ("StatefulPartitionedCall", "PartitionedCall")

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
    def idle_devices(self) -> tuple[str, ...]:
        """The devices without an operation; the CPU beside GPUs has its own work."""
        used = {operation.device for operation in self.operations}
        has_gpu = any(kind_of(device).has_own_processor for device in self.devices)
        return tuple(
            device
            for device in self.devices
            if device not in used and (kind_of(device).has_own_processor or not has_gpu)
        )

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
        sizes: dict[tuple[str, str], list[int | None]] = {}
        for copy in sorted(self.copies, key=lambda copy: (copy.source, copy.target)):
            sizes.setdefault((copy.source, copy.target), []).append(copy.num_bytes)
        totals = [
            Traffic(
                source=source,
                target=target,
                num_copies=len(each),
                num_bytes=sum(size or 0 for size in each),
                num_unknown=each.count(None),
            )
            for (source, target), each in sizes.items()
        ]
        return tuple(sorted(totals, key=lambda total: -total.num_bytes))

    @property
    def moved_bytes(self) -> int:
        """Sum of the known sizes of all copies, in bytes."""
        return sum(copy.num_bytes or 0 for copy in self.copies)

    def to_json(self) -> str:
        """Return the audit as one JSON object; `from_json` restores it."""
        fields = {"version": self.version, **dataclasses.asdict(self)}
        # Other readers need not compute them.
        fields["totals"] = [dataclasses.asdict(total) for total in self.totals]
        fields["traffic"] = [dataclasses.asdict(total) for total in self.traffic]
        return json.dumps(fields, indent=1, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Audit:
        """Return the audit that `to_json` wrote.

        Raises:
            PlacementError: PLACE-034 if the text is not an audit.
        """
        try:
            fields = json.loads(text)
            if isinstance(fields, dict):
                if fields.get("version") != VERSION:
                    raise ValueError(f"it is of version {fields.get('version')}, not {VERSION}")
                fields = {k: v for k, v in fields.items() if k not in ("totals", "traffic")}
            return from_plain(fields, cls)
        except ValueError as error:
            raise PlacementError(
                "PLACE-034",
                "The text is not an audit.",
                why=f"{type(error).__name__}: {error}.",
                fix="Pass the output of Audit.to_json or `evener audit --json`, of the same "
                "version of evener.",
            ) from error

    def __str__(self) -> str:
        """Return the audit as plain text tables."""
        return text_of(lambda console: print_audit(self, console))

    def _repr_html_(self) -> str:
        return html_of(str(self))


def print_audit(audit: Audit, console: Console | None = None) -> None:
    """Print an audit, readable in 80 columns: work per device, the largest copies, fallbacks."""
    console = standard_output() if console is None else console
    title = f"{audit.step}: {len(audit.operations)} operations, not run"
    console.print(Text(f"{title}\nDevices: {', '.join(audit.devices)}"), soft_wrap=True)
    console.print(_work_table(audit))
    for line in _traffic_lines(audit):
        console.print(Text(line), soft_wrap=True)
    if audit.copies:
        number = len(audit.copies)
        noun = "copy" if number == 1 else "copies"
        most = f"The largest {_TOP_COPIES} of {number}" if number > _TOP_COPIES else str(number)
        console.print(Text(f"\n{most} {noun} between devices"))
        console.print(_copies_table(audit.copies))
    if audit.fallbacks:
        console.print(Text("\nOperations not placed on their requested device"))
        console.print(_fallbacks_table(audit.fallbacks))
    if audit.gathered:
        console.print(
            Text("\nGathered operations: computed once, on one device, for the global batch")
        )
        table = _table("bytes per sample", "operation", "line")
        operations = sorted(audit.gathered, key=lambda operation: -(operation.num_bytes or 0))
        for each in operations[:_TOP_FALLBACKS]:
            table.add_row(_size(each.num_bytes), Text(each.operation), Text(each.line or _UNKNOWN))
        console.print(table)
    kernels = "" if audit.kernels_from == "TensorFlow" else " (kernels: evener's table)"
    number, left = len(audit.findings), len(audit.fallbacks)
    if number:
        noun = "operation is" if number == 1 else "operations are"
        verdict = f"{number} {noun} not on the requested device"
    elif audit.idle_devices:
        verdict = (
            f"{', '.join(audit.idle_devices)}: no operation of this step runs there, for the "
            "program gives it none. `evener run` trains on all devices."
        )
    else:
        verdict = f"no findings{f'; {left} small operations run on the host' if left else ''}"
    console.print(Text(f"\n{verdict}{kernels}"), soft_wrap=True)


def _table(number: str, *texts: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(number, justify="right", no_wrap=True)
    for heading in texts:
        table.add_column(heading, overflow="fold")
    return table


def _work_table(audit: Audit) -> Table:
    """Return the number of operations per device and kind of work."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("device", no_wrap=True)
    for kind in KINDS:
        table.add_column(kind, justify="right", no_wrap=True)
    counted = {(total.device, total.kind): total.num_operations for total in audit.totals}
    # A device without an operation is idle, which a table of the others does not say.
    for device in sorted({*audit.devices, *(device for device, _ in counted)}):
        table.add_row(device, *(str(counted.get((device, kind), _UNKNOWN)) for kind in KINDS))
    return table


def _traffic_lines(audit: Audit) -> list[str]:
    lines: list[str] = []
    for pair in audit.traffic:
        unknown = f", {pair.num_unknown} of unknown size" if pair.num_unknown else ""
        lines.append(
            f"{pair.source} -> {pair.target}: {format_bytes(pair.num_bytes)} in "
            f"{pair.num_copies} {'copy' if pair.num_copies == 1 else 'copies'}{unknown}"
        )
    for device in sorted({collective.device for collective in audit.collectives}):
        local = [collective for collective in audit.collectives if collective.device == device]
        size = format_bytes(sum(collective.num_bytes or 0 for collective in local))
        types = ", ".join(sorted({collective.type for collective in local}))
        noun = "operation" if len(local) == 1 else "operations"
        lines.append(f"{device} takes part in {len(local)} collective {noun} on {size} ({types})")
    return lines or ["no copies between devices"]


def _copies_table(copies: Sequence[Copy]) -> Table:
    """Return the largest copies between devices, with the lines."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("from", no_wrap=True)
    table.add_column("to", no_wrap=True)
    table.add_column("tensor", ratio=3, overflow="fold")
    table.add_column("made at, used at", ratio=2, overflow="fold")
    for copy in sorted(copies, key=lambda copy: -(copy.num_bytes or 0))[:_TOP_COPIES]:
        size = _size(copy.num_bytes)
        # Without the names of the calls around the operation.
        parts = [part for part in copy.tensor.split("/") if not part.startswith(_CALLS)]
        lines = [str(line) for line in (copy.line, copy.needed_by) if line is not None]
        table.add_row(
            f"{size} per iteration" if copy.in_loop else size,
            copy.source,
            copy.target,
            Text("/".join(parts) or copy.tensor),
            Text(", ".join(dict.fromkeys(lines)) or _UNKNOWN),
        )
    return table


def _fallbacks_table(fallbacks: Sequence[Fallback]) -> Table:
    """Return the operations that do not run on their requested GPU, grouped by reason."""
    counted = Counter((fallback.why, fallback.is_finding) for fallback in fallbacks)
    # Findings first, the most frequent on top.
    order = sorted(counted, key=lambda key: (not key[1], -counted[key]))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("number", justify="right", no_wrap=True)
    table.add_column("operations", ratio=2, overflow="fold")
    table.add_column("why not there", ratio=4, overflow="fold")
    table.add_column("lines", ratio=2, overflow="fold")
    for why, is_finding in order[:_TOP_FALLBACKS]:
        same = [fallback for fallback in fallbacks if fallback.why == why]
        lines = sorted({str(fallback.line) for fallback in same if fallback.line is not None})
        table.add_row(
            str(counted[why, is_finding]),
            Text(_some(sorted({fallback.type for fallback in same}))),
            Text(why),
            Text(_some(lines or [_UNKNOWN])),
        )
    return table


def _size(num_bytes: int | None) -> str:
    return "unknown" if num_bytes is None else format_bytes(num_bytes)


def _some(names: list[str]) -> str:
    few = 3
    return ", ".join(names[:few]) + (f" and {len(names) - few} more" if len(names) > few else "")


# Not for type checkers, to which it would be any name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name != "audit":
            raise AttributeError(f"module 'evener.auditing' has no attribute {name!r}")
        return importlib.import_module("evener.strategy.step_audit").audit
