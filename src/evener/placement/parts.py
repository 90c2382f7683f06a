"""The parts of an audit: operations, copies, collectives, fallbacks, and totals of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from evener.own_code import short_path

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
