"""Profiles and measurements in files.

The JSON form of a cost profile, and the cache of measured times of layers that later runs reuse.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from evener.errors import ProfileError, warn
from evener.plan.profile import (
    Cluster,
    ClusterDevice,
    CostProfile,
    Curve,
    LayerCosts,
    LayerTimes,
    Link,
    Machine,
    ModelCosts,
)

# Cache of measured times of layers, kept from one run to the next for each device identity.
#
# There is one JSON file per device identity, in ``$XDG_CACHE_HOME/evener`` or ``~/.cache/evener``.
# An
# unusable file is replaced by new measurements. Nothing expires: everything that affects the speed
# of
# a device is part of its identity, and each measurement has a time.

_FORMAT, _VERSION = "evener-measurements", 9
"""Increase the version if the form of the file or the way of measuring changes."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceIdentity:
    """Identity of a device: everything that affects its speed."""

    hardware: str  # Name of the device, such as ``"NVIDIA A100"``, or of the processor
    # Name of its machine
    machine: str = ""
    driver: str = ""  # Version of its driver; empty if it has none
    tensorflow: str = ""  # Version of TensorFlow
    num_threads: int = 0  # Threads of one operation on a CPU; 0 if they do not matter
    settings: str = ""  # Settings of TensorFlow that select other kernels: ``"name=value, ..."``

    @property
    def file_name(self) -> str:
        """The name of its file: readable, and unique for every identity."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True)
        readable = "".join(letter if letter.isalnum() else "-" for letter in self.hardware.lower())
        return f"{readable[:40].strip('-')}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement(Generic[T]):
    """Measurement with its time."""

    value: T  # Measured value
    # Time of the measurement in an earlier run; None if it was measured now
    since: datetime | None = None


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the cache folder of this user."""
    base = environ.get("XDG_CACHE_HOME", "")
    # The XDG standard says that a relative path is ignored.
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "evener"


class MeasurementCache:
    """Cache of measurements by device identity and key."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        refresh: bool = False,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._folder = cache_folder() if folder is None else folder
        self._refresh = refresh
        self._now = now

    def get_or_measure(
        self,
        identity: DeviceIdentity,
        key: str,
        measure: Callable[[], T],
        *,
        to_json: Callable[[T], Any],
        from_json: Callable[[Any], T],
    ) -> Measurement[T]:
        """Return a cached measurement, or measure and cache it."""
        entries = {} if self._refresh else self._read(identity)
        if key in entries:
            try:
                entry = entries[key]
                since = datetime.fromisoformat(entry["measured"])
                return Measurement(value=from_json(entry["value"]), since=since)
            except Exception as error:
                self._warn_unusable(identity, f"its entry {key!r} is no measurement: {error}")
        measured = measure()
        entry = {"measured": self._now().isoformat(timespec="seconds"), "value": to_json(measured)}
        self._write(identity, {**self._read(identity, warns=False), key: entry})
        return Measurement(value=measured)

    def _read(self, identity: DeviceIdentity, *, warns: bool = True) -> dict[str, Any]:
        """Return the entries of a file; empty if there is no usable file."""
        path = self._folder / identity.file_name
        problem = ""
        try:
            content: Any = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, ValueError) as error:
            content, problem = {}, f"it cannot be read: {error}"
        if not problem:
            problem = _problem_of(content, identity)
        if not problem:
            return cast("dict[str, Any]", content["entries"])
        if warns:
            self._warn_unusable(identity, problem)
        return {}

    def _write(self, identity: DeviceIdentity, entries: Mapping[str, Any]) -> None:
        """Replace a file atomically, so that no reader sees a part of it."""
        content = {
            "format": _FORMAT,
            "version": _VERSION,
            "identity": dataclasses.asdict(identity),
            "entries": dict(entries),
        }
        temporary = ""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self._folder, suffix=".tmp")
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(content, file, indent=1)
            Path(temporary).replace(self._folder / identity.file_name)
        except OSError as error:
            if temporary:
                with contextlib.suppress(OSError):
                    Path(temporary).unlink()
            warn(
                "PROF-014",
                f"Measurements cannot be kept in {self._folder}.",
                why=f"{error.strerror or error}. They are used now, and made again next time.",
                fix="Make the folder writable, or set XDG_CACHE_HOME to one that is.",
            )

    def _warn_unusable(self, identity: DeviceIdentity, problem: str) -> None:
        warn(
            "PROF-013",
            f"The measurements in {self._folder / identity.file_name} are not used.",
            why=f"As a file of measurements of {identity.hardware!r}, {problem}.",
            fix="Nothing: it is measured again, and the file is replaced.",
        )


def _problem_of(content: Any, identity: DeviceIdentity) -> str:
    """Return why the content of a file cannot be used, or nothing."""
    if not isinstance(content, dict):
        return "it holds no object"
    file = cast("dict[str, Any]", content)
    if file.get("format") != _FORMAT:
        return "it is a file of something else"
    if file.get("version") != _VERSION:
        return f"it has version {file.get('version')!r}, and this is version {_VERSION}"
    if file.get("identity") != dataclasses.asdict(identity):
        return "it is of another device, driver or TensorFlow"
    if not isinstance(file.get("entries"), dict):
        return "it has no entries"
    return ""


def times_to_json(times: LayerTimes) -> dict[str, Any]:
    """Return the times of a layer as lists and numbers."""
    return {
        "forward": [list(point) for point in times.forward.points],
        "backward": [list(point) for point in times.backward.points],
        "backward_separate": _points_of(times.backward_separate),
        "workspace": _points_of(times.workspace),
        "update_seconds": times.update_seconds,
        "accumulate_seconds": times.accumulate_seconds,
    }


def times_from_json(value: Any) -> LayerTimes:
    """Return the times of a layer from the value of `times_to_json`."""
    separate, workspace = value["backward_separate"], value["workspace"]
    return LayerTimes(
        forward=_curve_of(value["forward"]),
        backward=_curve_of(value["backward"]),
        backward_separate=None if separate is None else _curve_of(separate),
        update_seconds=float(value["update_seconds"]),
        accumulate_seconds=float(value.get("accumulate_seconds", 0.0)),
        workspace=None if workspace is None else _curve_of(workspace),
    )


def _points_of(curve: Curve | None) -> list[list[float]] | None:
    return None if curve is None else [list(point) for point in curve.points]


def _curve_of(value: Any) -> Curve:
    return Curve(tuple((float(samples), float(seconds)) for samples, seconds in value))


# JSON form of a cost profile.

_SERIALISE_FORMAT, _SERIALISE_VERSION = "evener-profile", 4
_MODEL_FIELDS = dataclasses.fields(ModelCosts)


def profile_to_json(profile: CostProfile) -> str:
    """Return a profile as JSON; `profile_from_json` restores it."""
    content = {
        "format": _SERIALISE_FORMAT,
        "version": _SERIALISE_VERSION,
        "model": model_to_fields(profile.model),
        "cluster": _finite(dataclasses.asdict(profile.cluster)),
        "times": {
            name: [times_to_json(layer) for layer in times] for name, times in profile.times.items()
        },
        "step_overhead_seconds": profile.step_overhead_seconds,
    }
    return json.dumps(content, indent=1, allow_nan=False)


def profile_from_json(text: str, *, source: str = "the text") -> CostProfile:
    """Return the profile of a JSON text."""
    try:
        content = json.loads(text)
        problem = _serialise_problem_of(content)
        if not problem:
            return _read(cast("dict[str, Any]", content))
    except ProfileError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        problem = f"{type(error).__name__}: {error}"
    raise _unusable(source, problem)


def model_to_fields(model: ModelCosts) -> dict[str, Any]:
    """Return the costs of a model as a JSON object; `model_from_fields` restores them."""
    return dataclasses.asdict(model)


def model_from_fields(fields: Mapping[str, Any]) -> ModelCosts:
    """Return the costs of a model from a JSON object."""
    values: dict[str, Any] = {field.name: fields[field.name] for field in _MODEL_FIELDS}
    values["layers"] = tuple(map(_layer, fields["layers"]))
    return ModelCosts(**values)


def read_profile(path: Path) -> CostProfile:
    """Return the profile in a file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise _unusable(str(path), f"It cannot be read: {error}") from None
    return profile_from_json(text, source=str(path))


def _unusable(source: str, problem: str) -> ProfileError:
    return ProfileError(
        "PROF-006",
        f"{source} holds no usable profile.",
        why=f"{problem}.",
        fix="Measure again: evener plan SCRIPT --save-profile FILE.",
    )


def _serialise_problem_of(content: object) -> str:
    if not isinstance(content, dict) or "format" not in content:
        return "It is no JSON object with a format"
    fields = cast("dict[str, Any]", content)
    if fields["format"] != _SERIALISE_FORMAT:
        return f"Its format is {fields['format']!r} and not {_SERIALISE_FORMAT!r}"
    if fields.get("version") != _SERIALISE_VERSION:
        return f"It has version {fields.get('version')!r}, and this is version {_SERIALISE_VERSION}"
    return ""


def _read(content: Mapping[str, Any]) -> CostProfile:
    cluster = content["cluster"]
    return CostProfile(
        model=model_from_fields(content["model"]),
        cluster=Cluster(
            devices=tuple(ClusterDevice(**device) for device in cluster["devices"]),
            machines=tuple(_machine(machine) for machine in cluster["machines"]),
            network=_link(cluster["network"]),
            name=cluster["name"],
        ),
        times={
            name: tuple(times_from_json(layer) for layer in times)
            for name, times in content["times"].items()
        },
        step_overhead_seconds=float(content["step_overhead_seconds"]),
    )


def _layer(value: Mapping[str, Any]) -> LayerCosts:
    seen = value["kernel_workspace"]
    curve = None if seen is None else Curve(tuple(map(tuple, seen["points"])))
    fields: dict[str, Any] = {**value, "kernel_workspace": curve}
    return LayerCosts(**fields)


def _machine(value: Mapping[str, Any]) -> Machine:
    links: dict[str, Any] = {name: _link(value[name]) for name in ("link", "host_link")}
    return Machine(**{**value, **links})


def _link(value: Mapping[str, Any]) -> Link:
    bandwidth = value["bytes_per_second"]
    return Link(
        bytes_per_second=float("inf") if bandwidth is None else bandwidth,
        latency_seconds=value["latency_seconds"],
    )


def _finite(value: Any) -> Any:
    """Replace infinite bandwidths by null, because JSON has no infinity."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in cast("list[Any]", value)]
    return None if value == float("inf") else value


# Reuse of earlier measurements of a device.


@dataclass(frozen=True, slots=True, kw_only=True)
class LayersTaken:
    """Number of layers whose times are reused from earlier runs on a device."""

    hardware: str  # Hardware name of the device
    num_layers: int  # Number of layers of the step
    num_taken: int  # Number of layers that were measured in earlier runs
    # Time of the earliest of these measurements; None if there are none
    since: datetime | None = None

    def __str__(self) -> str:
        """Return one line, with the time of this machine.

        >>> print(LayersTaken(hardware="NVIDIA A100", num_layers=14, num_taken=0))
        NVIDIA A100: all 14 layers measured now
        """
        if self.since is None:
            return f"{self.hardware}: all {self.num_layers} layers measured now"
        local = self.since.astimezone()
        return (
            f"{self.hardware}: {self.num_taken} of {self.num_layers} layers from earlier runs, "
            f"since {local:%Y-%m-%d %H:%M}; --remeasure measures them again"
        )

    def to_fields(self) -> dict[str, Any]:
        """Return the value as JSON fields; `from_fields` restores it."""
        since = None if self.since is None else self.since.isoformat()
        return {**dataclasses.asdict(self), "since": since}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> LayersTaken:
        """Return the value that `to_fields` converted."""
        values = dict(fields)
        if values["since"] is not None:
            values["since"] = datetime.fromisoformat(values["since"])
        return cls(**values)


def warn_of_estimates(not_measured: Sequence[str]) -> None:
    """Warn if the times of layers are estimated (PROF-020)."""
    if not_measured:
        warn(
            "PROF-020",
            f"The times of {len(not_measured)} layers are estimated.",
            why="; ".join(not_measured[:3]),
            fix="Compare the first steps with the prediction.",
            stacklevel=3,
        )


class KnownTimes:
    """Measurements of one device, kept from run to run."""

    def __init__(
        self, cache: MeasurementCache | None = None, identity: DeviceIdentity | None = None
    ) -> None:
        self._cache = cache
        self._identity = identity or DeviceIdentity(hardware="")
        self._layers: list[tuple[int, datetime | None]] = []

    def layer(
        self, key: str, measure: Callable[[], LayerTimes], *, num_layers: int = 1
    ) -> LayerTimes:
        """Return the times of layers of one kind, which are measured once."""
        measurement = self._get(key, measure, to_json=times_to_json, from_json=times_from_json)
        self._layers.append((num_layers, measurement.since))
        return measurement.value

    def other(
        self,
        key: str,
        measure: Callable[[], T],
        *,
        to_json: Callable[[T], Any],
        from_json: Callable[[Any], T],
    ) -> T:
        """Return a measurement that is not of a layer; see `MeasurementCache`."""
        return self._get(key, measure, to_json=to_json, from_json=from_json).value

    def seconds(self, key: str, measure: Callable[[], float]) -> float:
        """Return measured seconds that are not of a layer."""
        return self.other(key, measure, to_json=float, from_json=float)

    def _get(
        self,
        key: str,
        measure: Callable[[], T],
        *,
        to_json: Callable[[T], Any],
        from_json: Callable[[Any], T],
    ) -> Measurement[T]:
        if self._cache is None:
            return Measurement(value=measure())
        return self._cache.get_or_measure(
            self._identity, key, measure, to_json=to_json, from_json=from_json
        )

    @property
    def taken(self) -> LayersTaken:
        """Number of the requested layers that had been measured before."""
        old = [(count, since) for count, since in self._layers if since is not None]
        return LayersTaken(
            hardware=self._identity.hardware,
            num_layers=sum(count for count, _ in self._layers),
            num_taken=sum(count for count, _ in old),
            since=min((since for _, since in old), default=None),
        )
