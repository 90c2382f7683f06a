"""The parts that a Plan is made of.

A part only brings its values into one form (lists become tuples, mappings become
hashable). What is right and wrong is decided by the Plan, which alone knows at which
place a part stands: see `evener.plan.validate`.
"""

from __future__ import annotations

import math
import numbers
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import FrozenInstanceError, dataclass
from typing import Any, Literal, NoReturn, TypeVar, cast, final

from evener.plan.names import DeviceKind, parse_device_name

Number = TypeVar("Number", int, float)


class _ByDevice(Mapping[str, Number]):
    """An immutable, hashable mapping from device name to a number, sorted by name."""

    __slots__ = ("pairs",)

    pairs: tuple[tuple[str, Number], ...]

    def __init__(self, numbers: Mapping[str, Number]) -> None:
        pairs = ((name, self._number(value)) for name, value in numbers.items())
        object.__setattr__(self, "pairs", tuple(sorted(pairs, key=lambda pair: str(pair[0]))))

    @staticmethod
    @abstractmethod
    def _number(value: Any) -> Any:
        """Return a number in one form, and everything else unchanged."""

    def __setattr__(self, name: str, value: object) -> NoReturn:
        """Refuse changes."""
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __getitem__(self, name: str) -> Number:
        """Return the number of one device."""
        return dict(self.pairs)[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the device names."""
        return iter(dict(self.pairs))

    def __len__(self) -> int:
        """Return the number of devices."""
        return len(self.pairs)

    def __hash__(self) -> int:
        """Return the same hash for equal mappings."""
        return hash(self.pairs)

    def __reduce__(self) -> tuple[object, ...]:
        """Copy by the call that makes this value."""
        return type(self), (dict(self.pairs),)

    def __repr__(self) -> str:
        """Return the call that makes this value."""
        return f"{type(self).__name__}({dict(self.pairs)!r})"


@final
class DeviceBytes(_ByDevice[int]):
    """An immutable, hashable mapping from device name to bytes, sorted by name.

    >>> DeviceBytes({"gpu:1": 5, "gpu:0": 7})
    DeviceBytes({'gpu:0': 7, 'gpu:1': 5})
    """

    __slots__ = ()

    @staticmethod
    def _number(value: Any) -> Any:
        return as_whole(value)


@final
class DeviceSeconds(_ByDevice[float]):
    """An immutable, hashable mapping from device name to seconds, sorted by name."""

    __slots__ = ()

    @staticmethod
    def _number(value: Any) -> Any:
        return as_double(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDevice:
    """A device that a plan was made for.

    Args:
        name: ``"gpu:0"``, ``"cpu:1"``, or with a worker before it ``"worker:1/gpu:0"``.
        kind: ``"gpu"`` or ``"cpu"``, as the name says.
        memory_bytes: What the plan may use of its memory, at least 1; None if unknown.
    """

    name: str
    kind: DeviceKind
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        """Bring NumPy's integers into Python's form."""
        _set(self, "memory_bytes", as_whole(self.memory_bytes))

    @classmethod
    def named(cls, name: str, memory_bytes: int | None = None) -> PlanDevice:
        """Return the device of that name, its kind read from the name.

        Raises:
            PlanError: PLAN-001 if it is not a device name.

        >>> PlanDevice.named("gpu:0")
        PlanDevice(name='gpu:0', kind='gpu', memory_bytes=None)
        """
        return cls(name=name, kind=parse_device_name(name).kind, memory_bytes=memory_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerRule:
    """The variables that match a pattern live on a device.

    Args:
        pattern: Of variable paths, in the style of `fnmatch` (``*`` also spans ``/``), such
            as ``"embedding/*"``.
        device: One of the plan's devices, or ``"host"``.
    """

    pattern: str
    device: str


Owners = Literal["sharded", "central"] | tuple[OwnerRule, ...]
"""``"sharded"``: spread over the devices. ``"central"``: on the host. Or rules, in order."""


ScheduleName = Literal["1f1b", "gpipe", "zero_bubble"]
"""In which order the micro-batches of a replica are computed: see `schedule_for`."""

BatchNormName = Literal["synchronized", "per_device"]
"""Of which samples BatchNormalization takes its statistics: see `Plan`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A part of the layers of a replica, and the device that computes them.

    Args:
        device: One of the plan's devices.
        layers: Patterns of layer names in the style of `fnmatch`. ``("*",)``, all layers,
            is right for a replica of one stage only.
    """

    device: str
    layers: tuple[str, ...] = ("*",)

    def __post_init__(self) -> None:
        """Store a list as a tuple."""
        _set(self, "layers", as_tuple(self.layers))


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A whole model at work: its share of every batch, and its stages in order.

    Args:
        share: Samples of each global batch relative to the other replicas, 0 or more:
            320 and 192, or 0.625 and 0.375.
        stages: The stages in the order in which samples pass through them.
        num_micro_batches: Into how many micro-batches the replica's samples are split, at least 1.
        in_flight: How many of them are alive at once, from 1 (gradient accumulation) to
            ``num_micro_batches``. The number of stages gives the memory of 1F1B.
        schedule: The order of their forward and backward passes: ``"1f1b"``, ``"gpipe"`` or
            ``"zero_bubble"``.
    """

    share: float
    stages: tuple[Stage, ...]
    num_micro_batches: int = 1
    in_flight: int = 1
    schedule: ScheduleName = "1f1b"

    def __post_init__(self) -> None:
        """Bring lists and numbers into one form."""
        _set(self, "share", as_double(self.share))
        _set(self, "stages", as_tuple(self.stages))
        _set(self, "num_micro_batches", as_whole(self.num_micro_batches))
        _set(self, "in_flight", as_whole(self.in_flight))


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """What the planner expects of the plan.

    Args:
        step_seconds: The time of one training step in seconds, 0 or more.
        peak_bytes: Device name (or ``"host"``) to the most bytes in use there, 0 or more.
            Any mapping; it is stored as `DeviceBytes`.
        busy_seconds: Device name to the seconds of a step in which it computes forward and backward
            passes, 0 or more; empty if unknown. Any mapping; it is stored as `DeviceSeconds`.
        batch_size: The samples of the global batch that this holds for; None if unknown.
    """

    step_seconds: float
    peak_bytes: Mapping[str, int]
    busy_seconds: Mapping[str, float] = DeviceSeconds({})
    batch_size: int | None = None

    def __post_init__(self) -> None:
        """Store the mappings in a hashable form."""
        _set(self, "step_seconds", as_double(self.step_seconds))
        _set(self, "batch_size", as_whole(self.batch_size))
        if isinstance(cast(object, self.peak_bytes), Mapping):
            _set(self, "peak_bytes", DeviceBytes(self.peak_bytes))
        if isinstance(cast(object, self.busy_seconds), Mapping):
            _set(self, "busy_seconds", DeviceSeconds(self.busy_seconds))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """Another layout that was considered.

    Args:
        layout: What it was, in words.
        reason: Why it lost, with numbers.
    """

    layout: str
    reason: str


def as_tuple(value: Any) -> Any:
    """Return a list as a tuple, and everything else unchanged."""
    return tuple(cast("list[object]", value)) if isinstance(value, list) else value


def as_double(value: Any) -> Any:
    """Return a real number as a double, and everything else unchanged."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return value
    try:
        return float(value)
    except OverflowError:  # A whole number of more than 300 digits.
        return math.inf if cast(Any, value) > 0 else -math.inf


def as_whole(value: Any) -> Any:
    """Return any kind of integer as `int`, and everything else unchanged."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        return value
    return int(value)


def _set(part: object, field: str, value: object) -> None:
    object.__setattr__(part, field, value)
