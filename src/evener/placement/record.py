"""What an audit says: operations, copies, fallbacks, and their totals."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from evener.own_code import short_path
from evener.tf_compat.gathered import GatheredOperation

Kind = Literal["forward", "gradient", "optimizer", "input"]
KINDS: tuple[Kind, ...] = ("forward", "gradient", "optimizer", "input")

Reason = Literal["no_gpu_kernel", "no_kernel_for_dtype", "host_memory", "no_such_device", "beside"]
REASONS: tuple[Reason, ...] = (
    "no_gpu_kernel",
    "no_kernel_for_dtype",
    "host_memory",
    "no_such_device",
    "beside",
)
# What TensorFlow does on purpose, for shapes and counters and beside a variable.
_NO_FINDINGS = ("host_memory", "beside")

VERSION = 1
"""The version of the form in which audits are written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of the person's own code.

    Args:
        path: The absolute path of its file.
        number: Counted from 1.
    """

    path: str
    number: int

    def __str__(self) -> str:
        return f"{short_path(self.path)}:{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation of the step, as TensorFlow placed it.

    Args:
        name: Its name in the placed graph.
        type: Such as ``"MatMul"``.
        asked: The device that the program asks for; None if for none.
        used: The device it runs on.
        kind: What it works for.
        line: The line that made it; None if no line is the person's own.
        within: The operation whose function it belongs to, if that function is not placed
            operation by operation: it is compiled, or run by `tf.data`.
    """

    name: str
    type: str
    asked: str | None
    used: str
    kind: Kind
    line: Line | None
    within: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A tensor that goes from one device to another in the step.

    Args:
        tensor: Its name, such as ``"dense/MatMul"``.
        num_bytes: Its size; None if its shape is not known before the step runs.
        source: The device it comes from.
        target: The device it goes to.
        kind: What the operation that made it works for.
        line: The line that made the tensor; None if no line is the person's own.
        needed_by: The line of an operation that needs it there; None as above.
        in_loop: Whether it is copied once per iteration of a loop in the graph.
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
    """A device's part in an operation of all replicas together, such as an all-reduce.

    What these move is no copy of a tensor and is not counted as one: how it goes from device
    to device is the business of the library that does it (NCCL, or TensorFlow's ring).

    Args:
        operation: Its name.
        type: Such as ``"CollectiveReduceV2"``.
        device: The device.
        num_bytes: The size of the tensor that is combined; None if it is not known.
        line: The line that made it; None if no line is the person's own.
    """

    operation: str
    type: str
    device: str
    num_bytes: int | None
    line: Line | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """An operation that does not, or would not, run on the GPU it is meant for.

    Args:
        operation: Its name.
        type: Its type.
        asked: The device that the program asks for; None if the audit is meant for GPUs.
        used: The device it runs on here.
        reason: ``"no_gpu_kernel"``, ``"no_kernel_for_dtype"``, ``"host_memory"``,
            ``"no_such_device"`` or ``"beside"``.
        why: The reason in words, with the dtypes.
        line: The line that made it; None if no line is the person's own.
    """

    operation: str
    type: str
    asked: str | None
    used: str
    reason: Reason
    why: str
    line: Line | None

    @property
    def is_finding(self) -> bool:
        """Whether somebody should look at it: not what TensorFlow does on purpose."""
        return self.reason not in _NO_FINDINGS


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """How much of one kind of work one device does.

    Args:
        device: The device.
        kind: The kind of work.
        num_operations: How many operations.
    """

    device: str
    kind: Kind
    num_operations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """All that goes from one device to another in the step.

    Args:
        source: The device it comes from.
        target: The device it goes to.
        num_copies: How many tensors.
        num_bytes: Their bytes, as far as they are known.
        num_unknown: How many of the tensors have an unknown size.
    """

    source: str
    target: str
    num_copies: int
    num_bytes: int
    num_unknown: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """Where one step runs, and what it moves.

    Args:
        step: What was audited, such as ``"train_step"``.
        devices: The devices that TensorFlow has.
        meant_for: ``"gpu"`` if operations that ask for no device are meant for GPUs.
        kernels_from: Who answered which operations have a GPU kernel: ``"TensorFlow"``, the
            installed one, or ``"table"``, one that is part of evener.
        operations: All operations of the step.
        copies: All copies between devices.
        collectives: The devices' parts in operations of all replicas together.
        fallbacks: The operations that do not run on the GPU they are meant for.
        gathered: Of a step that evener partitioned: the operations that are computed once, on one
            device, of the samples of all.
        version: Of the form in which it is written.
    """

    step: str
    devices: tuple[str, ...]
    meant_for: Literal["gpu"] | None
    kernels_from: Literal["TensorFlow", "table"]
    operations: tuple[Operation, ...]
    copies: tuple[Copy, ...]
    collectives: tuple[Collective, ...]
    fallbacks: tuple[Fallback, ...]
    gathered: tuple[GatheredOperation, ...] = ()
    version: int = VERSION

    @property
    def findings(self) -> tuple[Fallback, ...]:
        """The fallbacks that somebody should look at."""
        return tuple(fallback for fallback in self.fallbacks if fallback.is_finding)

    @property
    def totals(self) -> tuple[Total, ...]:
        """The number of operations per device and kind of work, in a fixed order."""
        counted: Counter[tuple[str, Kind]] = Counter((op.used, op.kind) for op in self.operations)
        return tuple(
            Total(device=device, kind=kind, num_operations=counted[device, kind])
            for device, kind in sorted(counted, key=lambda key: (key[0], KINDS.index(key[1])))
        )

    @property
    def traffic(self) -> tuple[Traffic, ...]:
        """What goes from device to device, the most bytes first."""
        ways = {(copy.source, copy.target) for copy in self.copies}
        found = [_traffic(self.copies, *way) for way in sorted(ways)]
        return tuple(sorted(found, key=lambda one: -one.num_bytes))

    @property
    def moved_bytes(self) -> int:
        """The bytes of all copies whose size is known."""
        return sum(copy.num_bytes or 0 for copy in self.copies)

    def to_json(self) -> str:
        """Return the audit as JSON."""
        from evener.placement.serialise import write_audit

        return write_audit(self)

    @classmethod
    def from_json(cls, text: str) -> Audit:
        """Return the audit that `to_json` wrote.

        Raises:
            PlacementError: PLACE-034 if the text is no audit.
        """
        from evener.placement.serialise import read_audit

        return read_audit(text)


def _traffic(copies: tuple[Copy, ...], source: str, target: str) -> Traffic:
    sizes = [copy.num_bytes for copy in copies if (copy.source, copy.target) == (source, target)]
    return Traffic(
        source=source,
        target=target,
        num_copies=len(sizes),
        num_bytes=sum(size or 0 for size in sizes),
        num_unknown=sizes.count(None),
    )
