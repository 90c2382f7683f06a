"""Parts of a Plan: device names, stages, replicas, owners of variables, predictions.

A part only normalizes its values (lists become tuples, mappings become hashable). The Plan checks
them, because only the Plan knows the place of a part. Patterns of layers and of variables are
matched here.
"""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import FrozenInstanceError, dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, NoReturn, TypeVar, cast, final

from evener.errors import PlanError

DeviceKind = Literal["gpu", "cpu"]

HOST = "host"
"""Name of the host memory as an owner of variables."""

HOST_DEVICE = "cpu:0"
"""The device that `HOST` means, whether or not the plan computes on it."""

# At most six digits and no leading zero: one device has one name.
_NUMBER = r"(0|[1-9][0-9]{0,5})"
_NAME = re.compile(rf"(?:worker:{_NUMBER}/)?(gpu|cpu):{_NUMBER}")
# Other spellings: ``/GPU:0``, ``cuda:0``, or slips like ``gpu0``.
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
        near = _NEARLY.search(text.lower())
        nearest = near and f"{near[1].replace('cuda', 'gpu')}:{int(near[2])}"
        raise PlanError(
            "PLAN-001",
            f"{path} is {text!r}, which is not a device name."
            + (f" Did you mean '{nearest}'?" if nearest else ""),
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


def to_double(value: Any) -> Any:
    """Return a real number as a double, and everything else unchanged."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return value
    try:
        return float(value)
    except OverflowError:  # A whole number of more than 300 digits.
        return math.inf if cast(Any, value) > 0 else -math.inf


def to_whole(value: Any) -> Any:
    """Return any kind of integer as `int`, and everything else unchanged."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        return value
    return int(value)


def to_tuple(value: Any) -> Any:
    """Return a list as a tuple, and everything else unchanged."""
    return tuple(cast("list[object]", value)) if isinstance(value, list) else value


def _set(part: object, **fields: object) -> None:
    for name, value in fields.items():
        object.__setattr__(part, name, value)


Number = TypeVar("Number", int, float)


class _ByDevice(Mapping[str, Number]):
    """An immutable, hashable mapping from device name to a number, sorted by name."""

    __slots__ = ("pairs",)

    pairs: tuple[tuple[str, Number], ...]

    def __init__(self, numbers: Mapping[str, Number]) -> None:
        normal = to_whole if isinstance(self, DeviceBytes) else to_double
        pairs = ((name, normal(value)) for name, value in numbers.items())
        _set(self, pairs=tuple(sorted(pairs, key=lambda pair: str(pair[0]))))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __getitem__(self, name: str) -> Number:
        return dict(self.pairs)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict(self.pairs))

    def __len__(self) -> int:
        return len(self.pairs)

    def __hash__(self) -> int:
        return hash(self.pairs)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (dict(self.pairs),)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict(self.pairs)!r})"


@final
class DeviceBytes(_ByDevice[int]):
    """An immutable, hashable mapping from device name to bytes, sorted by name.

    >>> DeviceBytes({"gpu:1": 5, "gpu:0": 7})
    DeviceBytes({'gpu:0': 7, 'gpu:1': 5})
    """

    __slots__ = ()


@final
class DeviceSeconds(_ByDevice[float]):
    __slots__ = ()


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
        _set(self, memory_bytes=to_whole(self.memory_bytes))

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

ScheduleName = Literal["1f1b", "gpipe"]
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
        _set(self, layers=to_tuple(self.layers))


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
        schedule: Schedule of the forward and backward passes: ``"1f1b"`` or ``"gpipe"``.
    """

    share: float
    num_micro_batches: int = 1
    in_flight: int = 1
    schedule: ScheduleName = "1f1b"
    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        _set(
            self,
            share=to_double(self.share),
            stages=to_tuple(self.stages),
            num_micro_batches=to_whole(self.num_micro_batches),
            in_flight=to_whole(self.in_flight),
        )


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
        _set(self, step_seconds=to_double(self.step_seconds), batch_size=to_whole(self.batch_size))
        if isinstance(cast(object, self.peak_bytes), Mapping):
            _set(self, peak_bytes=DeviceBytes(self.peak_bytes))
        if isinstance(cast(object, self.busy_seconds), Mapping):
            _set(self, busy_seconds=DeviceSeconds(self.busy_seconds))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """Rejected alternative of a plan.

    Args:
        layout: Layout in words.
        reason: Reason of the rejection, with numbers.
    """

    layout: str
    reason: str


def parts_of_path(path: str) -> list[str]:
    """Return the paths that may name a layer or an enclosing one, the outermost first.

    >>> parts_of_path("model/block")
    ['model', 'model/block', 'block']
    """
    names = path.split("/")
    return [
        "/".join(names[begin:end])
        for begin in range(len(names))
        for end in range(begin + 1, len(names) + 1)
    ]


def matches(path: str, patterns: Sequence[str]) -> bool:
    """Return whether a layer, or an enclosing one, matches one of the patterns."""
    return any(fnmatchcase(part, p) for part in parts_of_path(path) for p in patterns)


def stage_of(path: str, stages: Sequence[Stage]) -> int | None:
    """Return the number of the stage of a layer: the outermost layer that a stage names decides.

    >>> stages = [Stage(device="cpu:0", layers=("a*",)), Stage(device="cpu:1", layers=("b",))]
    >>> stage_of("model/b/dense", stages), stage_of("head", stages)
    (1, None)
    """
    for part in parts_of_path(path):
        for number, stage in enumerate(stages):
            if any(fnmatchcase(part, pattern) for pattern in stage.layers):
                return number
    return None


def owner_of(path: str, rules: Iterable[OwnerRule]) -> str | None:
    """Return the device of the first rule whose pattern matches a variable's path.

    Args:
        path: Path of the variable, such as ``"encoder/dense_1/kernel"``. The part before its
            first slash may be the model's name, so the rest is matched as well.
        rules: Rules in order; the first match wins. Matching is case-sensitive.

    Returns:
        A device name (``"host"`` comes back as ``"cpu:0"``), or None if no rule matches.

    >>> rules = owner_rules({"embedding/*": "host", "*": "gpu:0"})
    >>> owner_of("embedding/table", rules), owner_of("dense/kernel", rules)
    ('cpu:0', 'gpu:0')
    """
    # Only some models put their own name before those of their layers.
    below = path.partition("/")[2]
    for rule in rules:
        if fnmatchcase(path, rule.pattern) or ("/" in below and fnmatchcase(below, rule.pattern)):
            return HOST_DEVICE if rule.device == HOST else rule.device
    return None


def owner_rules(devices: Mapping[str, str]) -> tuple[OwnerRule, ...]:
    """Return the rules of a mapping from pattern to device."""
    return tuple(OwnerRule(pattern=pattern, device=devices[pattern]) for pattern in devices)


def computing_devices(path: str, replicas: Sequence[Replica]) -> tuple[str, ...]:
    """Return the devices that compute the layer of a variable, as far as its path tells.

    The path consists of the enclosing layers, sometimes after the model's name; the outermost layer
    that a stage names decides.

    Args:
        path: Path of the variable, such as ``"encoder_3/attention/kernel"``.
        replicas: Replicas of a plan.

    >>> stages = (Stage(device="cpu:0", layers=("a*",)), Stage(device="cpu:1", layers=("b",)))
    >>> computing_devices("model/b/dense/kernel", [Replica(share=1, stages=stages)])
    ('cpu:1',)
    """
    layer, slash, _ = path.rpartition("/")
    devices: dict[str, None] = {}
    for replica in replicas:
        number = stage_of(layer, replica.stages) if slash else None
        if number is not None:
            devices[replica.stages[number].device] = None
    return tuple(devices)
