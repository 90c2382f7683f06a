"""Parts of a Plan.

A part only normalizes its values (lists become tuples, mappings become hashable). The Plan
validates them, because only the Plan knows the path of a part: see `evener.plan.validate`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import FrozenInstanceError, dataclass
from typing import Any, Literal, NoReturn, TypeVar, cast, final

from evener.plan.names import DeviceKind, parse_device_name
from evener.plan.typed_values import as_double, as_tuple, as_whole

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
        """Return a number in its normal form, and everything else unchanged."""

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
        """Copy and pickle by the constructor call."""
        return type(self), (dict(self.pairs),)

    def __repr__(self) -> str:
        """Return the constructor call of this value."""
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
    """Device of a plan.

    Args:
        name: Device name: ``"gpu:0"``, ``"cpu:1"``, or with a worker ``"worker:1/gpu:0"``.
        kind: Kind of the device, ``"gpu"`` or ``"cpu"``, the same as in the name.
        memory_bytes: Bytes that the plan may use of its memory, at least 1; None if unknown.
    """

    name: str
    kind: DeviceKind
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        """Convert NumPy integers to Python integers."""
        _set(self, "memory_bytes", as_whole(self.memory_bytes))

    @classmethod
    def named(cls, name: str, memory_bytes: int | None = None) -> PlanDevice:
        """Return the device of a name; the name has its kind.

        Raises:
            PlanError: PLAN-001 if it is not a device name.

        >>> PlanDevice.named("gpu:0")
        PlanDevice(name='gpu:0', kind='gpu', memory_bytes=None)
        """
        return cls(name=name, kind=parse_device_name(name).kind, memory_bytes=memory_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerRule:
    """Rule that a device owns the variables that match a pattern.

    Args:
        pattern: Pattern of variable paths in the style of `fnmatch` (``*`` also matches ``/``),
            such as ``"embedding/*"``.
        device: Device of the plan, or ``"host"``.
    """

    pattern: str
    device: str


Owners = Literal["sharded", "central"] | tuple[OwnerRule, ...]
"""``"sharded"``: spread over the devices. ``"central"``: on the host. Or rules, in order."""


ScheduleName = Literal["1f1b", "gpipe", "zero_bubble"]
"""Schedule of a replica's micro-batches: see `schedule_for`."""

BatchNormName = Literal["synchronized", "per_device"]
"""Samples of the statistics of BatchNormalization: see `Plan`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Stage of a replica: a part of its layers on one device.

    Args:
        device: Device of the plan.
        layers: Patterns of layer names in the style of `fnmatch`. ``("*",)``, all layers, is only
            allowed for a replica of one stage.
    """

    device: str
    layers: tuple[str, ...] = ("*",)

    def __post_init__(self) -> None:
        """Store a list as a tuple."""
        _set(self, "layers", as_tuple(self.layers))


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """Replica of the model: its share of every batch, and its stages in order.

    Args:
        share: Samples of each global batch relative to the other replicas, 0 or more:
            320 and 192, or 0.625 and 0.375.
        stages: Stages in the order in which samples pass through them.
        num_micro_batches: Number of micro-batches that the samples are split into, at least 1.
        in_flight: Most micro-batches alive at once, from 1 (gradient accumulation) to
            ``num_micro_batches``. The number of stages gives the memory of 1F1B.
        schedule: Schedule of the forward and backward passes: ``"1f1b"``, ``"gpipe"`` or
            ``"zero_bubble"``.
    """

    share: float
    stages: tuple[Stage, ...]
    num_micro_batches: int = 1
    in_flight: int = 1
    schedule: ScheduleName = "1f1b"

    def __post_init__(self) -> None:
        """Normalize lists and numbers."""
        _set(self, "share", as_double(self.share))
        _set(self, "stages", as_tuple(self.stages))
        _set(self, "num_micro_batches", as_whole(self.num_micro_batches))
        _set(self, "in_flight", as_whole(self.in_flight))


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """Prediction of the planner for a plan.

    Args:
        step_seconds: Time of one training step in seconds, 0 or more.
        peak_bytes: Peak bytes in use by device name (or ``"host"``), 0 or more. Any mapping; it is
            stored as `DeviceBytes`.
        busy_seconds: Seconds of a step that each device computes forward and backward passes, by
            device name, 0 or more; empty if unknown. Any mapping; it is stored as `DeviceSeconds`.
        batch_size: Samples of the global batch of this prediction; None if unknown.
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
    """Rejected alternative of a plan.

    Args:
        layout: Layout in words.
        reason: Reason of the rejection, with numbers.
    """

    layout: str
    reason: str


def _set(part: object, field: str, value: object) -> None:
    object.__setattr__(part, field, value)
