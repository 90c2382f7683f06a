"""The records of an audit: operations, copies, collectives, fallbacks, and their totals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from evener.own_code import short_path

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
