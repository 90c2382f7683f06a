"""What was measured on a device before, in the place of measuring it again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from evener.errors import warn
from evener.profile.cache import (
    DeviceIdentity,
    Kept,
    MeasurementCache,
    times_from_json,
    times_to_json,
)
from evener.profile.costs import LayerTimes

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayersTaken:
    """How many layers did not have to be measured on a device.

    Args:
        hardware: The name of the device.
        num_layers: All layers of the step.
        num_taken: Those that were measured in earlier runs.
        since: When the first of these was measured; None if there are none.
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
        """Return text and numbers, of which `from_fields` makes an equal value."""
        since = None if self.since is None else self.since.isoformat()
        return {**dataclasses.asdict(self), "since": since}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> LayersTaken:
        """Return the value that `to_fields` wrote down."""
        since = fields["since"]
        return cls(**{**fields, "since": None if since is None else datetime.fromisoformat(since)})


def warn_of_estimates(not_measured: Sequence[str]) -> None:
    """Warn if the times of layers are estimated (PROF-020).

    Args:
        not_measured: For each layer that could not be measured a text that says why.
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
    """The measurements of one device, kept from run to run.

    Args:
        cache: Where they are kept; None to measure everything and to keep nothing.
        identity: Of the device.
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
        """Return the times of layers that are measured as one.

        Args:
            key: What is measured: operations, shapes, dtypes and numbers of samples.
            measure: Measures it; what it raises is passed on, and nothing is kept.
            num_layers: How many layers of the step have these times, at least 1.
        """
        kept = self._get(key, measure, to_json=times_to_json, from_json=times_from_json)
        self._layers.append((num_layers, kept.since))
        return kept.value

    def other(
        self,
        key: str,
        measure: Callable[[], T],
        *,
        to_json: Callable[[T], Any],
        from_json: Callable[[Any], T],
    ) -> T:
        """Return a measurement that is not that of a layer; see `MeasurementCache`."""
        return self._get(key, measure, to_json=to_json, from_json=from_json).value

    def seconds(self, key: str, measure: Callable[[], float]) -> float:
        """Return a time that is not that of a layer."""
        return self.other(key, measure, to_json=float, from_json=float)

    def _get(
        self,
        key: str,
        measure: Callable[[], T],
        *,
        to_json: Callable[[T], Any],
        from_json: Callable[[Any], T],
    ) -> Kept[T]:
        if self._cache is None:
            return Kept(value=measure())
        return self._cache.get_or_measure(
            self._identity, key, measure, to_json=to_json, from_json=from_json
        )

    @property
    def taken(self) -> LayersTaken:
        """How many of the layers that were asked for had been measured before."""
        old = [(count, since) for count, since in self._layers if since is not None]
        return LayersTaken(
            hardware=self._identity.hardware,
            num_layers=sum(count for count, _ in self._layers),
            num_taken=sum(count for count, _ in old),
            since=min((since for _, since in old), default=None),
        )
