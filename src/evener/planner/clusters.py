"""Clusters that are described in YAML.

Values with their lines, quantities with units, devices, machines and links.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib import resources
from pathlib import Path
from typing import NoReturn, TypeVar, cast

import yaml

from evener.base.text import parse_bytes
from evener.errors import ProfileError, did_you_mean
from evener.plan.parts import DeviceKind, DeviceName
from evener.plan.profile import Cluster, ClusterDevice, Curve, LayerCosts, LayerTimes, Link, Machine

# YAML values with their lines, for error messages.

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """Value in a YAML file with its position."""

    file: str  # Name of the file
    path: str  # Path in the file, such as ``machines[0].link``; empty for the whole file
    node: yaml.Node  # Node that PyYAML composed

    @property
    def position(self) -> str:
        """The file, the line from 1, and the path."""
        return f"{self.file}:{self.node.start_mark.line + 1}: {self.path or 'the file'}"

    def mapping(self) -> dict[str, Value]:
        """Return the values of a mapping by key."""
        if not isinstance(self.node, yaml.MappingNode):
            self._is_not("a mapping")
        found: dict[str, Value] = {}
        for key, node in self.node.value:
            name = str(key.value)
            value = self._child(f"{self.path}.{name}" if self.path else name, node)
            if name in found:
                raise ProfileError(
                    "PROF-036",
                    f"{self._child(value.path, key).position} is there twice.",
                    why="Which of the two is meant cannot be told.",
                    fix="Remove one of them.",
                )
            found[name] = value
        return found

    def fields(self, *, required: tuple[str, ...], optional: tuple[str, ...]) -> dict[str, Value]:
        """Return the values of a mapping whose keys are known."""
        found = self.mapping()
        known = (*required, *optional)
        for name, value in found.items():
            if name not in known:
                raise ProfileError(
                    "PROF-032",
                    f"{value.position} is not a known key.{did_you_mean(name, known)}",
                    why=f"The keys here are {', '.join(known)}.",
                    fix="Correct or remove it.",
                )
        for name in required:
            if name not in found:
                self.lacks(name)
        return found

    def lacks(self, name: str) -> NoReturn:
        """Raise PROF-033 for a missing key."""
        raise ProfileError(
            "PROF-033",
            f"{self.position} has no {name!r}.",
            why="Without it nothing can be predicted.",
            fix=f"Add {name!r}; docs/clusters.md has an example.",
        )

    def items(self) -> Iterator[Value]:
        """Yield the values of a list."""
        if not isinstance(self.node, yaml.SequenceNode):
            self._is_not("a list")
        for index, node in enumerate(self.node.value):
            yield self._child(f"{self.path}[{index}]", node)

    def text(self) -> str:
        """Return the text of a scalar as it is written."""
        if not isinstance(self.node, yaml.ScalarNode):
            self._is_not("a single value")
        return self.node.value

    def parsed(self, parse: Callable[[str], _Result]) -> _Result:
        """Return the parsed text; a ValueError of the parser becomes PROF-034."""
        text = self.text()
        try:
            return parse(text)
        except ValueError as error:
            self.cannot_be(text, str(error))

    def cannot_be(self, text: str, why: str) -> NoReturn:
        """Raise PROF-034 for an impossible value."""
        raise ProfileError(
            "PROF-034",
            f"{self.position} cannot be {text!r}.",
            why=f"{why[:1].upper()}{why[1:]}.",
            fix="Correct the value.",
        )

    def _child(self, path: str, node: yaml.Node) -> Value:
        return Value(file=self.file, path=path, node=node)

    def _is_not(self, wanted: str) -> NoReturn:
        kinds: dict[type[yaml.Node], str] = {
            yaml.MappingNode: "a mapping",
            yaml.SequenceNode: "a list",
            yaml.ScalarNode: "a single value",
        }
        raise ProfileError(
            "PROF-031",
            f"{self.position} must be {wanted}, and is {kinds[type(self.node)]}.",
            why="Otherwise its parts cannot be found.",
            fix="Compare it with the example in docs/clusters.md.",
        )


def parse_yaml(text: str, file: str) -> Value:
    """Return the content of a YAML file."""
    try:
        # The stubs of PyYAML lack the return type.
        composed = cast("object", yaml.compose(text, Loader=yaml.SafeLoader))  # pyright: ignore[reportUnknownMemberType]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = 1 if mark is None else mark.line + 1
        _not_yaml(file, line, getattr(error, "problem", None) or str(error))
    except RecursionError:
        _not_yaml(file, 1, "it is nested too deeply")
    if not isinstance(composed, yaml.Node):
        _not_yaml(file, 1, "it is empty")
    return Value(file=file, path="", node=composed)


def _not_yaml(file: str, line: int, problem: str) -> NoReturn:
    raise ProfileError(
        "PROF-030",
        f"{file}:{line}: not a YAML description of a cluster.",
        why=f"The parser says: {' '.join(problem.split())}.",
        fix="Correct that line, or start from the example in docs/clusters.md.",
    )


# Quantities with units, such as ``16 GB/s``, ``5 us``, ``125 TFLOP/s``.

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
    """Return bytes, at least 1."""
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
    """Return bytes per second, above 0."""
    return _rate(text, _BYTE_RATES, "16 GB/s or 10 Gbit/s")


def flop_rate(text: str) -> float:
    """Return floating-point operations per second, above 0."""
    return _rate(text, _FLOP_RATES, "125 TFLOP/s")


def duration(text: str) -> float:
    """Return seconds, 0 or more."""
    number, per_second = _parse(text, _PER_SECOND, "5 us or 1.5 ms")
    return number / per_second


def _rate(text: str, scales: Mapping[str, float], example: str) -> float:
    number, scale = _parse(text, scales, example)
    if not 0 < number * scale < math.inf:
        raise ValueError("it must be above 0, and finite")
    return number * scale


def _parse(text: str, units: Mapping[str, float], example: str) -> tuple[float, float]:
    """Return the number, and the value of its unit."""
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


# Described cluster: devices, links, and datasheets or curves of each type of device.


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


# Cluster files: YAML to a `ClusterDescription`.
#
# ::
#
#     device_types:   name -> memory, datasheet figures or curves, their source
#     machines:       groups of equal machines: devices, links, host
#     network:        between machines

MOST_DEVICES = 100_000
"""Largest number of devices; more are assumed to be a mistake."""

_DEFAULT_LAUNCH = 5e-6
_DATASHEET = ("peak", "dtype", "memory_bandwidth", "efficiency", "efficiency_source")


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
    whole = parse_yaml(text, file)
    fields = whole.fields(
        required=("device_types", "machines"), optional=("name", "about", "network")
    )
    types = {
        name: _device_type(name, value) for name, value in fields["device_types"].mapping().items()
    }
    machines, devices = _machines(fields["machines"], types)
    if len(machines) > 1 and "network" not in fields:
        whole.lacks("network")
    network = _link(fields["network"]) if "network" in fields else Link()
    name = fields["name"].text() if "name" in fields else Path(file).stem
    return ClusterDescription(
        cluster=Cluster(devices=devices, machines=machines, network=network, name=name),
        types=types,
        about=fields["about"].text().strip() if "about" in fields else "",
    )


def _device_type(name: str, value: Value) -> DeviceType:
    fields = value.fields(
        required=("memory", "source"),
        optional=("kind", "reserved", "launch", "curves", "float32_peak", *_DATASHEET),
    )
    memory = fields["memory"].parsed(memory_size)
    reserved = fields["reserved"].parsed(memory_size) if "reserved" in fields else 0
    if reserved >= memory:
        fields["reserved"].cannot_be(fields["reserved"].text(), "nothing of the memory is left")
    curves = fields["curves"].mapping() if "curves" in fields else {}
    has_datasheet = not curves or any(key in fields for key in _DATASHEET)
    return DeviceType(
        name=name,
        kind=fields["kind"].parsed(_kind) if "kind" in fields else "gpu",
        memory_bytes=memory - reserved,
        datasheet=_datasheet(value, fields) if has_datasheet else None,
        curves={pattern: _layer_times(times) for pattern, times in curves.items()},
        source=fields["source"].text(),
    )


def _datasheet(value: Value, fields: Mapping[str, Value]) -> Datasheet:
    for key in _DATASHEET:
        if key not in fields:
            value.lacks(key)
    return Datasheet(
        peak_flops=fields["peak"].parsed(flop_rate),
        dtype=fields["dtype"].text(),
        memory_bytes_per_second=fields["memory_bandwidth"].parsed(byte_rate),
        efficiency=fields["efficiency"].parsed(_fraction),
        efficiency_source=fields["efficiency_source"].text(),
        launch_seconds=fields["launch"].parsed(duration) if "launch" in fields else _DEFAULT_LAUNCH,
        float32_flops=fields["float32_peak"].parsed(flop_rate)
        if "float32_peak" in fields
        else None,
    )


def _layer_times(value: Value) -> LayerTimes:
    fields = value.fields(required=("forward", "backward"), optional=("update",))
    return LayerTimes(
        forward=_curve(fields["forward"]),
        backward=_curve(fields["backward"]),
        update_seconds=fields["update"].parsed(duration) if "update" in fields else 0.0,
    )


def _curve(value: Value) -> Curve:
    points: list[tuple[float, float]] = []
    for point in value.items():
        numbers = list(point.items())
        if len(numbers) != 2:
            point.cannot_be(f"{len(numbers)} values", "a point is [samples, time]")
        samples, seconds = numbers
        points.append((samples.parsed(_number), seconds.parsed(_seconds)))
    try:
        return Curve(tuple(points))
    except ProfileError as error:
        value.cannot_be(str([list(point) for point in points]), error.why.rstrip("."))


def _machines(
    value: Value, types: Mapping[str, DeviceType]
) -> tuple[tuple[Machine, ...], tuple[ClusterDevice, ...]]:
    machines: list[Machine] = []
    members: list[list[DeviceType]] = []
    for group in value.items():
        machine, inside, count = _machine(group, types)
        machines += [machine] * count
        members += [inside] * count
        if sum(map(len, members)) > MOST_DEVICES:
            group.cannot_be(f"{count} machines", f"more than {MOST_DEVICES:,} devices are a slip")
    devices = tuple(
        device
        for number, inside in enumerate(members)
        for device in _named(inside, number, is_alone=len(members) == 1)
    )
    if not devices:
        value.cannot_be("empty", "a cluster needs a device")
    return tuple(machines), devices


def _machine(
    group: Value, types: Mapping[str, DeviceType]
) -> tuple[Machine, list[DeviceType], int]:
    fields = group.fields(
        required=("devices", "host_link"),
        optional=("count", "link", "host_memory", "shares_link"),
    )
    inside: list[DeviceType] = []
    for name, number in fields["devices"].mapping().items():
        if name not in types:
            raise ProfileError(
                "PROF-035",
                f"{number.position} is not a known type of device.{did_you_mean(name, types)}",
                why=f"Those under device_types are {', '.join(types)}.",
                fix="Correct the name, or describe the type.",
            )
        inside += [types[name]] * number.parsed(_whole)
    if len(inside) > 1 and "link" not in fields:
        group.lacks("link")
    machine = Machine(
        link=_link(fields["link"]) if "link" in fields else Link(),
        host_link=_link(fields["host_link"]),
        host_memory_bytes=fields["host_memory"].parsed(memory_size)
        if "host_memory" in fields
        else None,
        shares_link="shares_link" in fields and fields["shares_link"].parsed(_yes_or_no),
    )
    return machine, inside, fields["count"].parsed(_whole) if "count" in fields else 1


def _named(inside: list[DeviceType], machine: int, *, is_alone: bool) -> list[ClusterDevice]:
    """Return the devices of a machine, numbered by kind as TensorFlow does."""
    numbers: dict[DeviceKind, int] = {}
    devices: list[ClusterDevice] = []
    for device in inside:
        index = numbers.get(device.kind, 0)
        numbers[device.kind] = index + 1
        name = DeviceName(kind=device.kind, index=index, worker=None if is_alone else machine)
        devices.append(
            ClusterDevice(
                name=str(name),
                type=device.name,
                memory_bytes=device.memory_bytes,
                machine=machine,
            )
        )
    return devices


def _link(value: Value) -> Link:
    fields = value.fields(required=("bandwidth",), optional=("latency", "source"))
    return Link(
        bytes_per_second=fields["bandwidth"].parsed(byte_rate),
        latency_seconds=fields["latency"].parsed(duration) if "latency" in fields else 0.0,
    )


def _kind(text: str) -> DeviceKind:
    if text == "gpu":
        return "gpu"
    if text == "cpu":
        return "cpu"
    raise ValueError("a kind is gpu or cpu")


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


# Cluster descriptions that evener ships.

_SUFFIX = ".yaml"


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
