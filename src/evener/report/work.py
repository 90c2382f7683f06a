"""The work of each device while a model trains: samples, seconds, variables, memory.

The share controller of a strategy writes the last few steps into a ring buffer. The ring is read
before it wraps around, and its new steps are added to the totals. The exact number of samples of an
epoch is the weight with which Keras averages the loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import keras

from evener._tf_private.models import model_strategy
from evener.devices.names import device_name
from evener.plan import split_batch
from evener.recording.measured import MemoryUse
from evener.strategy import Strategy

Step = tuple[tuple[float, float], ...]
"""The (samples, seconds) of every replica in one step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """The variables that a device owns, and their bytes."""

    num_variables: int = 0
    num_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWork:
    """The work of one device since training began, and the variables it owns.

    Args:
        device: Name of the device.
        share: Fraction of every batch that it computes now; None for a device that only owns
            variables.
        num_samples: The samples it has trained on; None if they are not counted.
        busy_seconds: The duration of its forward and backward passes; None if they are not
            timed, as on a single device.
        owned: The variables it owns.
        memory: The memory that TensorFlow uses there; None if unknown, as for a CPU.
    """

    device: str
    share: float | None
    num_samples: int | None
    busy_seconds: float | None
    owned: Owned
    memory: MemoryUse | None = None


class TrainingDevices(Protocol):
    """The devices that train a model together."""

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of the devices that compute."""
        ...

    @property
    def shares(self) -> tuple[float, ...]:
        """The fraction of every batch that each of them computes now."""
        ...

    def last_steps(self) -> list[Step]:
        """Return the last few steps, oldest first; none if steps are not timed."""
        ...

    def owned(self) -> Mapping[str, Owned]:
        """Return the variables that each device owns."""
        ...


class StrategyDevices:
    """The devices of an evener strategy."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy

    @property
    def strategy(self) -> Strategy:
        """The strategy."""
        return self._strategy

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices of the replicas."""
        return tuple(self._strategy.replica_devices)

    @property
    def shares(self) -> tuple[float, ...]:
        """The current shares."""
        return tuple(self._strategy.shares)

    def last_steps(self) -> list[Step]:
        """Return the steps in the ring buffer."""
        return list(zip(*self._strategy.share_controller.last_steps(), strict=True))

    def owned(self) -> dict[str, Owned]:
        """Return the owned variables of all models of the strategy."""
        owned = {name: Owned() for name in self.devices}
        for variable in self._strategy.owner_registry.variables:
            device = self._strategy.name_in_plan(variable.device)
            before = owned.get(device, Owned())
            owned[device] = Owned(
                num_variables=before.num_variables + 1,
                num_bytes=before.num_bytes + variable.num_bytes,
            )
        return owned


class SingleDevice:
    """The device of a model that was created without an evener strategy."""

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        variables = [getattr(variable.value, "device", "") for variable in model.variables]
        self.devices = (device_name(next(filter(None, variables), "")),)
        self.shares = (1.0,)

    def last_steps(self) -> list[Step]:
        """Return an empty list: the steps are not timed."""
        return []

    def owned(self) -> dict[str, Owned]:
        """Return the variables of the model and of its optimizer."""
        optimizer = getattr(self._model, "optimizer", None)
        variables = [*self._model.variables, *(optimizer.variables if optimizer else ())]
        unique = {id(variable): variable for variable in variables}.values()
        num_bytes = sum(v.value.dtype.size * v.value.shape.num_elements() for v in unique)
        return {self.devices[0]: Owned(num_variables=len(unique), num_bytes=num_bytes)}


def training_devices_of(model: keras.Model) -> TrainingDevices:
    """Return the devices that train a model."""
    strategy = model_strategy(model)
    return StrategyDevices(strategy) if isinstance(strategy, Strategy) else SingleDevice(model)


def samples_in_epoch(model: keras.Model) -> int | None:
    """Return the samples trained on since the metrics were reset; None if Keras does not count.

    Keras logs the loss as a mean weighted by the samples of every batch, so the sum of the weights
    is their number.
    """
    trackers: Sequence[Any] = [metric for metric in model.metrics if metric.name == "loss"]
    count = getattr(trackers[0], "count", None) if trackers else None
    return None if count is None else round(float(count.numpy()))


def new_steps(seen: Sequence[Step], now: Sequence[Step]) -> list[Step]:
    """Return the steps that were added to a ring buffer since it was last read.

    No two steps take equally long on all devices to the microsecond, so the steps common to both
    readings are the longest end of the first that is the beginning of the second.

    >>> new_steps([((1, 0.1),), ((1, 0.2),)], [((1, 0.2),), ((1, 0.3),)])
    [((1, 0.3),)]
    """
    for both in range(min(len(seen), len(now)), 0, -1):
        if list(seen[-both:]) == list(now[:both]):
            return list(now[both:])
    return list(now)


class WorkCounter:
    """Counts samples and busy seconds of every device."""

    def __init__(self, devices: TrainingDevices) -> None:
        self._devices = devices
        self._read_steps = devices.last_steps()
        count = len(devices.devices)
        self._samples = [0] * count
        self._seconds = [0.0] * count
        self._epoch_samples = [0] * count
        self._epoch_seconds = [0.0] * count
        self._is_timed = False
        self.last_epoch_seconds = (0.0,) * count

    def read(self, num_in_epoch: int | None = None) -> None:
        """Add the steps that came since the last reading."""
        now = self._devices.last_steps()
        for step in new_steps(self._read_steps, now):
            self._is_timed = True
            for k, (samples, seconds) in enumerate(step):
                self._epoch_samples[k] += round(samples)
                self._epoch_seconds[k] += seconds
        self._read_steps = now
        if not self._is_timed and num_in_epoch is not None:
            self._epoch_samples = list(split_batch(num_in_epoch, self._devices.shares))

    def end_epoch(self, num_in_epoch: int | None) -> None:
        """Add an epoch to the total.

        Steps that were overwritten in the ring before it was read (``fit`` with a large
        ``steps_per_execution``) are assumed to equal those that were read on average.
        """
        self.read(num_in_epoch)
        counted = sum(self._epoch_samples)
        if num_in_epoch is not None and num_in_epoch > counted:
            like = self._epoch_samples if counted else self._devices.shares
            missed = split_batch(num_in_epoch - counted, like)
            scale = num_in_epoch / counted if counted else 1.0
            self._epoch_samples = [a + b for a, b in zip(self._epoch_samples, missed, strict=True)]
            self._epoch_seconds = [seconds * scale for seconds in self._epoch_seconds]
        self.last_epoch_seconds = tuple(self._epoch_seconds)
        self._samples, self._seconds = list(self.samples), list(self.seconds)
        self._epoch_samples = [0] * len(self._samples)
        self._epoch_seconds = [0.0] * len(self._samples)

    @property
    def samples(self) -> tuple[int, ...]:
        """The samples of every device since training began."""
        return tuple(a + b for a, b in zip(self._samples, self._epoch_samples, strict=True))

    @property
    def seconds(self) -> tuple[float, ...]:
        """The busy seconds of every device since training began."""
        return tuple(a + b for a, b in zip(self._seconds, self._epoch_seconds, strict=True))

    @property
    def is_timed(self) -> bool:
        """Whether the seconds are known."""
        return self._is_timed
