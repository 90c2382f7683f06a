"""Measurements that are kept from one run to the next, for each kind of device.

One JSON file per identity of a device, in ``$XDG_CACHE_HOME/evener`` or ``~/.cache/evener``. A file
that cannot be used is measured again and replaced. Nothing expires: what makes a device slower or
faster is part of its identity, and the time of each measurement is kept beside it.
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

_FORMAT, _VERSION = "evener-measurements", 8
"""The version rises with the form of the file, and when layers are measured in another way."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceIdentity:
    """What decides how fast a device is; another of the same identity is as fast.

    Args:
        hardware: The name of the device, such as ``"NVIDIA A100"`` or that of the processor.
        machine: The name of its machine. Devices of one name differ between machines: in memory,
            power limits and cooling, and GPUs in the processor that starts their operations; and
            the folder of a user may be that of many machines.
        driver: The version of its driver; empty if it has none.
        tensorflow: The version of TensorFlow.
        num_threads: Of one operation on a CPU; 0 where it does not count.
        settings: Of TensorFlow, as far as they choose other kernels: ``"name=value, ..."``.
    """

    hardware: str
    machine: str = ""
    driver: str = ""
    tensorflow: str = ""
    num_threads: int = 0
    settings: str = ""

    @property
    def file_name(self) -> str:
        """The name of its file: readable, and different for every identity."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True)
        readable = "".join(one if one.isalnum() else "-" for one in self.hardware.lower())
        return f"{readable[:40].strip('-')}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement(Generic[T]):
    """A measurement.

    Args:
        value: What was measured.
        since: When, if that was in an earlier run; None if it was measured now.
    """

    value: T
    since: datetime | None = None


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the measurements of this user."""
    base = environ.get("XDG_CACHE_HOME", "")
    # The standard says that a path that is not absolute is ignored.
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "evener"


class MeasurementCache:
    """Keeps measurements, by identity of a device and a key.

    Args:
        folder: Of the files; None for that of the user.
        refresh: Whether everything is measured again.
        now: Returns the time, with its zone.
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
        """Return a measurement that is known, or measure and keep it.

        Args:
            identity: Of the device.
            key: What was measured.
            measure: Measures it.
            to_json: Makes a value of dicts, lists, text and numbers of it.
            from_json: Makes the measurement of such a value; raises if it cannot be one.
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
        """Return the entries of a file; none if there is no file that can be used."""
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
        """Replace a file at once, so that no reader sees a part of it."""
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
    """Return the times of a layer that `times_to_json` wrote down.

    Raises:
        ProfileError: If points cannot be those of a curve.
        KeyError, TypeError, ValueError: If the value is something else.
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
