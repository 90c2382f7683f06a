"""Cache of measured times of layers, kept from one run to the next for each device identity.

There is one JSON file per device identity, in ``$XDG_CACHE_HOME/evener`` or ``~/.cache/evener``. An
unusable file is replaced by new measurements. Nothing expires: everything that affects the speed of
a device is part of its identity, and each measurement has a time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from evener.errors import warn
from evener.profile.costs import LayerTimes
from evener.profile.curve import Curve

_FORMAT, _VERSION = "evener-measurements", 9
"""Increase the version if the form of the file or the way of measuring changes."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceIdentity:
    """Identity of a device: everything that affects its speed.

    Args:
        hardware: Name of the device, such as ``"NVIDIA A100"``, or of the processor.
        machine: Name of its machine. Devices of the same name differ between machines, in memory,
            power limits, cooling and the CPU that launches kernels; and several machines may share
            the home folder of a user.
        driver: Version of its driver; empty if it has none.
        tensorflow: Version of TensorFlow.
        num_threads: Threads of one operation on a CPU; 0 if they do not matter.
        settings: Settings of TensorFlow that select other kernels: ``"name=value, ..."``.
    """

    hardware: str
    machine: str = ""
    driver: str = ""
    tensorflow: str = ""
    num_threads: int = 0
    settings: str = ""

    @property
    def file_name(self) -> str:
        """The name of its file: readable, and unique for every identity."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True)
        readable = "".join(letter if letter.isalnum() else "-" for letter in self.hardware.lower())
        return f"{readable[:40].strip('-')}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement(Generic[T]):
    """Measurement with its time.

    Args:
        value: Measured value.
        since: Time of the measurement in an earlier run; None if it was measured now.
    """

    value: T
    since: datetime | None = None


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the cache folder of this user."""
    base = environ.get("XDG_CACHE_HOME", "")
    # The XDG standard says that a relative path is ignored.
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "evener"


class MeasurementCache:
    """Cache of measurements by device identity and key.

    Args:
        folder: Folder of the files; None for that of the user.
        refresh: Whether to measure everything again.
        now: Function that returns the time with its time zone.
    """

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
        """Return a cached measurement, or measure and cache it.

        Args:
            identity: Identity of the device.
            key: Key of the measurement.
            measure: Function that measures.
            to_json: Function that converts the measurement to a JSON value.
            from_json: Function that restores it from a JSON value; raises if that is impossible.
        """
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
    """Return the times of a layer from the value of `times_to_json`.

    Raises:
        ProfileError: If points are not those of a curve.
        KeyError, TypeError, ValueError: If the value has another form.
    """
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
