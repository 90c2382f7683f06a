"""Clusters that are described in YAML: devices, machines, links, and datasheets or measured curves.

::

    device_types:   name -> memory, datasheet figures or curves, their source
    machines:       groups of equal machines: devices, links, host
    network:        between machines

Every error has the file, the line and the place. Quantities have units, such as ``16 GB/s``,
``5 us``, ``125 TFLOP/s``.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib import resources
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

import yaml

from evener.base.records import RecordError, from_plain
from evener.base.text import parse_bytes
from evener.errors import ProfileError, did_you_mean
from evener.plan.parts import DeviceKind, DeviceName
from evener.plan.profile import Cluster, ClusterDevice, Curve, LayerCosts, LayerTimes, Link, Machine

T = TypeVar("T")

MOST_DEVICES = 100_000
"""Largest number of devices; more are assumed to be a mistake."""

_DATASHEET = ("peak", "dtype", "memory_bandwidth", "efficiency", "efficiency_source")
_SUFFIX = ".yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Datasheet:
    """Datasheet of a type of device, with the efficiency reached in training.

    Args:
        peak_flops: Peak floating-point operations per second in `dtype`.
        dtype: Dtype of training, such as ``"float16"``.
        memory_bytes_per_second: Bandwidth of its own memory.
        efficiency: Fraction of the peak that matrix products reach in training, above 0 and at most
            1.
        efficiency_source: Source of the efficiency, or reason of the assumption.
        launch_seconds: Seconds to launch an operation, 0 or more.
        float32_flops: Peak operations per second in float32, or in TF32 where TensorFlow uses it;
            None if the datasheet is for another dtype alone.
    """

    peak_flops: float
    dtype: str
    memory_bytes_per_second: float
    efficiency: float
    efficiency_source: str
    launch_seconds: float
    float32_flops: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceType:
    """Type of device with a datasheet, measured curves, or both.

    Args:
        name: Name of the type, such as ``"v100"``.
        kind: Kind of device, ``"gpu"`` or ``"cpu"``.
        memory_bytes: Bytes of its memory that a plan may use.
        datasheet: Datasheet; None if there are only curves.
        curves: Measured times by pattern of layer names or kinds; the first match wins.
        source: Source of the figures.
    """

    name: str
    kind: DeviceKind
    memory_bytes: int
    datasheet: Datasheet | None
    curves: Mapping[str, LayerTimes] = field(default_factory=dict[str, LayerTimes], hash=False)
    source: str

    def measured(self, layer: LayerCosts) -> LayerTimes | None:
        """Return the measured times of a layer, or None."""
        for pattern, times in self.curves.items():
            if fnmatchcase(layer.name, pattern) or (layer.kind and layer.kind == pattern):
                return times
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDescription:
    """Description of a cluster, which may be unavailable.

    Args:
        cluster: Devices, machines and links.
        types: Types of its devices by name.
        about: Description in a sentence.
    """

    cluster: Cluster
    types: Mapping[str, DeviceType] = field(hash=False)
    about: str = ""


def cluster_names() -> tuple[str, ...]:
    """Return the names that `cluster_named` knows, sorted."""
    files = resources.files("evener.clusters").joinpath("described").iterdir()
    names = [file.name.removesuffix(_SUFFIX) for file in files if file.name.endswith(_SUFFIX)]
    return tuple(sorted(names))


def cluster_named(name: str) -> ClusterDescription:
    """Return a cluster description that evener ships.

    Args:
        name: Name of the cluster; see `cluster_names`.

    Raises:
        ProfileError: PROF-038 if the name is unknown.

    >>> cluster_named("rtx3090-rtx3060").cluster.devices[1].type
    'rtx3060'
    """
    names = cluster_names()
    if name not in names:
        raise ProfileError(
            "PROF-038",
            f"There is no cluster named {name!r}.{did_you_mean(name, names)}",
            why=f"Those described with evener are {', '.join(names)}.",
            fix="Use one of them, or read a file of your own with read_cluster.",
        )
    file = resources.files("evener.clusters").joinpath("described", name + _SUFFIX)
    return parse_cluster(file.read_text(encoding="utf-8"), file=name + _SUFFIX)


def read_cluster(path: str | Path) -> ClusterDescription:
    """Return the cluster that a YAML file describes.

    Args:
        path: Path of the file; docs/clusters.md describes its form.

    Raises:
        ProfileError: PROF-037 if the file cannot be read, and the errors of `parse_cluster`.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(
            "PROF-037",
            f"The cluster file {str(file)!r} cannot be read.",
            why=f"{error}.",
            fix="Name a YAML file in UTF-8; docs/clusters.md has an example.",
        ) from error
    return parse_cluster(text, file=file.name)


def parse_cluster(text: str, *, file: str = "cluster.yaml") -> ClusterDescription:
    """Return the cluster that a YAML text describes.

    Args:
        text: Content of a cluster file.
        file: Name of the file, for errors.

    Raises:
        ProfileError: PROF-030 to PROF-036 with the file, the line and the path.

    >>> described = parse_cluster('''
    ... device_types:
    ...   small: {memory: 8 GiB, peak: 10 TFLOP/s, dtype: float32, memory_bandwidth: 300 GB/s,
    ...           efficiency: 0.5, efficiency_source: assumed, source: its datasheet}
    ... machines:
    ...   - devices: {small: 2}
    ...     link: {bandwidth: 12 GB/s, latency: 10 us}
    ...     host_link: {bandwidth: 12 GB/s}
    ... ''')
    >>> [device.name for device in described.cluster.devices]
    ['gpu:0', 'gpu:1']
    """
    return _ClusterFile(file).read(text)


# A file as it is written: every value is a text.


@dataclass(frozen=True, slots=True, kw_only=True)
class _LinkFields:
    bandwidth: str
    latency: str = "0 s"
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _CurveFields:
    forward: tuple[tuple[str, ...], ...]
    backward: tuple[tuple[str, ...], ...]
    update: str = "0 s"


@dataclass(frozen=True, slots=True, kw_only=True)
class _TypeFields:
    memory: str
    source: str
    kind: str = "gpu"
    reserved: str | None = None
    launch: str = "5 us"
    curves: Mapping[str, _CurveFields] = field(default_factory=dict[str, _CurveFields])
    float32_peak: str | None = None
    peak: str | None = None
    dtype: str = ""
    memory_bandwidth: str = ""
    efficiency: str = ""
    efficiency_source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _MachineFields:
    devices: Mapping[str, str]
    host_link: _LinkFields
    count: str = "1"
    link: _LinkFields | None = None
    host_memory: str | None = None
    shares_link: str = "false"


@dataclass(frozen=True, slots=True, kw_only=True)
class _ClusterFields:
    device_types: Mapping[str, _TypeFields]
    machines: tuple[_MachineFields, ...]
    name: str | None = None
    about: str = ""
    network: _LinkFields | None = None


class _ClusterFile:
    """A file of a cluster, and the line of each place in it."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._lines: dict[str, int] = {}

    def read(self, text: str) -> ClusterDescription:
        try:
            # The stubs of PyYAML lack the return type.
            node = cast("object", yaml.compose(text, Loader=yaml.SafeLoader))  # pyright: ignore[reportUnknownMemberType]
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            line = 1 if mark is None else mark.line + 1
            self._not_yaml(line, getattr(error, "problem", None) or str(error))
        except RecursionError:
            self._not_yaml(1, "it is nested too deeply")
        if not isinstance(node, yaml.Node):
            self._not_yaml(1, "it is empty")
        try:
            fields = from_plain(self._plain(node, ""), _ClusterFields)
        except RecordError as problem:
            raise self._error(problem) from None
        types = {
            name: self._device_type(name, f"device_types.{name}", each)
            for name, each in fields.device_types.items()
        }
        machines, devices = self._machines(fields.machines, types)
        if len(machines) > 1 and fields.network is None:
            self._lacks("", "network")
        return ClusterDescription(
            cluster=Cluster(
                devices=devices,
                machines=machines,
                network=self._link("network", fields.network),
                name=Path(self._file).stem if fields.name is None else fields.name,
            ),
            types=types,
            about=fields.about.strip(),
        )

    def _plain(self, node: yaml.Node, place: str) -> Any:
        """Return a node as dicts, lists and texts, and keep the lines of their places."""
        self._lines[place] = node.start_mark.line + 1
        if isinstance(node, yaml.SequenceNode):
            return [self._plain(item, f"{place}[{k}]") for k, item in enumerate(node.value)]
        if not isinstance(node, yaml.MappingNode):
            return node.value
        fields: dict[str, Any] = {}
        for key, inner in node.value:
            name = str(key.value)
            here = f"{place}.{name}" if place else name
            if name in fields:
                raise ProfileError(
                    "PROF-036",
                    f"{self._file}:{key.start_mark.line + 1}: {here} is there twice.",
                    why="Which of the two is meant cannot be told.",
                    fix="Remove one of them.",
                )
            fields[name] = self._plain(inner, here)
        return fields

    def _device_type(self, name: str, place: str, fields: _TypeFields) -> DeviceType:
        read = functools.partial(self._field, place, fields)
        memory = read("memory", memory_size)
        reserved = 0 if fields.reserved is None else read("reserved", memory_size)
        if fields.reserved is not None and reserved >= memory:
            self._cannot_be(f"{place}.reserved", fields.reserved, "nothing of the memory is left")
        written = [key for key in _DATASHEET if f"{place}.{key}" in self._lines]
        datasheet = None
        if written or not fields.curves:
            for key in _DATASHEET:
                if key not in written:
                    self._lacks(place, key)
            datasheet = Datasheet(
                peak_flops=read("peak", flop_rate),
                dtype=fields.dtype,
                memory_bytes_per_second=read("memory_bandwidth", byte_rate),
                efficiency=read("efficiency", _fraction),
                efficiency_source=fields.efficiency_source,
                launch_seconds=read("launch", duration),
                float32_flops=None
                if fields.float32_peak is None
                else read("float32_peak", flop_rate),
            )
        return DeviceType(
            name=name,
            kind=read("kind", _kind),
            memory_bytes=memory - reserved,
            datasheet=datasheet,
            curves={
                pattern: self._times(f"{place}.curves.{pattern}", curves)
                for pattern, curves in fields.curves.items()
            },
            source=fields.source,
        )

    def _times(self, place: str, curves: _CurveFields) -> LayerTimes:
        return LayerTimes(
            forward=self._curve(f"{place}.forward", curves.forward),
            backward=self._curve(f"{place}.backward", curves.backward),
            update_seconds=self._field(place, curves, "update", duration),
        )

    def _curve(self, place: str, points: Sequence[Sequence[str]]) -> Curve:
        numbers: list[tuple[float, float]] = []
        for k, point in enumerate(points):
            here = f"{place}[{k}]"
            if len(point) != 2:
                self._cannot_be(here, f"{len(point)} values", "a point is [samples, time]")
            samples = self._parsed(f"{here}[0]", point[0], _number)
            numbers.append((samples, self._parsed(f"{here}[1]", point[1], _seconds)))
        try:
            return Curve(tuple(numbers))
        except ProfileError as error:
            self._cannot_be(place, str([list(point) for point in numbers]), error.why.rstrip("."))

    def _machines(
        self, groups: Sequence[_MachineFields], types: Mapping[str, DeviceType]
    ) -> tuple[tuple[Machine, ...], tuple[ClusterDevice, ...]]:
        machines: list[Machine] = []
        members: list[list[DeviceType]] = []
        for k, group in enumerate(groups):
            place = f"machines[{k}]"
            inside: list[DeviceType] = []
            for name, number in group.devices.items():
                here = f"{place}.devices.{name}"
                if name not in types:
                    raise ProfileError(
                        "PROF-035",
                        f"{self._at(here)} is not a known type of device."
                        f"{did_you_mean(name, types)}",
                        why=f"Those under device_types are {', '.join(types)}.",
                        fix="Correct the name, or describe the type.",
                    )
                inside += [types[name]] * self._parsed(here, number, _whole)
            if len(inside) > 1 and group.link is None:
                self._lacks(place, "link")
            read = functools.partial(self._field, place, group)
            count = read("count", _whole)
            machine = Machine(
                link=self._link(f"{place}.link", group.link),
                host_link=self._link(f"{place}.host_link", group.host_link),
                host_memory_bytes=None
                if group.host_memory is None
                else read("host_memory", memory_size),
                shares_link=read("shares_link", _yes_or_no),
            )
            machines += [machine] * count
            members += [inside] * count
            if sum(map(len, members)) > MOST_DEVICES:
                why = f"more than {MOST_DEVICES:,} devices are a slip"
                self._cannot_be(place, f"{count} machines", why)
        devices: list[ClusterDevice] = []
        for machine_index, inside in enumerate(members):
            # Numbered by kind in each machine, as TensorFlow does.
            numbers: dict[DeviceKind, int] = {}
            for device in inside:
                index = numbers[device.kind] = numbers.get(device.kind, -1) + 1
                worker = None if len(members) == 1 else machine_index
                name = str(DeviceName(kind=device.kind, index=index, worker=worker))
                memory = device.memory_bytes
                devices.append(
                    ClusterDevice(
                        name=name, type=device.name, memory_bytes=memory, machine=machine_index
                    )
                )
        if not devices:
            self._cannot_be("machines", "empty", "a cluster needs a device")
        return tuple(machines), tuple(devices)

    def _link(self, place: str, fields: _LinkFields | None) -> Link:
        if fields is None:
            return Link()
        return Link(
            bytes_per_second=self._field(place, fields, "bandwidth", byte_rate),
            latency_seconds=self._field(place, fields, "latency", duration),
        )

    def _field(self, place: str, fields: object, name: str, parse: Callable[[str], T]) -> T:
        return self._parsed(f"{place}.{name}", getattr(fields, name) or "", parse)

    def _parsed(self, place: str, text: str, parse: Callable[[str], T]) -> T:
        try:
            return parse(text)
        except ValueError as error:
            self._cannot_be(place, text, str(error))

    def _at(self, place: str) -> str:
        return f"{self._file}:{self._lines[place]}: {place or 'the file'}"

    def _error(self, problem: RecordError) -> ProfileError:
        """Return the error for a file that has another structure."""
        place, key = problem.place, problem.key
        if problem.kind == "unknown":
            return ProfileError(
                "PROF-032",
                f"{self._at(f'{place}.{key}' if place else key)} is not a known key."
                f"{did_you_mean(key, problem.known)}",
                why=f"The keys here are {', '.join(problem.known)}.",
                fix="Correct or remove it.",
            )
        if problem.kind == "missing":
            self._lacks(place, key)
        words = {"object": "a mapping", "list": "a list"}
        wanted = (word for key, word in words.items() if key in problem.expected)
        value = problem.value
        found = "a mapping" if isinstance(value, dict) else "a list"
        found = "a single value" if isinstance(value, str) else found
        return ProfileError(
            "PROF-031",
            f"{self._at(place)} must be {next(wanted, 'a single value')}, and is {found}.",
            why="Otherwise its parts cannot be found.",
            fix="Compare it with the example in docs/clusters.md.",
        )

    def _lacks(self, place: str, key: str) -> NoReturn:
        raise ProfileError(
            "PROF-033",
            f"{self._at(place)} has no {key!r}.",
            why="Without it nothing can be predicted.",
            fix=f"Add {key!r}; docs/clusters.md has an example.",
        )

    def _cannot_be(self, place: str, text: str, why: str) -> NoReturn:
        raise ProfileError(
            "PROF-034",
            f"{self._at(place)} cannot be {text!r}.",
            why=f"{why[:1].upper()}{why[1:]}.",
            fix="Correct the value.",
        )

    def _not_yaml(self, line: int, problem: str) -> NoReturn:
        raise ProfileError(
            "PROF-030",
            f"{self._file}:{line}: not a YAML description of a cluster.",
            why=f"The parser says: {' '.join(problem.split())}.",
            fix="Correct that line, or start from the example in docs/clusters.md.",
        )


# Quantities: functions from a text to a number, with a ValueError for what is none.

_QUANTITY = re.compile(r"(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*([^\W\d]\S*)")
_PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BYTE_RATES = {
    **{f"{prefix.upper()}B/s": scale for prefix, scale in _PREFIXES.items()},
    **{f"{prefix}iB/s": 1024.0**power for power, prefix in enumerate("KMGT", start=1)},
    **{f"{prefix}bit/s": scale / 8 for prefix, scale in _PREFIXES.items()},
}
_FLOP_RATES = {f"{prefix}FLOP/s": scale for prefix, scale in _PREFIXES.items()}
# Units per second: dividing by a power of ten is exact, multiplying by its inverse is not.
_PER_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6, "µs": 1e6, "ns": 1e9}

_LEAST_WITHOUT_UNIT = 2**20
"""Least bytes that a number without a unit may mean."""


def memory_size(text: str) -> int:
    """Return bytes, at least 1; a small number without a unit is refused: one was forgotten.

    >>> memory_size("24 GiB")
    25769803776
    """
    try:
        num_bytes = parse_bytes(text)
    except OverflowError:
        raise ValueError("it is more than can be counted") from None
    if num_bytes < 1:
        raise ValueError("it must be above 0")
    if num_bytes < _LEAST_WITHOUT_UNIT and text.strip()[-1].isdigit():
        raise ValueError(
            f"without a unit it is {num_bytes} bytes; write for example {text.strip()} GiB"
        )
    return num_bytes


def byte_rate(text: str) -> float:
    """Return bytes per second, above 0.

    >>> byte_rate("16 GB/s"), byte_rate("10 Gbit/s")
    (16000000000.0, 1250000000.0)
    """
    return _rate(text, _BYTE_RATES, "16 GB/s or 10 Gbit/s")


def flop_rate(text: str) -> float:
    """Return floating-point operations per second, above 0.

    >>> flop_rate("125 TFLOP/s")
    125000000000000.0
    """
    return _rate(text, _FLOP_RATES, "125 TFLOP/s")


def duration(text: str) -> float:
    """Return seconds, 0 or more.

    >>> duration("5 us"), duration("0 s")
    (5e-06, 0.0)
    """
    number, per_second = _quantity(text, _PER_SECOND, "5 us or 1.5 ms")
    return number / per_second


def _rate(text: str, scales: Mapping[str, float], example: str) -> float:
    number, scale = _quantity(text, scales, example)
    if not 0 < number * scale < math.inf:
        raise ValueError("it must be above 0, and finite")
    return number * scale


def _quantity(text: str, units: Mapping[str, float], example: str) -> tuple[float, float]:
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"a number of 0 or more and a unit are needed, such as {example}")
    number, unit = match.groups()
    if unit not in units:
        raise ValueError(
            f"{unit!r} is not one of its units: {', '.join(units)}; write for example {example}"
        )
    value = float(number)
    if not math.isfinite(value):
        raise ValueError("it is more than can be counted")
    return value, units[unit]


def _kind(text: str) -> DeviceKind:
    if text not in ("gpu", "cpu"):
        raise ValueError("a kind is gpu or cpu")
    return text


def _yes_or_no(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("it is true or false")
    return text == "true"


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 6 or int(text) < 1:
        raise ValueError("a whole number from 1 to 999999 is needed")
    return int(text)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError("a number is needed") from None
    if not 0 <= value < math.inf:
        raise ValueError("a number of 0 or more is needed")
    return value


def _seconds(text: str) -> float:
    """Return a duration with a unit, or a plain number of seconds."""
    try:
        return _number(text)
    except ValueError:
        return duration(text)


def _fraction(text: str) -> float:
    value = _number(text)
    if not 0 < value <= 1:
        raise ValueError("a fraction above 0 and at most 1 is needed")
    return value
