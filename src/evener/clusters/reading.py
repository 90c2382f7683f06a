"""Cluster files: YAML to a `ClusterDescription`.

::

    device_types:   name -> memory, datasheet figures or curves, their source
    machines:       groups of equal machines: devices, links, host
    network:        between machines
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from evener.clusters.description import ClusterDescription, Datasheet, DeviceType
from evener.clusters.fields import Value, parse_yaml
from evener.clusters.quantities import byte_rate, duration, flop_rate, memory_size
from evener.errors import ProfileError, did_you_mean
from evener.plan.names import DeviceKind, DeviceName
from evener.profile import Cluster, ClusterDevice, Curve, LayerTimes, Link, Machine

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
