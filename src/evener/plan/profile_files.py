"""Profiles and measurements in files: cost profiles as JSON, and the cache of measured times.

There is one cache file per device identity, in ``$XDG_CACHE_HOME/evener`` or ``~/.cache/evener``.
An unusable file is replaced by new measurements. Nothing expires: everything that affects the speed
of a device is part of its identity, and each measurement has a time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from evener.base.records import from_plain, to_plain
from evener.errors import ProfileError, warn
from evener.plan.profile import CostProfile, LayerTimes

T = TypeVar("T")

_PROFILE = {"format": "evener-profile", "version": 4}
_CACHE = {"format": "evener-measurements", "version": 9}
"""Increase the version if the form of a file or the way of measuring changes."""

_CURVES = ("forward", "backward", "backward_separate", "workspace")


def to_fields(value: object) -> Any:
    """Return costs or times as plain values: curves as points, infinite bandwidths as null."""

    def shorten(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [shorten(item) for item in cast("list[Any]", value)]
        if not isinstance(value, dict):
            return None if value == math.inf else value
        fields = {key: shorten(item) for key, item in cast("dict[str, Any]", value).items()}
        for name in _CURVES:
            if isinstance(fields.get(name), dict):
                fields[name] = fields[name]["points"]
        return fields

    return shorten(to_plain(value))


def from_fields(value: object, kind: type[T]) -> T:
    """Return what `to_fields` converted; a missing field is an error, even with a default."""

    def lengthen(value: Any) -> Any:
        if isinstance(value, list):
            return [lengthen(item) for item in cast("list[Any]", value)]
        if not isinstance(value, dict):
            return value
        fields = {key: lengthen(item) for key, item in cast("dict[str, Any]", value).items()}
        if fields.get("bytes_per_second", 0) is None:
            fields["bytes_per_second"] = math.inf
        for name in _CURVES:
            if isinstance(fields.get(name), list):
                fields[name] = {"points": fields[name]}
        return fields

    return from_plain(lengthen(value), kind, complete=True)


def profile_to_json(profile: CostProfile) -> str:
    """Return a profile as JSON; `profile_from_json` restores it."""
    return json.dumps({**_PROFILE, **to_fields(profile)}, indent=1, allow_nan=False)


def profile_from_json(text: str, *, source: str = "the text") -> CostProfile:
    """Return the profile that `profile_to_json` wrote; errors name the ``source`` of the text."""
    try:
        content: Any = json.loads(text)
        if not isinstance(content, dict) or "format" not in content:
            raise _unusable(source, "It is no JSON object with a format")
        fields = cast("dict[str, Any]", content)
        name, version = fields.pop("format"), fields.pop("version", None)
        if name != _PROFILE["format"]:
            raise _unusable(source, f"Its format is {name!r} and not {_PROFILE['format']!r}")
        if version != _PROFILE["version"]:
            raise _unusable(
                source, f"It has version {version!r}, and this is version {_PROFILE['version']}"
            )
        return from_fields(fields, CostProfile)
    except ProfileError:
        raise
    except ValueError as error:
        raise _unusable(source, f"{type(error).__name__}: {error}") from None


def read_profile(path: Path) -> CostProfile:
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
        fix="Measure again: evener plan --save-profile FILE train.py.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceIdentity:
    """Identity of a device: everything that affects its speed.

    Devices of the same name differ between machines, in memory, power limits, cooling and the CPU
    that launches kernels; and several machines may share the home folder of a user.
    """

    hardware: str  # Name of the device, such as ``"NVIDIA A100"``, or of the processor.
    machine: str = ""  # Name of its machine.
    driver: str = ""  # Version of its driver; empty if it has none.
    tensorflow: str = ""  # Version of TensorFlow.
    num_threads: int = 0  # Threads of one operation on a CPU; 0 if they do not matter.
    settings: str = ""  # Settings that select other kernels: ``"name=value, ..."``.

    @property
    def file_name(self) -> str:
        text = json.dumps(to_plain(self), sort_keys=True)
        readable = "".join(letter if letter.isalnum() else "-" for letter in self.hardware.lower())
        return f"{readable[:40].strip('-')}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement(Generic[T]):
    value: T
    since: datetime | None = None  # Time in an earlier run; None if it was measured now.


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    base = environ.get("XDG_CACHE_HOME", "")
    # The XDG standard says that a relative path is ignored.
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "evener"


class MeasurementCache:
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
        self, identity: DeviceIdentity, key: str, measure: Callable[[], T], kind: type[T]
    ) -> Measurement[T]:
        """Return a cached measurement of a type, or measure and cache it."""
        entries = {} if self._refresh else self._read(identity)
        if key in entries:
            try:
                since = datetime.fromisoformat(entries[key]["measured"])
                return Measurement(value=from_fields(entries[key]["value"], kind), since=since)
            except (ValueError, TypeError, KeyError) as error:
                self._warn_unusable(identity, f"its entry {key!r} is no measurement: {error}")
        value = measure()
        entry = {"measured": self._now().isoformat(timespec="seconds"), "value": to_fields(value)}
        self._write(identity, {**self._read(identity, warns=False), key: entry})
        return Measurement(value=value)

    def _read(self, identity: DeviceIdentity, *, warns: bool = True) -> dict[str, Any]:
        try:
            content = json.loads((self._folder / identity.file_name).read_text(encoding="utf-8"))
            problem = _problem_of(content, identity)
            if not problem:
                return content["entries"]
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, ValueError) as error:
            problem = f"it cannot be read: {error}"
        if warns:
            self._warn_unusable(identity, problem)
        return {}

    def _write(self, identity: DeviceIdentity, entries: Mapping[str, Any]) -> None:
        content = {**_CACHE, "identity": to_plain(identity), "entries": dict(entries)}
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


def _problem_of(content: object, identity: DeviceIdentity) -> str:
    if not isinstance(content, dict):
        return "it holds no object"
    file = cast("dict[str, Any]", content)
    if file.get("format") != _CACHE["format"]:
        return "it is a file of something else"
    if file.get("version") != _CACHE["version"]:
        return f"it has version {file.get('version')!r}, and this is version {_CACHE['version']}"
    if file.get("identity") != to_plain(identity):
        return "it is of another device, driver or TensorFlow"
    return "" if isinstance(file.get("entries"), dict) else "it has no entries"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReusedLayers:
    hardware: str  # Hardware name of the device.
    num_layers: int  # Number of layers of the step.
    num_reused: int  # Number of layers that were measured in earlier runs.
    since: datetime | None = None  # Time of the earliest of these measurements.

    def __str__(self) -> str:
        """Return one line, with the time of this machine.

        >>> print(ReusedLayers(hardware="NVIDIA A100", num_layers=14, num_reused=0))
        NVIDIA A100: all 14 layers measured now
        """
        if self.since is None:
            return f"{self.hardware}: all {self.num_layers} layers measured now"
        local = self.since.astimezone()
        return (
            f"{self.hardware}: {self.num_reused} of {self.num_layers} layers from earlier runs, "
            f"since {local:%Y-%m-%d %H:%M}; --remeasure measures them again"
        )


class KnownTimes:
    def __init__(
        self, cache: MeasurementCache | None = None, identity: DeviceIdentity | None = None
    ) -> None:
        self._cache = cache
        self._identity = identity or DeviceIdentity(hardware="")
        self._layers: list[tuple[int, datetime | None]] = []

    def layer(
        self, key: str, measure: Callable[[], LayerTimes], *, num_layers: int = 1
    ) -> LayerTimes:
        """Return the times of ``num_layers`` layers of one kind, which are measured once."""
        measurement = self._measurement(key, measure, LayerTimes)
        self._layers.append((num_layers, measurement.since))
        return measurement.value

    def other(self, key: str, measure: Callable[[], T], kind: type[T]) -> T:
        return self._measurement(key, measure, kind).value

    def _measurement(self, key: str, measure: Callable[[], T], kind: type[T]) -> Measurement[T]:
        if self._cache is None:
            return Measurement(value=measure())
        return self._cache.get_or_measure(self._identity, key, measure, kind)

    @property
    def reused(self) -> ReusedLayers:
        """Number of the requested layers that had been measured before."""
        old = [(count, since) for count, since in self._layers if since is not None]
        return ReusedLayers(
            hardware=self._identity.hardware,
            num_layers=sum(count for count, _ in self._layers),
            num_reused=sum(count for count, _ in old),
            since=min((since for _, since in old), default=None),
        )


def warn_of_estimates(not_measured: Sequence[str]) -> None:
    """Warn if the times of layers are estimated (PROF-020), with the reasons, one per layer."""
    if not_measured:
        warn(
            "PROF-020",
            f"The times of {len(not_measured)} layers are estimated.",
            why="; ".join(not_measured[:3]),
            fix="Compare the first steps with the prediction.",
            stacklevel=3,
        )
