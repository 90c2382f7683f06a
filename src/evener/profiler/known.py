"""Reuse of earlier measurements of a device."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from evener.errors import warn
from evener.profile.cache import (
    DeviceIdentity,
    Measurement,
    MeasurementCache,
    times_from_json,
    times_to_json,
)
from evener.profile.costs import LayerTimes

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayersTaken:
    """Number of layers whose times are reused from earlier runs on a device.

    Args:
        hardware: Hardware name of the device.
        num_layers: Number of layers of the step.
        num_taken: Number of layers that were measured in earlier runs.
        since: Time of the earliest of these measurements; None if there are none.
    """

    hardware: str
    num_layers: int
    num_taken: int
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
        since = fields["since"]
        return cls(**{**fields, "since": None if since is None else datetime.fromisoformat(since)})


def warn_of_estimates(not_measured: Sequence[str]) -> None:
    """Warn if the times of layers are estimated (PROF-020).

    Args:
        not_measured: Reasons why layers could not be measured, one per layer.
    """
    if not_measured:
        warn(
            "PROF-020",
            f"The times of {len(not_measured)} layers are estimated.",
            why="; ".join(not_measured[:3]),
            fix="Compare the first steps with the prediction.",
            stacklevel=3,
        )


class KnownTimes:
    """Measurements of one device, kept from run to run.

    Args:
        cache: Cache of the measurements; None to measure everything and store nothing.
        identity: Identity of the device.
    """

    def __init__(
        self, cache: MeasurementCache | None = None, identity: DeviceIdentity | None = None
    ) -> None:
        self._cache = cache
        self._identity = identity or DeviceIdentity(hardware="")
        self._layers: list[tuple[int, datetime | None]] = []

    def layer(
        self, key: str, measure: Callable[[], LayerTimes], *, num_layers: int = 1
    ) -> LayerTimes:
        """Return the times of layers of one kind, which are measured once.

        Args:
            key: Key of the measurement: operations, shapes, dtypes and numbers of samples.
            measure: Function that measures; its exceptions are passed on, and nothing is stored.
            num_layers: Number of layers of the step with these times, at least 1.
        """
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
