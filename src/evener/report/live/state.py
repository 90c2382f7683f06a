"""The state of a training that the live view shows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveDevice:
    """Work of one device.

    Attributes:
        name: Name of the device.
        share: Fraction of every batch that it computes now; None if it computes no part.
        busy: Fraction of the time in which it computes; None if it is not timed.
        waits: Fraction of a step in which it waits; None if it is not timed.
        waits_for: Device that it waits for longest; empty if it waits for none.
        memory_bytes: Memory in use; None where the device does not tell.
        memory_limit: Memory that there is; None where the device does not tell.
        worker: Number of its worker; None for a single process.
    """

    name: str
    share: float | None = None
    busy: float | None = None
    waits: float | None = None
    waits_for: str = ""
    memory_bytes: int | None = None
    memory_limit: int | None = None
    worker: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveState:
    """The state of a training at one time.

    Attributes:
        title: Line above the view; empty for none.
        epoch: Current epoch, from 1; None in a loop that is not Keras's.
        num_epochs: Number of epochs; None if unknown.
        step: Completed steps, of the epoch if there are epochs.
        num_steps: Steps of an epoch; None if unknown.
        samples_per_second: Throughput of all devices; None if unknown.
        seconds_left: Seconds to the end of the last epoch; None if unknown.
        losses: Loss and metrics of the epoch, by name.
        devices: All devices.
    """

    title: str = ""
    epoch: int | None = None
    num_epochs: int | None = None
    step: int = 0
    num_steps: int | None = None
    samples_per_second: float | None = None
    seconds_left: float | None = None
    losses: Mapping[str, float] = field(default_factory=dict)
    devices: tuple[LiveDevice, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the state as values of JSON."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_dict(fields: Mapping[str, Any]) -> LiveState:
        """Return the state of values of JSON.

        >>> import json
        >>> state = LiveState(step=3, devices=(LiveDevice(name="gpu:0"),))
        >>> LiveState.from_dict(json.loads(json.dumps(state.to_dict()))) == state
        True
        """
        devices = tuple(LiveDevice(**device) for device in fields["devices"])
        return LiveState(**{**fields, "devices": devices})
