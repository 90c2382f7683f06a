"""Device names: ``gpu:0``, ``cpu:1``, and ``worker:1/gpu:0`` on another machine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, cast

from evener.errors import PlanError

DeviceKind = Literal["gpu", "cpu"]

HOST = "host"
"""Name of the host memory as an owner of variables."""

HOST_DEVICE = "cpu:0"
"""The device that `HOST` means, whether or not the plan computes on it."""

# At most six digits and no leading zero: one device has one name.
_NUMBER = r"(0|[1-9][0-9]{0,5})"
_NAME = re.compile(rf"(?:worker:{_NUMBER}/)?(gpu|cpu):{_NUMBER}")
_NEARLY = re.compile(r"(gpu|cuda|cpu)[^0-9]*0*([0-9]{1,6})$")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceName:
    """Parsed device name.

    Args:
        kind: ``"gpu"`` or ``"cpu"``.
        index: Number among the devices of that kind in its worker, from 0.
        worker: Number of the machine, from 0; None if there is only one.

    >>> str(DeviceName(kind="gpu", index=0, worker=1))
    'worker:1/gpu:0'
    """

    kind: DeviceKind
    index: int
    worker: int | None = None

    def __str__(self) -> str:
        """Return the name as it is written in a plan."""
        prefix = "" if self.worker is None else f"worker:{self.worker}/"
        return f"{prefix}{self.kind}:{self.index}"


def parse_device_name(text: str, *, path: str = "device") -> DeviceName:
    """Parse a device name.

    Args:
        text: Name such as ``"gpu:0"`` or ``"worker:1/cpu:0"``, lower case.
        path: Path of the name in the plan, for the error.

    Raises:
        PlanError: PLAN-001 if the text is not a device name.

    >>> parse_device_name("worker:1/gpu:0")
    DeviceName(kind='gpu', index=0, worker=1)
    """
    match = _NAME.fullmatch(text)
    if match is None:
        raise PlanError(
            "PLAN-001",
            f"{path} is {text!r}, which is not a device name.{_nearest(text)}",
            why="names are lower case: gpu:INDEX or cpu:INDEX, with worker:INDEX/ before it "
            "for a device of another machine.",
            fix="write for example 'gpu:0', 'cpu:0' or 'worker:1/gpu:0'; "
            "`evener devices` lists the names that are here.",
        )
    worker, kind, index = match.groups()
    return DeviceName(
        kind=cast(DeviceKind, kind),
        index=int(index),
        worker=None if worker is None else int(worker),
    )


def _nearest(text: str) -> str:
    """Suggest a name for other spellings: ``/GPU:0``, ``cuda:0`` or slips like ``gpu0``."""
    match = _NEARLY.search(text.lower())
    if match is None:
        return ""
    kind = match.group(1).replace("cuda", "gpu")
    return f" Did you mean '{kind}:{int(match.group(2))}'?"
